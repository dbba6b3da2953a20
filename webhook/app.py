"""What is served at which path. The only module of the webhook that uses Flask.

Reviews go past it to `webhook.endpoint`: there are thousands of them for every probe.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import flask
import orjson
from werkzeug.exceptions import HTTPException

from gpushare import names
from gpushare.runtime.clock import Clock
from gpushare.runtime.intake import MIB, Intake, Limit
from webhook import admission, review
from webhook.endpoint import Endpoint
from webhook.metrics import Metrics
from webhook.mutation import Decision, Undecided
from webhook.review import Review
from webhook.rules import Rules
from webhook.runtimeclass import RuntimeClass, UnknownRuntimeClassError
from webhook.settings import Settings

_ROOM: Final = 384 * MIB
"""For all large reviews together; about as much again is for the process, its small reviews and its connections."""
_OF_ONE_POD: Final = Limit(body=6 * MIB, weight=64 * MIB)
"""Several times what etcd stores of one object, 1.5 MiB. What is heavier would take longer than an API server waits."""
_OF_ANY_UPDATE: Final = Limit(body=16 * MIB, weight=320 * MIB)
"""A pod of the above size that has grown since, twice: its kubelet must go on reporting."""

_Wsgi = Callable[[dict[str, Any], Any], Iterable[bytes]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """What the routes need from outside."""

    clock: Clock
    metrics: Metrics
    runtime_class: RuntimeClass
    not_ready: Callable[[], str]
    """Why the server cannot do its work; empty if it can."""


def create_app(settings: Settings, services: Services) -> flask.Flask:
    """The WSGI application."""
    app = flask.Flask(names.WEBHOOK, static_folder=None)
    shared = Intake(room=_ROOM)

    rules = _rules(settings)

    def mutate(request: Review) -> Decision:
        return _mutate(request, rules, services.runtime_class)

    def enforce(request: Review) -> Decision:
        return _mutate(request, replace(rules, demands_limit=True), services.runtime_class)

    def validate(request: Review) -> Decision:
        return admission.validate(request, settings.controller, settings.resource_config)

    endpoints: dict[str, _Wsgi] = {}
    for name, decide, refuse, limit in (
        ("mutate", mutate, review.invalid, _OF_ONE_POD),
        ("enforce", enforce, review.invalid, _OF_ONE_POD),
        ("isolate", mutate, review.invalid, _OF_ONE_POD),
        ("validate", validate, review.forbidden, _OF_ANY_UPDATE),
    ):
        services.metrics.expect(name)
        endpoints[f"/{name}"] = Endpoint(
            name=name,
            decide=decide,
            refuse=refuse,
            clock=services.clock,
            metrics=services.metrics,
            intake=shared,
            limit=limit,
        )
        app.add_url_rule(f"/{name}", name, methods=["POST"])  # by which all other methods are refused
    _add_probes(app, services)
    app.register_error_handler(HTTPException, _http_error)
    setattr(app, "wsgi_app", _past_flask(endpoints, app.wsgi_app))  # noqa: B010 - Flask's way; mypy takes it for fixed
    return app


def _past_flask(endpoints: Mapping[str, _Wsgi], others: _Wsgi) -> _Wsgi:
    """The application that answers what is posted to an endpoint there, and all else as before."""

    def call(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        endpoint = endpoints.get(environ["PATH_INFO"]) if environ["REQUEST_METHOD"] == "POST" else None
        return (endpoint or others)(environ, start_response)

    return call


def _rules(settings: Settings) -> Rules:
    """As long as no one has looked which RuntimeClass GPU pods get."""
    return Rules(
        resource_config=settings.resource_config,
        scheduler=settings.scheduler_name,
        other_schedulers=settings.extender_schedulers,
        runtime_class_unknown="not looked up",
        foreign_resources=settings.foreign_resources,
    )


def _mutate(request: Review, rules: Rules, runtime_class: RuntimeClass) -> Decision:
    """Only pods whose decision rests on it wait for the API server: the others, which are most, never depend on it."""
    decision = admission.mutate(request, rules)
    if not isinstance(decision, Undecided) or decision.decide is None:
        return decision
    try:
        choice = runtime_class.current()
    except UnknownRuntimeClassError as error:
        return Undecided(str(error))
    known = replace(rules, runtime_class=choice.name, only_cdi=choice.only_cdi, runtime_class_unknown="")
    return decision.decide(known)


def _add_probes(app: flask.Flask, services: Services) -> None:
    @app.get("/healthz")
    def healthz() -> flask.Response:
        return _text(200, "ok")

    @app.get("/readyz")
    def readyz() -> flask.Response:
        problem = services.not_ready()
        return _text(503, problem) if problem else _text(200, "ok")

    @app.get("/metrics")
    def metrics() -> flask.Response:
        return flask.Response(services.metrics.exposition(), content_type=Metrics.CONTENT_TYPE)


def _http_error(error: HTTPException) -> flask.Response:
    body = {"error": error.description or error.name}
    return flask.Response(orjson.dumps(body), error.code or 500, content_type="application/json")


def _text(status: int, body: str) -> flask.Response:
    return flask.Response(body, status, content_type="text/plain; charset=utf-8")
