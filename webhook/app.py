"""What is served at which path: a review is read, decided, answered. The door to Flask."""

import functools
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

import flask
import orjson
from werkzeug.exceptions import HTTPException

from gpushare import names
from gpushare.errors import InvalidRequestError, WireError
from gpushare.runtime import logs
from gpushare.runtime.clock import Clock
from gpushare.runtime.http import BUSY
from gpushare.runtime.intake import MIB, ByteBudget, Intake, Limit, RefusedBodyError
from webhook import mutation, review, validation
from webhook.edits import Rules
from webhook.metrics import Metrics, Outcome
from webhook.mutation import Patched
from webhook.review import Refusal, Review
from webhook.runtimeclass import RuntimeClass, UnknownRuntimeClassError
from webhook.settings import Settings

_LOG: Final = logging.getLogger(__name__)
_MAX_BYTES: Final = 384 * MIB
"""For all large reviews together; about as much again is for the process, its small reviews and its connections."""
_OF_ONE_POD: Final = Limit(body=6 * MIB, weight=64 * MIB)
"""Several times what etcd stores of one object, 1.5 MiB. What is heavier would take longer than an API server waits."""
_OF_ANY_UPDATE: Final = Limit(body=16 * MIB, weight=320 * MIB)
"""A pod of the above size that has grown since, twice: its kubelet must go on reporting."""


def create_app(
    settings: Settings, *, clock: Clock, metrics: Metrics, runtime_class: RuntimeClass, not_ready: Callable[[], str]
) -> flask.Flask:
    """`not_ready` says why the server cannot do its work; nothing if it can."""
    app = flask.Flask(names.WEBHOOK, static_folder=None)
    intake = Intake(budget=ByteBudget(_MAX_BYTES))
    rules = Rules(
        resource_config=settings.resource_config,
        scheduler=settings.scheduler_name,
        other_schedulers=settings.extender_schedulers,
        runtime_class=runtime_class.current,
        foreign_resources=settings.foreign_resources,
    )
    mutate = functools.partial(mutation.decide, rules=rules)
    enforce = functools.partial(mutation.decide, rules=replace(rules, demands_limit=True))
    claim = functools.partial(mutation.decide, rules=replace(rules, claims=True))
    claim_enforced = functools.partial(mutation.decide, rules=replace(rules, claims=True, demands_limit=True))
    validate = functools.partial(
        validation.validate, controller=settings.controller, resource_config=settings.resource_config
    )
    for name, decide, refusal, limit in (
        ("mutate", mutate, Refusal.INVALID, _OF_ONE_POD),
        ("enforce", enforce, Refusal.INVALID, _OF_ONE_POD),
        ("claim", claim, Refusal.INVALID, _OF_ONE_POD),
        ("claim-enforced", claim_enforced, Refusal.INVALID, _OF_ONE_POD),
        ("isolate", mutate, Refusal.INVALID, _OF_ONE_POD),
        ("validate", validate, Refusal.FORBIDDEN, _OF_ANY_UPDATE),
    ):
        metrics.expect(name)
        endpoint = _Endpoint(name, decide, refusal, limit, clock, metrics, intake)
        app.add_url_rule(f"/{name}", name, endpoint.answer, methods=["POST"])
    app.add_url_rule("/healthz", "healthz", lambda: _probe(""))
    app.add_url_rule("/readyz", "readyz", lambda: _probe(not_ready()))
    app.add_url_rule(
        "/metrics", "metrics", lambda: flask.Response(metrics.exposition(), content_type=Metrics.CONTENT_TYPE)
    )
    app.register_error_handler(HTTPException, lambda error: _error(error.code or 500, error.description or error.name))
    return app


@dataclass(frozen=True, slots=True)
class _Endpoint:
    name: str
    decide: Callable[[Review], Patched | None]
    refusal: Refusal
    limit: Limit
    clock: Clock
    metrics: Metrics
    intake: Intake

    def answer(self) -> flask.Response:
        started = self.clock.monotonic()
        answer, outcome = self._answer(flask.request)
        self.metrics.answered(self.name, outcome, seconds=self.clock.monotonic() - started)
        return answer

    def _answer(self, request: flask.Request) -> tuple[flask.Response, Outcome]:
        if request.mimetype != "application/json":
            found = request.mimetype or "none"
            return _error(415, f"Content-Type: expected application/json, found {found}"), Outcome.MALFORMED
        length, busy = request.content_length or 0, bool(request.environ.get(BUSY))
        try:
            with self.intake.body(request.stream, length, self.limit, busy=busy) as body:
                return self._reviewed(body)
        except RefusedBodyError as refused:
            return self._not_looked_at(refused)

    def _not_looked_at(self, error: RefusedBodyError) -> tuple[flask.Response, Outcome]:
        uid = review.uid_of(error.head)
        message = f"the object is too large for {names.WEBHOOK_SERVICE}: {error}"
        if error.busy:
            message = f"{names.WEBHOOK_SERVICE} is busy: {error}"
        logs.event(_LOG, "body refused", level=logging.WARNING, webhook=self.name, uid=uid, message=message)
        if not uid:
            return _error(503 if error.busy else 413, message), Outcome.MALFORMED
        if error.busy:
            return _json(200, review.denied(uid, Refusal.UNAVAILABLE, message)), Outcome.FAILED
        return _json(200, review.denied(uid, Refusal.INVALID, message)), Outcome.DENIED

    def _reviewed(self, body: bytes) -> tuple[flask.Response, Outcome]:
        try:
            request = review.parse(body)
        except WireError as problem:
            return _error(400, str(problem)), Outcome.MALFORMED
        try:
            if (decision := self.decide(request)) is None:
                self._log("admitted", request, level=logging.DEBUG)
                return _json(200, review.allowed(request.uid)), Outcome.UNTOUCHED
            answer = review.patched(request, decision.pod, decision.warnings)
        except InvalidRequestError as error:
            told = review.message(error.errors)
            self._log("denied", request, message=told)
            return _json(200, review.denied(request.uid, self.refusal, told)), Outcome.DENIED
        except UnknownRuntimeClassError as error:
            self._log("undecided", request, level=logging.WARNING, message=str(error))
            return _json(200, review.denied(request.uid, Refusal.UNAVAILABLE, str(error))), Outcome.FAILED
        except Exception:  # noqa: BLE001 - a request's edge: the caller gets a message, the log the stack
            self._log("admission failed", request, level=logging.ERROR)
            return _error(500, "the webhook failed; its log says why"), Outcome.FAILED
        outcome = Outcome.MUTATED if "patch" in answer["response"] else Outcome.UNTOUCHED
        self._log("admitted" if outcome is Outcome.UNTOUCHED else "mutated", request, warnings=len(decision.warnings))
        return _json(200, answer), outcome

    def _log(self, event: str, request: Review, *, level: int = logging.INFO, **more: object) -> None:
        logs.event(
            _LOG,
            event,
            level=level,
            exc_info=level == logging.ERROR,
            webhook=self.name,
            operation=request.operation,
            resource=request.resource,
            namespace=request.namespace,
            pod=request.name,
            user=request.user,
            dry_run=request.is_dry_run,
            uid=request.uid,
            **more,
        )


def _error(status: int, message: str) -> flask.Response:
    """What no API server is ever told."""
    return _json(status, {"error": message})


def _json(status: int, body: object) -> flask.Response:
    return flask.Response(orjson.dumps(body), status, content_type="application/json")


def _probe(problem: str) -> flask.Response:
    return flask.Response(problem or "ok", 503 if problem else 200, content_type="text/plain; charset=utf-8")
