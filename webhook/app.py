"""HTTP routes: gather, decide, answer. The only module of the webhook that uses Flask."""

import contextlib
import functools
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, assert_never

import flask
import orjson
from werkzeug.exceptions import HTTPException

from gpushare import names
from gpushare.errors import FieldError, WireError
from gpushare.runtime import intake, logs
from gpushare.runtime.arrival import BUSY
from gpushare.runtime.clock import Clock
from gpushare.runtime.intake import MIB, Intake, Limit, RefusedBodyError, Stream
from webhook import admission, review
from webhook.metrics import Metrics, Outcome
from webhook.mutation import Decision, Denied, Mutated, Undecided, Untouched
from webhook.review import AdmissionReview, Review
from webhook.rules import Rules
from webhook.runtimeclass import RuntimeClass, UnknownRuntimeClassError
from webhook.settings import Settings

_LOG: Final = logging.getLogger(__name__)
_ROOM: Final = 384 * MIB
"""For all large reviews together; about as much again is for the process, its small reviews and its connections."""
_OF_ONE_POD: Final = Limit(body=6 * MIB, weight=64 * MIB)
"""Several times what etcd stores of one object, 1.5 MiB. What is heavier would take longer than an API server waits."""
_OF_ANY_UPDATE: Final = Limit(body=16 * MIB, weight=320 * MIB)
"""A pod of the above size that has grown since, twice: its kubelet must go on reporting."""

_Decide = Callable[[Review], Decision]
_Refuse = Callable[[Review, Sequence[FieldError]], AdmissionReview]


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

    for path, decide, refuse, limit in (
        ("mutate", mutate, review.invalid, _OF_ONE_POD),
        ("enforce", enforce, review.invalid, _OF_ONE_POD),
        ("isolate", mutate, review.invalid, _OF_ONE_POD),
        ("validate", validate, review.forbidden, _OF_ANY_UPDATE),
    ):
        endpoint = _Endpoint(path, decide, refuse, services, shared, limit)
        app.add_url_rule(f"/{path}", path, endpoint, methods=["POST"])
    _add_probes(app, services)
    app.register_error_handler(HTTPException, _http_error)
    return app


@dataclass(frozen=True, slots=True)
class _Endpoint:
    """One webhook."""

    name: str
    decide: _Decide
    refuse: _Refuse
    services: Services
    intake: Intake
    limit: Limit

    def __call__(self) -> flask.Response:
        started = self.services.clock.monotonic()
        answer, outcome = self._answer()
        self.services.metrics.answered(self.name, outcome, seconds=self.services.clock.monotonic() - started)
        return answer

    def _answer(self) -> tuple[flask.Response, Outcome]:
        if flask.request.mimetype != "application/json":
            sent = flask.request.mimetype or "none"
            return _error(415, f"Content-Type: expected application/json, found {sent}"), Outcome.MALFORMED
        if "Transfer-Encoding" in flask.request.headers:
            return _error(411, "Transfer-Encoding: not read; send a Content-Length"), Outcome.MALFORMED
        length = flask.request.content_length or 0
        try:
            busy = flask.request.environ.get(BUSY, False)
            with self.intake.body(flask.request.stream, length, self.limit, busy=busy) as body:
                return self._reviewed(body)
        except RefusedBodyError as error:
            answer, outcome = self._not_looked_at(error)
            answer.call_on_close(functools.partial(_skip, flask.request.stream, length))
            return answer, outcome

    def _not_looked_at(self, error: RefusedBodyError) -> tuple[flask.Response, Outcome]:
        uid = review.uid_of(error.head)
        message = f"the object is too large for {names.WEBHOOK_SERVICE}: {error}"
        if error.busy:
            message = f"{names.WEBHOOK_SERVICE} is busy: {error}"
        logs.event(_LOG, "body refused", level=logging.WARNING, webhook=self.name, uid=uid, message=message)
        if not uid:
            return _error(503 if error.busy else 413, message), Outcome.MALFORMED
        if error.busy:
            return _json(200, review.unavailable(uid, message)), Outcome.FAILED
        return _json(200, review.too_large(uid, message)), Outcome.DENIED

    def _reviewed(self, body: bytes) -> tuple[flask.Response, Outcome]:
        try:
            request = review.parse(body)
        except WireError as error:
            return _error(400, str(error)), Outcome.MALFORMED
        try:
            return self._decided(request)
        except Exception:  # noqa: BLE001 - a request's edge: the caller gets a message, the log the stack
            _log("admission failed", self.name, request, level=logging.ERROR)
            return _error(500, "the webhook failed; its log says why"), Outcome.FAILED

    def _decided(self, request: Review) -> tuple[flask.Response, Outcome]:
        decision = self.decide(request)
        match decision:
            case Untouched():
                _log("admitted", self.name, request, level=logging.DEBUG)
                return _json(200, review.allowed(request)), Outcome.UNTOUCHED
            case Mutated(pod, warnings):
                _log("mutated", self.name, request, warnings=len(warnings))
                return _json(200, review.patched(request, pod, warnings)), Outcome.MUTATED
            case Denied(errors):
                _log("denied", self.name, request, message=review.message(errors))
                return _json(200, self.refuse(request, errors)), Outcome.DENIED
            case Undecided(message):
                _log("undecided", self.name, request, level=logging.WARNING, message=message)
                return _json(200, review.unavailable(request.uid, message)), Outcome.FAILED
            case _:
                assert_never(decision)


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
    if not isinstance(decision, Undecided):
        return decision
    try:
        choice = runtime_class.current()
    except UnknownRuntimeClassError as error:
        return Undecided(str(error))
    known = replace(rules, runtime_class=choice.name, only_cdi=choice.only_cdi, runtime_class_unknown="")
    return admission.mutate(request, known)


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


def _log(event: str, webhook: str, request: Review, *, level: int = logging.INFO, **more: object) -> None:
    fields: dict[str, Any] = {
        "webhook": webhook,
        "operation": request.operation,
        "resource": request.resource,
        "namespace": request.namespace,
        "pod": request.name,
        "user": request.user,
        "dry_run": request.is_dry_run,
        "uid": request.uid,
        **more,
    }
    logs.event(_LOG, event, level=level, exc_info=level == logging.ERROR, **fields)


def _skip(stream: Stream, length: int) -> None:
    with contextlib.suppress(OSError, HTTPException):  # the sender may have left
        intake.skip(stream, length)


def _http_error(error: HTTPException) -> flask.Response:
    return _error(error.code or 500, error.description or error.name)


def _error(status: int, message: str) -> flask.Response:
    return _json(status, {"error": message})


def _json(status: int, body: object) -> flask.Response:
    return flask.Response(orjson.dumps(body), status, content_type="application/json")


def _text(status: int, body: str) -> flask.Response:
    return flask.Response(body, status, content_type="text/plain; charset=utf-8")
