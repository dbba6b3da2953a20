"""HTTP routes of the extender. kube-scheduler drops the body of any answer but 200, so errors travel inside of it."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final
from urllib.parse import unquote

import orjson

from controller.claims import Claims
from controller.cluster_table import ClusterTable, FilterResult, PodKind
from controller.extender import messages
from controller.extender.bind import Binder
from controller.extender.messages import NodeLists
from controller.metrics import Metrics
from controller.preemption import Preemption
from controller.reconcile import node_requests
from controller.reconcile.node_requests import Refusals
from controller.state import ClusterState
from gpushare import names
from gpushare.errors import GpuShareError
from gpushare.identity import NodeName
from gpushare.kube.api import JsonObject
from gpushare.model.capacity import NOTHING, FreeHost
from gpushare.model.ledger import NodeLedger
from gpushare.model.request import PodRequest
from gpushare.runtime import logs, pages
from gpushare.runtime.clock import Clock
from gpushare.runtime.intake import MIB, ByteBudget, Intake, Limit, RefusedBodyError
from gpushare.runtime.pages import Request, Response, verdict
from gpushare.wire import pods as pods_wire, requests

_LOG: Final = logging.getLogger(__name__)
_LIMIT: Final = Limit(body=64 * MIB, weight=896 * MIB)
"""5,000 whole Node objects of a scheduler that does not cache them."""
_MAX_BYTES: Final = 1024 * MIB  # for all large requests together: one of the largest
_PREFIXES: Final = (names.EXTENDER_PREFIX, names.NANO_PREFIX)
WAITING: Final = frozenset(f"{prefix}/bind" for prefix in _PREFIXES)  # paths of what waits for the API server


@dataclass(frozen=True, slots=True)
class _Verb:
    name: str
    act: Callable[[bytes, Request], tuple[bytes, str]]
    """Body and request -> body of the answer, and how it went, for metrics."""
    fail: Callable[[str], bytes] = lambda _: b"[]"
    """What is wrong -> body of the answer; an empty list of scores has no place for it."""


class NotReadyError(GpuShareError):
    pass


@dataclass(kw_only=True, eq=False)
class Extender:
    """Answers requests. Safe for use by many threads."""

    state: ClusterState
    table: ClusterTable
    binder: Binder
    preemption: Preemption
    metrics: Metrics
    refusals: Refusals
    claims: Claims | None = None
    clock: Clock
    unready: Callable[[], str]  # why the extender must not be asked; empty if it may
    version: str

    def __post_init__(self) -> None:
        self._lists = NodeLists()
        self._intake = Intake(budget=ByteBudget(_MAX_BYTES))
        verbs = {
            "filter": _Verb("filter", self._filter, messages.filter_error),
            "preempt": _Verb("preempt", self._preempt, _no_victims),
            "bind": _Verb("bind", self._bind, messages.bind_result),
        }
        prioritize = _Verb("prioritize", self._prioritize)
        ours, nanos = _PREFIXES
        self._verbs: Mapping[str, _Verb] = {
            **{f"{prefix}/{name}": verb for prefix in _PREFIXES for name, verb in verbs.items()},
            f"{ours}/prioritize": prioritize,
            f"{nanos}/priorities": prioritize,
            f"{ours}/{names.OTHERS_VERB}": _Verb(names.OTHERS_VERB, self._prioritize_others),
        }
        self._pages: Mapping[str, Callable[[], Response]] = {
            f"{ours}/inspect": self._inspect,
            "/healthz": lambda: verdict(""),
            "/readyz": lambda: verdict(self.unready()),
            "/metrics": self.metrics.page,
            "/version": lambda: Response(200, f"{self.version}\n".encode(), pages.TEXT),
        }

    def handle(self, request: Request) -> Response:
        path = request.path
        if (verb := self._verbs.get(path)) is not None:
            is_post = request.method == "POST"
            return self._answer(verb, request) if is_post else Response(405, b"only POST is allowed here\n", pages.TEXT)
        node = path.removeprefix(f"{names.EXTENDER_PREFIX}/inspect/")
        if node != path:
            return pages.answer({path: lambda: self._inspect(NodeName(unquote(node)))}, request)
        return pages.answer(self._pages, request)

    def _inspect(self, node: NodeName | None = None) -> Response:
        known = self.state.index.snapshot().ledgers
        ledgers = {name: ledger for name, ledger in known.items() if isinstance(ledger, NodeLedger)}
        report = messages.inspected(ledgers, node)
        if reason := self.unready():
            report["error"] = reason
        return Response(200, orjson.dumps(report))

    def _answer(self, verb: "_Verb", request: Request) -> Response:
        """Do a verb; whatever goes wrong becomes an answer that kube-scheduler reads."""
        started = self.clock.monotonic()
        try:
            with self._intake.body(request.body, request.length, _LIMIT, busy=request.busy) as received:
                body, outcome = verb.act(received, request)
        except RefusedBodyError as error:
            body, outcome = verb.fail(f"the body: {error}"), "busy" if error.busy else "invalid"
        except NotReadyError as error:
            body, outcome = verb.fail(str(error)), "not-ready"
        except GpuShareError as error:
            body, outcome = verb.fail(str(error)), "invalid"
        except Exception as error:  # noqa: BLE001 - the edge of a request: the scheduler must get an answer that it reads
            logs.event(_LOG, "request failed", level=logging.ERROR, exc_info=True, verb=verb.name)
            body, outcome = verb.fail(f"gpushare controller: internal error: {type(error).__name__}"), "internal-error"
        self.metrics.answered(verb.name, outcome, self.clock.monotonic() - started)
        # kube-scheduler keeps its connection for as long as it is answered, and would ask this replica forever.
        return Response(200, body, close=bool(self.unready()))

    def _filter(self, body: bytes, _: Request) -> tuple[bytes, str]:
        args = messages.node_args(body, self._lists)
        request = self._request(args.pod)
        if request is None:
            return messages.filter_result(FilterResult(fits=args.names), args, self._lists), "no-gpu"
        if request.pod.namespace == names.PLACEHOLDERS:
            never = FilterResult(fits=(), failed=dict.fromkeys(args.names, node_requests.REFUSED))
            return messages.filter_result(never, args, self._lists), "no-fit"
        result = self.table.filter(request.shape, args.names, request.pod.uid)
        self.refusals.note(request.pod, args.names, fits=bool(result.fits))
        self.metrics.filtered(fits=len(result.fits), failed=len(result.failed), unresolvable=len(result.unresolvable))
        return messages.filter_result(result, args, self._lists), "fits" if result.fits else "no-fit"

    def _prioritize(self, body: bytes, _: Request) -> tuple[bytes, str]:
        args = messages.node_args(body, self._lists)
        request = self._request(args.pod)
        if request is None:
            return b"[]", "no-gpu"
        kind = PodKind(request.shape, FreeHost.of(request))
        return args.names.priorities(self.table.grades(kind, args.names, request.pod.uid)), "scored"

    def _prioritize_others(self, body: bytes, _: Request) -> tuple[bytes, str]:
        """Where a pod without GPUs takes the least from pods with GPUs: on any node without, else on the best one.

        For a pod with ResourceClaims, where these fill GPUs that are in use.
        """
        args = messages.node_args(body, self._lists)
        if pods_wire.needs_gpu(args.pod, self.state.resource_config):
            return b"[]", "gpu"
        self._check_ready()
        shape = self.claims.shape(pods_wire.ref(args.pod)) if self.claims is not None else None
        if self.claims is not None and shape is not None:
            grades = self.claims.table.grades(PodKind(shape, NOTHING), args.names)
            return args.names.priorities(grades), "claims"
        kind = PodKind(None, pods_wire.host_requests(args.pod))
        return args.names.priorities(self.table.grades(kind, args.names)), "scored"

    def _preempt(self, body: bytes, _: Request) -> tuple[bytes, str]:
        args = messages.preempt_args(body)
        request = self._request(args.pod)
        victims = self.preemption.decide(args, request)
        return messages.preempt_result(victims), "no-gpu" if request is None else "nodes" if victims else "no-nodes"

    def _bind(self, body: bytes, request: Request) -> tuple[bytes, str]:
        args = messages.bind_args(body)
        self._check_ready()
        answer = self.binder.bind(args, received=request.received)
        return messages.bind_result(answer.error), answer.outcome.value

    def _request(self, pod: JsonObject) -> PodRequest | None:
        """What a pod asks for. A pod that asks for nothing never depends on this replica's state."""
        state = self.state
        if not pods_wire.needs_gpu(pod, state.resource_config):
            return None
        request = requests.of_pod(pod, state.resource_config)
        self._check_ready()
        return request and replace(request, shape=state.index.resolve(request.shape, request.labels, request.pod))

    def _check_ready(self) -> None:
        if reason := self.unready():
            raise NotReadyError(reason)


def _no_victims(error: str) -> bytes:
    """An answer that evicts no one. It has no place for a reason."""
    logs.event(_LOG, "preempt failed", level=logging.WARNING, error=error)
    return messages.preempt_result({})
