"""One webhook's requests: read, decide, answer. Plain WSGI: a framework would double what most of them cost."""

import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final, assert_never

import orjson

from gpushare import names
from gpushare.errors import FieldError, WireError
from gpushare.runtime import intake, logs
from gpushare.runtime.arrival import BUSY
from gpushare.runtime.clock import Clock
from gpushare.runtime.intake import Intake, Limit, RefusedBodyError, Stream
from webhook import review
from webhook.metrics import Metrics, Outcome
from webhook.mutation import Decision, Denied, Mutated, Undecided, Untouched
from webhook.review import AdmissionReview, Review

_LOG: Final = logging.getLogger(__name__)

Environ = Mapping[str, Any]
StartResponse = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Answer:
    """What is sent, as JSON."""

    status: int
    body: bytes
    rest: tuple[Stream, int] | None = None
    """What of the request to read and drop after the answer was sent, and how many bytes of it at most."""

    def __iter__(self) -> Iterator[bytes]:
        """As WSGI has it."""
        yield self.body

    def close(self) -> None:
        """As WSGI has it: the answer was sent."""
        if self.rest is not None:
            with contextlib.suppress(OSError):  # the sender may have left
                intake.skip(*self.rest)

    def begin(self, start_response: StartResponse) -> "Answer":
        """As WSGI has it."""
        length = str(len(self.body))
        headers = [("Content-Type", "application/json"), ("Content-Length", length)]
        start_response(f"{self.status} {HTTPStatus(self.status).phrase}", headers)
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """One webhook."""

    name: str
    decide: Callable[[Review], Decision]
    refuse: Callable[[Review, Sequence[FieldError]], AdmissionReview]
    clock: Clock
    metrics: Metrics
    intake: Intake
    limit: Limit

    def __call__(self, environ: Environ, start_response: StartResponse) -> Answer:
        """Answer a request."""
        started = self.clock.monotonic()
        answer, outcome = self._answer(environ)
        self.metrics.answered(self.name, outcome, seconds=self.clock.monotonic() - started)
        return answer.begin(start_response)

    def _answer(self, environ: Environ) -> tuple[Answer, Outcome]:
        kind = str(environ.get("CONTENT_TYPE", "")).partition(";")[0].strip().lower()
        if kind != "application/json":
            return error(415, f"Content-Type: expected application/json, found {kind or 'none'}"), Outcome.MALFORMED
        if "HTTP_TRANSFER_ENCODING" in environ:
            return error(411, "Transfer-Encoding: not read; send a Content-Length"), Outcome.MALFORMED
        told, stream = str(environ.get("CONTENT_LENGTH", "")), environ["wsgi.input"]
        length = int(told) if told.isdecimal() else 0
        try:
            with self.intake.body(stream, length, self.limit, busy=environ.get(BUSY, False)) as body:
                return self._reviewed(body)
        except RefusedBodyError as refused:
            return self._not_looked_at(refused, (stream, length))

    def _not_looked_at(self, error_: RefusedBodyError, rest: tuple[Stream, int]) -> tuple[Answer, Outcome]:
        uid = review.uid_of(error_.head)
        message = f"the object is too large for {names.WEBHOOK_SERVICE}: {error_}"
        if error_.busy:
            message = f"{names.WEBHOOK_SERVICE} is busy: {error_}"
        logs.event(_LOG, "body refused", level=logging.WARNING, webhook=self.name, uid=uid, message=message)
        if not uid:
            return error(503 if error_.busy else 413, message, rest), Outcome.MALFORMED
        if error_.busy:
            return _json(200, review.unavailable(uid, message), rest), Outcome.FAILED
        return _json(200, review.too_large(uid, message), rest), Outcome.DENIED

    def _reviewed(self, body: bytes) -> tuple[Answer, Outcome]:
        try:
            request = review.parse(body)
        except WireError as problem:
            return error(400, str(problem)), Outcome.MALFORMED
        try:
            return self._decided(request)
        except Exception:  # noqa: BLE001 - a request's edge: the caller gets a message, the log the stack
            self._log("admission failed", request, level=logging.ERROR)
            return error(500, "the webhook failed; its log says why"), Outcome.FAILED

    def _decided(self, request: Review) -> tuple[Answer, Outcome]:
        decision = self.decide(request)
        match decision:
            case Untouched():
                self._log("admitted", request, level=logging.DEBUG)
                return _json(200, review.allowed(request)), Outcome.UNTOUCHED
            case Mutated(pod, warnings):
                self._log("mutated", request, warnings=len(warnings))
                return _json(200, review.patched(request, pod, warnings)), Outcome.MUTATED
            case Denied(errors):
                self._log("denied", request, message=review.message(errors))
                return _json(200, self.refuse(request, errors)), Outcome.DENIED
            case Undecided(message):
                self._log("undecided", request, level=logging.WARNING, message=message)
                return _json(200, review.unavailable(request.uid, message)), Outcome.FAILED
            case _:
                assert_never(decision)

    def _log(self, event: str, request: Review, *, level: int = logging.INFO, **more: object) -> None:
        if not _LOG.isEnabledFor(level):
            return
        fields: dict[str, Any] = {
            "webhook": self.name,
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


def error(status: int, message: str, rest: tuple[Stream, int] | None = None) -> Answer:
    """What no API server is ever told."""
    return _json(status, {"error": message}, rest)


def _json(status: int, body: object, rest: tuple[Stream, int] | None = None) -> Answer:
    return Answer(status, orjson.dumps(body), rest)
