"""The leader's chores: resolve what is in doubt, care for waiting and bypassed pods, report, audit the ledger."""

import itertools
import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from controller.index import Index
from controller.node_verdicts import NodeVerdicts
from controller.reconcile import advice, in_doubt_bindings
from controller.reconcile.bypassed_pods import BypassedPods
from controller.reconcile.deliver import LateBinder
from controller.reconcile.node_requests import Refusals
from controller.reconcile.overridden import OverriddenPods
from controller.reconcile.waiting import WaitingPods
from controller.reconcile.writer import Writer
from controller.state import ClusterState
from gpushare.cluster import cordons, node_ledger, node_records, world
from gpushare.cluster.groups import LabelIndex
from gpushare.cluster.node_records import NodeRecord
from gpushare.cluster.pod_records import Bound
from gpushare.identity import NodeName, PodRef
from gpushare.kube.api import KubeApi
from gpushare.model.allocation import Allocation
from gpushare.runtime import logs
from gpushare.runtime.clock import Clock

_LOG: Final = logging.getLogger(__name__)
TICK_S: Final = 1.0
AUDIT_S: Final = 60.0
MAX_REPORTS: Final = 20  # a tick


@dataclass(kw_only=True)
class Reconciler:
    """Runs in one thread, on the leader only."""

    api: KubeApi
    state: ClusterState
    node_verdicts: NodeVerdicts
    """Not the scheduler's."""
    clock: Clock
    leading: Callable[[], bool]
    """Whether a chore may begin or go on, at this very moment."""
    refusals: Refusals
    bind_s: float = 2.0
    """Deadline of a patch that binds a pod late, as for a Binding."""
    others: Sequence[Callable[[], None]] = ()
    """Further chores, which do not concern pods."""
    audit_differences: int = 0
    """Found by the last check of the ledger."""
    bypassed: BypassedPods = field(init=False)
    _writer: Writer = field(init=False)
    waiting: WaitingPods = field(init=False)
    _overridden: OverriddenPods = field(init=False)
    _reported: set[PodRef] = field(default_factory=set)
    _unknown: dict[NodeName, str] = field(default_factory=dict)
    """GPUs that no one has and that were complained about."""
    _audited: float = float("-inf")

    def __post_init__(self) -> None:
        api, state, clock = self.api, self.state, self.clock
        self._writer = Writer(api=api, clock=clock, leading=self.leading)
        self.waiting = WaitingPods(
            writer=self._writer,
            state=state,
            node_verdicts=self.node_verdicts,
            clock=clock,
            refusals=self.refusals,
        )
        self._overridden = OverriddenPods(writer=self._writer, state=state, clock=clock)
        binder = LateBinder(api=api, state=state, clock=clock, leading=self.leading, deadline_s=self.bind_s)
        self.bypassed = BypassedPods(writer=self._writer, binder=binder, state=state, clock=clock)

    def run(self, stop: threading.Event) -> None:
        """Until `stop` is set."""
        while not self.clock.wait(stop, TICK_S):
            try:
                self.tick()
            except Exception:  # noqa: BLE001 - the top of a loop: one pod must not end the care for all
                logs.event(_LOG, "reconcile failed", level=logging.ERROR, exc_info=True)

    def tick(self) -> None:
        """All chores once."""
        in_doubt_bindings.resolve(api=self.api, state=self.state, clock=self.clock, leading=self.leading)
        self.bypassed.tick()
        self.waiting.tick()
        self._overridden.tick()
        self._unreadable()
        self._unknown_gpus()
        for chore in self.others:
            chore()
        now = self.clock.monotonic()
        if now - self._audited >= AUDIT_S:
            self._audited = now
            self._audit()

    def _unreadable(self) -> None:
        problems = self.state.index.snapshot().problems
        self._reported &= problems.keys()
        for pod in list(problems.keys() - self._reported)[:MAX_REPORTS]:
            self._reported.add(pod)
            problem = problems[pod]
            why, counted = problem.why, problem.counted
            logs.event(_LOG, "allocation unreadable", level=logging.ERROR, pod=str(pod), counted=counted, error=why)
            message = (
                f"its allocation cannot be read and is counted from its other annotations: {why}"
                if counted
                else f"what this pod holds cannot be read, so its node takes no new pods: {why}; delete it, or"
                " install the version of gpushare that bound it"
            )
            self._writer.warn(pod, advice.REASON_UNREADABLE, message)

    def _unknown_gpus(self) -> None:
        """Nodes may be known later than what is said of them, so this is no business of the watches."""
        snapshot = self.state.index.snapshot()
        unknown = {record.name: ", ".join(numbers) for record in snapshot.nodes if (numbers := _unknown_gpus(record))}
        for node, gpus in unknown.items():
            if self._unknown.get(node) != gpus:
                logs.event(_LOG, "no such GPUs", level=logging.WARNING, node=node, gpus=gpus)
        self._unknown = unknown

    def _audit(self) -> None:
        differences = audit(self.state.index)
        self.audit_differences = len(differences)
        for line in differences[:10]:
            logs.event(_LOG, "ledger differs", level=logging.ERROR, difference=line)


def audit(index: Index) -> list[str]:
    """Between the ledgers and counts of labels as they are kept and as computed afresh: no difference, ever."""
    snapshot, labels = index.snapshot_with_labels()
    bound: dict[NodeName, list[Bound]] = {}
    for pod in snapshot.pods:
        if isinstance(pod, Bound):
            bound.setdefault(pod.node, []).append(pod)
    reserved: dict[NodeName, list[Allocation]] = {}
    for allocation in snapshot.reserved:
        reserved.setdefault(allocation.node, []).append(allocation)
    expected = {
        node.name: node_ledger.of_node(
            node, bound.get(node.name, ()), reserved.get(node.name, ()), index.resource_config.unit
        )[0]
        for node in snapshot.nodes
    }
    holding = ((pod.ref.namespace, pod.labels) for pods in bound.values() for pod in pods if pod.holds)
    chosen = ((allocation.pod.namespace, allocation.labels) for allocation in snapshot.chosen)
    counted = LabelIndex(itertools.chain(holding, chosen)).counts()
    wrong = [name for name in sorted(counted.keys() | labels.keys()) if counted.get(name) != labels.get(name)]
    return [
        *world.differences(expected, snapshot.ledgers),
        *(f"namespace {name}: disagree about the labels of pods that hold GPUs" for name in wrong),
    ]


def _unknown_gpus(record: NodeRecord) -> list[str]:
    """GPUs of a node that somebody has cordoned, or called unhealthy, and that it does not have."""
    if record.inventory is None or not (record.cordon or record.unhealthy):
        return []
    known = {number for gpu in record.inventory.gpus for number in cordons.numbers(gpu)}
    return [*node_records.unknown_gpus(record), *(str(index) for index in sorted(record.unhealthy - known))]
