"""The leader's tick: one snapshot of the cluster, and all that is done about it, in a fixed order.

What takes a page or less is here: reservations in doubt, warnings, the summary of how nodes hand over, the label by
which the Service finds the leader, the audit.
"""

import contextlib
import itertools
import logging
import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final, TypeVar

from controller.cluster_table import ClusterTable
from controller.index import Index, Snapshot
from controller.reconcile import advice
from controller.reconcile.bypassed import BypassedPods
from controller.reconcile.node_requests import Refusals
from controller.reconcile.waiting import Waiting, WaitingPods
from controller.reconcile.writer import Writer
from controller.reservations import Reservation
from controller.state import ClusterState
from gpushare import names
from gpushare.cluster import node_ledger, node_records
from gpushare.cluster.groups import LabelIndex
from gpushare.cluster.node_records import NodeRecord
from gpushare.cluster.pod_records import Bound
from gpushare.errors import WireError
from gpushare.identity import NodeName
from gpushare.kube import api as kube
from gpushare.kube.api import KubeApi
from gpushare.model.ledger import Allocation
from gpushare.runtime import logs
from gpushare.runtime.clock import Clock
from gpushare.wire import hand_over, pods as pods_wire

_LOG: Final = logging.getLogger(__name__)
TICK_S: Final = 1.0
AUDIT_S: Final = 60.0
MAX_REPORTS: Final = 20  # a tick
MAX_READS: Final = 20  # a tick
RECENT: Final = timedelta(minutes=10)
WRITE_AGAIN_S: Final = 60.0  # in case somebody changed the summary
WRITE_RETRY_S: Final = 5.0
LABEL_AGAIN_S: Final = 5.0
K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class _Once:
    """Takes each thing that is there once, and so many a tick."""

    def __init__(self) -> None:
        self._taken: set[Hashable] = set()

    def of(self, there: Mapping[K, V]) -> dict[K, V]:
        self._taken &= there.keys()
        fresh = [key for key in there if key not in self._taken][:MAX_REPORTS]
        self._taken.update(fresh)
        return {key: there[key] for key in fresh}


@dataclass(kw_only=True)
class Reconciler:
    """Runs in one thread, on the leader only."""

    writer: Writer
    state: ClusterState
    table: ClusterTable
    refusals: Refusals
    bind_s: float = 2.0  # deadline of a patch that binds a pod late, as for a Binding
    first: Callable[[], None] = lambda: None  # at once, and before all others
    others: Sequence[Callable[[Snapshot], None]] = ()  # further chores
    audit_differences: int = 0  # found by the last check of the ledger
    bypassed: BypassedPods = field(init=False)
    waiting: WaitingPods = field(init=False)
    waiting_claims: WaitingPods | None = None
    _overridden: _Once = field(init=False, default_factory=_Once)
    _unreadable: _Once = field(init=False, default_factory=_Once)
    _unknown: logs.Changes = field(init=False, default_factory=lambda: logs.Changes(_LOG))
    _audited: float = field(init=False, default=float("-inf"))

    def __post_init__(self) -> None:
        writer, state = self.writer, self.state
        self.waiting = WaitingPods(writer=writer, state=state, table=self.table, refusals=self.refusals)
        self.bypassed = BypassedPods(writer=writer, state=state, bind_s=self.bind_s)

    @property
    def counts(self) -> Waiting:
        """Pods that wait for a node, by namespace and reason."""
        by_claims = self.waiting_claims.counts if self.waiting_claims is not None else {}
        counts = self.waiting.counts
        return {key: counts.get(key, 0) + by_claims.get(key, 0) for key in {**counts, **by_claims}}

    @property
    def recreated(self) -> int:
        """Pods since the start that were deleted for their controllers to make them again."""
        return self.bypassed.recreator.recreated + self.waiting.outdated.recreator.recreated

    def run(self, stop: threading.Event) -> None:
        self._attempt(self.first)  # kube-scheduler waits for the label
        while not self.writer.clock.wait(stop, TICK_S):
            self.tick()

    def tick(self) -> None:
        """All chores once, each with a view of the cluster that is not older than a tick."""
        self._attempt(self.first)
        self._attempt(self._resolve_in_doubt)  # it changes what is reserved
        clock, index = self.writer.clock, self.state.index
        taken, snapshot = clock.monotonic(), index.snapshot()
        for chore in (
            self.bypassed.tick,
            self.waiting.tick,
            self._warn_overridden,
            self._warn_unreadable,
            self._tell_unknown_gpus,
            *self.others,
        ):
            if clock.monotonic() - taken >= TICK_S:
                taken, snapshot = clock.monotonic(), index.snapshot()
            self._attempt(chore, snapshot)
        self._attempt(self._audit)

    def _attempt(self, chore: Callable[..., None], *args: Snapshot) -> None:
        try:
            chore(*args)
        except Exception:  # noqa: BLE001 - the top of a loop: one chore, or one pod, must not end the others
            logs.event(_LOG, "reconcile failed", level=logging.ERROR, exc_info=True)

    def _resolve_in_doubt(self) -> None:
        """End reservations whose Binding or patch no one can account for, by looking at their pods long after."""
        for known, expired in self.state.in_doubt(self.writer.clock.monotonic(), most=MAX_READS):
            if not self.writer.leading():
                return
            pod, uid, node = str(known.allocation.pod), known.allocation.pod.uid, known.allocation.node
            try:
                over = _is_over(known, expired, self.writer.api)
            except (kube.KubeError, WireError) as error:
                logs.event(_LOG, "still in doubt", level=logging.WARNING, pod=pod, node=node, error=str(error))
                if isinstance(error, kube.UnreachableError):
                    return  # each further look would wait for its whole deadline, and so would all other chores
                continue
            if over:
                self.state.end(known)
                logs.event(_LOG, "reservation ended", pod=pod, uid=uid, node=node)

    def _warn_overridden(self, snapshot: Snapshot) -> None:
        """Authors who chose devices themselves learn that it has no effect; the webhook cannot post Events."""
        # An earlier leader has told those that are older; after a change of leader no one needs all of it again.
        since = (self.writer.clock.now() - RECENT).strftime("%Y-%m-%dT%H:%M:%SZ")
        recent = {pod.ref.uid: pod for pod in snapshot.overridden if not isinstance(pod, Bound) or pod.created >= since}
        for pod in self._overridden.of(recent).values():
            self.writer.post(pod.ref, advice.REASON_OVERRIDDEN, advice.overridden(pod.overridden))

    def _warn_unreadable(self, snapshot: Snapshot) -> None:
        for pod, problem in self._unreadable.of(snapshot.problems).items():
            why, counted = problem.why, problem.counted
            logs.event(_LOG, "allocation unreadable", level=logging.ERROR, pod=str(pod), counted=counted, error=why)
            self.writer.post(pod, advice.REASON_UNREADABLE, advice.unreadable(problem))

    def _tell_unknown_gpus(self, snapshot: Snapshot) -> None:
        """Nodes may be known later than what is said of them, so this is no business of the watches."""
        unknown = {record.name: ", ".join(numbers) for record in snapshot.nodes if (numbers := _unknown_gpus(record))}
        for node, gpus in unknown.items():
            self._unknown.say("no such GPUs", node, level=logging.WARNING, node=node, gpus=gpus)
        self._unknown.keep(unknown)

    def _audit(self) -> None:
        now = self.writer.clock.monotonic()
        if now - self._audited < AUDIT_S:
            return
        self._audited = now
        differences = audit(self.state.index)
        self.audit_differences = len(differences)
        for line in differences[:10]:
            logs.event(_LOG, "ledger differs", level=logging.ERROR, difference=line)


class _Kept:
    """When something is written that is to stay as it is, and what is told while it cannot be."""

    def __init__(self, clock: Clock, name: str, effect: str, fix: str, again_s: float) -> None:
        self._clock, self._name, self._told = clock, name, {"effect": effect, "fix": fix}
        self._again_s, self._due = again_s, float("-inf")
        self._changes = logs.Changes(_LOG)
        self.is_written = False

    def is_due(self) -> bool:
        return self._clock.monotonic() >= self._due

    def attempt(self, write: Callable[[], object]) -> bool:
        """Whether it was written now; `is_written` says whether it stands."""
        try:
            write()
        except kube.NotSentError:
            self.is_written = False  # it no longer leads
        except kube.KubeError as error:
            self.is_written &= not isinstance(error, kube.NotFoundError)  # what was written stands
            self._due = self._clock.monotonic() + WRITE_RETRY_S
            self._changes.say(f"{self._name} not written", level=logging.WARNING, error=str(error), **self._told)
        else:
            self.is_written, self._due = True, self._clock.monotonic() + self._again_s
            self._changes.clear()
            return True
        return False


class HandOverSummary:
    """Says in a ConfigMap how the nodes that share hand over GPUs, for the webhook; again now and then."""

    # A node that will share counts before it has published GPUs: a pod that is created now may land there.

    def __init__(self, *, writer: Writer, namespace: str) -> None:
        self._writer, self._path = writer, hand_over.path(namespace)
        self._summary = ""  # what was written last, or is to be written when it is due
        effect = f"the webhook goes by what ConfigMap {namespace}/{names.HAND_OVER} said last"
        fix = "apply the manifests again, if it or the right to patch it is missing"
        self._kept = _Kept(writer.clock, "hand-over", effect, fix, WRITE_AGAIN_S)
        self._changes = logs.Changes(_LOG)

    def tick(self, snapshot: Snapshot) -> None:
        summary = hand_over.summary(node_records.sharing(snapshot.nodes))
        if summary == self._summary and not self._kept.is_due():
            return
        self._summary, body = summary, hand_over.data(summary)
        api, leading = self._writer.api, self._writer.leading
        if self._kept.attempt(lambda: api.patch(self._path, body, timeout_s=3.0, precondition=leading)):
            self._changes.say("hand-over summarized", hand_over=summary)


class LeaderLabel:
    """Makes the Service lead here: it selects a label that the leader has on its own pod and takes from all others.

    All replicas are ready, so that a roll-out ends; one that a frozen leader has left labelled is asked no more.
    """

    def __init__(self, *, writer: Writer, namespace: str, pod: str, timeout_s: float) -> None:
        """Args: timeout_s: of a patch, which may land so late: the same as of a Binding."""
        self._writer, self._pod, self._timeout_s = writer, pod, timeout_s
        self._pods = f"/api/v1/namespaces/{namespace}/pods"
        effect = f"Service {names.CONTROLLER_SERVICE} does not lead kube-scheduler to this replica"
        fix = f"--pod (now {pod}) and --namespace must be this pod's; it needs to list and patch pods there"
        self._kept = _Kept(writer.clock, "leader label", effect, fix, LABEL_AGAIN_S)

    @property
    def is_written(self) -> bool:
        return self._kept.is_written

    def tick(self) -> None:
        if self._kept.is_due():
            self._kept.attempt(self._write)

    def _write(self) -> None:
        """Every few seconds: the label may be removed by hand, or by the last patch of a former leader, which is late.

        Nothing is taken from others while this pod is not found. The watch cache is asked: a leader looks again soon.
        """
        selector = f"{names.LABEL_APP}={names.CONTROLLER},{names.LABEL_LEADER}"
        params = {"labelSelector": selector, "resourceVersion": "0"}
        labelled = self._writer.api.list_page(
            self._pods, params, keep=lambda pod: str(pod["metadata"]["name"]), timeout_s=self._timeout_s
        ).items
        if self._pod not in labelled:
            self._patch(self._pod, "true")
        for name in labelled:
            if name != self._pod:
                with contextlib.suppress(kube.NotFoundError):
                    self._patch(name, None)

    def _patch(self, name: str, value: str | None) -> None:
        body, leading = {"metadata": {"labels": {names.LABEL_LEADER: value}}}, self._writer.leading
        self._writer.api.patch(f"{self._pods}/{name}", body, timeout_s=self._timeout_s, precondition=leading)


def audit(index: Index) -> list[str]:
    """Between the ledgers and counts of labels as they are kept and as computed afresh: no difference, ever."""
    snapshot = index.snapshot()
    bound: dict[NodeName, list[Bound]] = {}
    for pod in snapshot.pods:
        if isinstance(pod, Bound):
            bound.setdefault(pod.node, []).append(pod)
    reserved: dict[NodeName, list[Allocation]] = {}
    for allocation in snapshot.reserved:
        reserved.setdefault(allocation.node, []).append(allocation)
    unit = index.resource_config.unit
    expected = {
        node.name: node_ledger.of_node(node, bound.get(node.name, ()), reserved.get(node.name, ()), unit)[0]
        for node in snapshot.nodes
    }
    holding = ((pod.ref.namespace, pod.labels) for pods in bound.values() for pod in pods if pod.holds)
    chosen = ((allocation.pod.namespace, allocation.labels) for allocation in snapshot.chosen)
    counted = LabelIndex(itertools.chain(holding, chosen)).counts()
    known = snapshot.labels
    wrong = [name for name in sorted(counted.keys() | known.keys()) if counted.get(name) != known.get(name)]
    return [
        *node_ledger.differences(expected, snapshot.ledgers),
        *(f"namespace {name}: disagree about the labels of pods that hold GPUs" for name in wrong),
    ]


def _unknown_gpus(record: NodeRecord) -> list[str]:
    if record.inventory is None or not (record.cordon.gpus or record.unhealthy):
        return []
    known = {number for gpu in record.inventory.gpus for number in node_records.gpu_numbers(gpu)}
    return [*node_records.unknown_gpus(record), *(str(index) for index in sorted(record.unhealthy - known))]


def _is_over(known: Reservation, expired: bool, api: KubeApi) -> bool:
    """Whether what was sent cannot still take effect. A pod that shows it is left to the watch."""
    ref = known.allocation.pod
    try:
        pod = api.get(kube.pod_path(ref.namespace, ref.name))
    except kube.NotFoundError:
        return True
    if pods_wire.ref(pod).uid != ref.uid:
        return True
    # One that bypassed is on its node in any case, and only an allocation on it tells.
    shows = names.ANNOTATION_ALLOCATION in pods_wire.annotations(pod) if known.bypassed else pods_wire.node_of(pod)
    return expired and not shows
