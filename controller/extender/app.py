"""HTTP routes of the extender. kube-scheduler drops the body of any answer but 200, so errors travel inside of it."""

import contextlib
import functools
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

import flask
import orjson
from werkzeug.exceptions import HTTPException

from controller.extender import inspect, messages, prioritize
from controller.extender.bind import Binder
from controller.extender.preempt import Preemption
from controller.metrics import CONTENT_TYPE, Metrics
from controller.node_verdicts import NodeVerdicts
from controller.state import ClusterState
from gpushare import names
from gpushare.errors import GpuShareError, WireError
from gpushare.identity import NodeName
from gpushare.kube.api import JsonObject
from gpushare.model.ledger import NodeLedger
from gpushare.model.request import PodRequest
from gpushare.runtime import intake, logs
from gpushare.runtime.arrival import BUSY, RECEIVED
from gpushare.runtime.clock import Clock
from gpushare.runtime.intake import MIB, Intake, Limit, RefusedBodyError, Stream
from gpushare.wire import pods as pods_wire
from gpushare.wire import requests

_LOG: Final = logging.getLogger(__name__)
_LIMIT: Final = Limit(body=64 * MIB, weight=896 * MIB)
"""5,000 whole Node objects of a scheduler that does not cache them."""
_ROOM: Final = 1024 * MIB
"""For all large requests together: one of the largest."""
_JSON: Final = "application/json"
_BUSY: Final = "this replica of the gpushare controller is binding as many pods as it can; try again"
BINDS: Final = 24
"""Binds at the same time. Fewer than the server has threads: each may wait for the API server, and nothing else may."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """What the routes work with."""

    state: ClusterState
    node_verdicts: NodeVerdicts
    binder: Binder
    preemption: Preemption
    metrics: Metrics
    clock: Clock
    binds: int = BINDS
    """How many at the same time."""
    unready: Callable[[], str]
    """Why the extender must not be asked; empty if it may."""
    version: str


class NotReadyError(GpuShareError):
    """This replica cannot answer now."""


def create_app(services: Services) -> flask.Flask:
    """The extender as a WSGI application."""
    app = flask.Flask("controller", static_folder=None)
    verbs = _Verbs(services)
    prefix = names.EXTENDER_PREFIX
    app.add_url_rule(f"{prefix}/prioritize", view_func=verbs.prioritize, methods=["POST"])
    app.add_url_rule(f"{names.NANO_PREFIX}/priorities", view_func=verbs.prioritize, methods=["POST"])
    for each in (prefix, names.NANO_PREFIX):
        for verb in (verbs.filter, verbs.preempt, verbs.bind):
            app.add_url_rule(f"{each}/{verb.__name__}", view_func=verb, methods=["POST"])
    app.add_url_rule(f"{prefix}/inspect", view_func=verbs.inspect, defaults={"node": None})
    app.add_url_rule(f"{prefix}/inspect/<node>", view_func=verbs.inspect)
    app.add_url_rule("/healthz", view_func=lambda: "ok\n", endpoint="healthz")
    app.add_url_rule("/readyz", view_func=verbs.ready)
    app.add_url_rule("/metrics", view_func=verbs.metrics)
    app.add_url_rule("/version", view_func=lambda: f"{services.version}\n", endpoint="version")
    return app


class _Verbs:
    """One method for each route."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._binds = threading.BoundedSemaphore(services.binds)
        self._intake = Intake(room=_ROOM)

    def filter(self) -> flask.Response:
        return self._answer("filter", self._filter, messages.filter_error)

    def prioritize(self) -> flask.Response:
        # There is no place for an error in a list of scores; the scheduler takes an empty list for "no opinion".
        return self._answer("prioritize", self._prioritize, lambda _: messages.priorities(()))

    def preempt(self) -> flask.Response:
        return self._answer("preempt", self._preempt, _no_victims)

    def bind(self) -> flask.Response:
        return self._answer("bind", self._bind, messages.bind_result)

    def inspect(self, node: str | None) -> flask.Response:
        known = self._services.state.cache.snapshot().ledgers
        ledgers = {name: ledger for name, ledger in known.items() if isinstance(ledger, NodeLedger)}
        report = inspect.report(ledgers, None if node is None else NodeName(node))
        if reason := self._services.unready():
            report["error"] = reason
        return flask.Response(orjson.dumps(report), mimetype=_JSON)

    def ready(self) -> flask.Response:
        reason = self._services.unready()
        return flask.Response(f"{reason or 'ok'}\n", status=503 if reason else 200, mimetype="text/plain")

    def metrics(self) -> flask.Response:
        return flask.Response(self._services.metrics.page(), content_type=CONTENT_TYPE)

    def _answer(
        self, verb: str, act: Callable[[bytes], tuple[bytes, str]], fail: Callable[[str], bytes]
    ) -> flask.Response:
        """Do a verb; whatever goes wrong becomes an answer that kube-scheduler reads."""
        clock, started = self._services.clock, self._services.clock.monotonic()
        flask.request.environ.setdefault(RECEIVED, started)
        length, after = 0, _nothing
        try:
            length = _length()
            busy = flask.request.environ.get(BUSY, False)
            with self._intake.body(flask.request.stream, length, _LIMIT, busy=busy) as received:
                body, outcome = act(received)
        except RefusedBodyError as error:
            after = functools.partial(_skip, flask.request.stream, length)
            body, outcome = fail(f"the body: {error}"), "busy" if error.busy else "invalid"
        except NotReadyError as error:
            body, outcome = fail(str(error)), "not-ready"
        except GpuShareError as error:
            body, outcome = fail(str(error)), "invalid"
        except HTTPException as error:
            body, outcome = fail(f"the body: {error.description}"), "invalid"
        except Exception as error:  # noqa: BLE001 - the edge of a request: the scheduler must get an answer that it reads
            logs.event(_LOG, "request failed", level=logging.ERROR, exc_info=True, verb=verb)
            body, outcome = fail(f"gpushare controller: internal error: {type(error).__name__}"), "internal-error"
        self._services.metrics.answered(verb, outcome, clock.monotonic() - started)
        # kube-scheduler keeps its connection for as long as it is answered, and would ask this replica for ever.
        headers = {"Connection": "close"} if self._services.unready() else {}
        answer = flask.Response(body, mimetype=_JSON, headers=headers)
        answer.call_on_close(after)
        return answer

    def _filter(self, body: bytes) -> tuple[bytes, str]:
        args = messages.node_args(body)
        request = self._request(args.pod)
        if request is None:
            return messages.filter_result(messages.FilterResult(fits=args.names), args), "no-gpu"
        reserved = self._services.state.cache.reserved_on(request.pod.uid)
        result = self._services.node_verdicts.filter(request.shape, args.names, reserved)
        self._services.metrics.filtered(
            fits=len(result.fits), failed=len(result.failed), unresolvable=len(result.unresolvable)
        )
        return messages.filter_result(result, args), "fits" if result.fits else "no-fit"

    def _prioritize(self, body: bytes) -> tuple[bytes, str]:
        args = messages.node_args(body)
        request = self._request(args.pod)
        if request is None:
            return messages.priorities((name, 0) for name in args.names), "no-gpu"
        answers = self._services.node_verdicts.answers(request.shape, args.names)
        reserved = self._services.state.cache.reserved_on(request.pod.uid)
        return messages.priorities(prioritize.decide(args.names, answers, reserved)), "scored"

    def _preempt(self, body: bytes) -> tuple[bytes, str]:
        args = messages.preempt_args(body)
        request = self._request(args.pod)
        victims = self._services.preemption.decide(args, request)
        return messages.preempt_result(victims), "no-gpu" if request is None else "nodes" if victims else "no-nodes"

    def _bind(self, body: bytes) -> tuple[bytes, str]:
        args = messages.bind_args(body)
        self._check_ready()
        # A queue here would hold the server's threads; kube-scheduler has one, and tries again after a second.
        if not self._binds.acquire(blocking=False):
            return messages.bind_result(_BUSY), "busy"
        try:
            answer = self._services.binder.bind(args, received=flask.request.environ[RECEIVED])
        finally:
            self._binds.release()
        return messages.bind_result(answer.error), answer.outcome.value

    def _request(self, pod: JsonObject) -> PodRequest | None:
        """What a pod asks for. A pod that asks for nothing never depends on this replica's state."""
        state = self._services.state
        if not pods_wire.needs_gpu(pod, state.resource_config):
            return None
        request = requests.of_pod(pod, state.resource_config)
        self._check_ready()
        return request and replace(request, shape=state.resolve(request.shape, request.labels, request.pod.uid))

    def _check_ready(self) -> None:
        if reason := self._services.unready():
            raise NotReadyError(reason)


def _no_victims(error: str) -> bytes:
    """An answer that evicts no one. It has no place for a reason."""
    logs.event(_LOG, "preempt failed", level=logging.WARNING, error=error)
    return messages.preempt_result({})


def _length() -> int:
    if "Transfer-Encoding" in flask.request.headers:
        raise WireError("the body: Transfer-Encoding is not read; send a Content-Length")
    return flask.request.content_length or 0


def _skip(stream: Stream, length: int) -> None:
    with contextlib.suppress(OSError, HTTPException):  # the sender may have left
        intake.skip(stream, length)


def _nothing() -> None:
    """After a request whose body was read."""
