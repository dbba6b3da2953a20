"""Whom to evict from a node so that a pod with a higher priority fits.

kube-scheduler counts the GPU memory of a node as one sum, so its victims may be on GPUs that the pod cannot use. It
takes whom it is told instead: any pods of that node.
"""

import itertools
import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from controller.metrics import Metrics
from controller.state import ClusterState
from gpushare.cluster import budgets
from gpushare.cluster.budgets import Budget
from gpushare.cluster.pod_records import Bound
from gpushare.identity import NodeName, PodUid
from gpushare.kube.api import JsonObject
from gpushare.model.ledger import LedgerOrRefused, NodeLedger, Placed, RefusalReason, Refused
from gpushare.model.request import Affinity, PodRequest
from gpushare.placement.place import place
from gpushare.placement.policies import Policies
from gpushare.runtime import logs
from gpushare.runtime.clock import Clock

_LOG: Final = logging.getLogger(__name__)
BUDGET_S: Final = 1.5  # kube-scheduler schedules no one meanwhile; it needs one node, not the best of all
MAX_NAMED: Final = 5  # nodes in the log
MAX_LONG_SEARCHES: Final = 3  # on one node; each takes some 50 ms, and kube-scheduler waits


@dataclass(frozen=True, slots=True, kw_only=True)
class Victims:
    pods: tuple[PodUid, ...]  # the most important first: kube-scheduler compares nodes by the first
    violations: int = 0  # how many of them a PodDisruptionBudget protects


@dataclass(frozen=True, slots=True, kw_only=True)
class PreemptArgs:
    pod: JsonObject
    priority: int
    victims: Mapping[NodeName, Victims]  # whom the scheduler would evict where that makes room for all it counts


class Ruling(Enum):
    """What was decided about the scheduler's victims on a node."""

    AS_GIVEN = "as-given"  # the pod needs no GPU there, or has room: they make room for something else
    CHOSEN = "chosen"
    DROPPED = "dropped"  # no one whom the pod may evict there helps it


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    ruling: Ruling
    victims: Victims  # no one if the node is dropped


@dataclass(frozen=True, slots=True, kw_only=True)
class Preemptor:
    request: PodRequest
    priority: int
    policies: Policies = field(default_factory=Policies)


def decide(
    preemptor: Preemptor, given: Victims, ledger: LedgerOrRefused, bound: Collection[Bound], known: Sequence[Budget]
) -> Decision:
    """Of the pods that hold GPUs only those are chosen without which the pod fits and with any of which it does not.

    The scheduler has spared whom it could. So if its own victims are enough, each is needed for something, perhaps for
    processors, and all stay; it does not check again. Else no one here knows which of them it only named for the sum
    of GPU memory: of its victims those without GPUs stay, and if the others were needed too, it asks once more.

    Whom the scheduler would evict is `given`; `bound` are the pods on the node that ask for GPUs.
    """
    if isinstance(ledger, Refused):
        return _DROPPED
    if preemptor.request.pod.uid in ledger.allocations:  # chosen before, and perhaps bound already
        return as_given(given)
    trial = _Trial(preemptor, ledger)
    weaker = [pod for pod in bound if pod.priority < preemptor.priority and _holds(ledger, pod.ref.uid)]
    try:
        if trial.fits(()):
            return as_given(given)
        chosen = _choose(trial, weaker, given, known)
    except _GivenUpError:
        return _DROPPED
    if chosen is None:
        return _DROPPED
    others = [uid for uid in given.pods if not _holds(ledger, uid)]
    victims = _by_importance([*others, *(pod.ref.uid for pod in chosen)], given, {pod.ref.uid: pod for pod in bound})
    violations = _violations(chosen, given, weaker, known, others=len(others))
    return Decision(ruling=Ruling.CHOSEN, victims=Victims(pods=victims, violations=violations))


def as_given(given: Victims) -> Decision:
    """The scheduler's victims, whatever they hold. It takes no node without any."""
    return Decision(ruling=Ruling.AS_GIVEN, victims=given) if given.pods else _DROPPED


_DROPPED: Final = Decision(ruling=Ruling.DROPPED, victims=Victims(pods=()))


class _GivenUpError(Exception):
    """Too many searches were too long; no one is evicted on a guess."""


@dataclass(slots=True)
class _Trial:
    """The node's ledger without some of its pods."""

    preemptor: Preemptor
    ledger: NodeLedger
    long: int = 0  # searches that were too long

    def fits(self, gone: Collection[PodUid]) -> bool:
        rest = (held for uid, held in self.ledger.allocations.items() if uid not in gone)
        ledger = NodeLedger.of(self.ledger.inventory, rest)
        verdict = place(self.preemptor.request.shape, ledger, self.preemptor.policies)
        if isinstance(verdict, Refused) and verdict.reason is RefusalReason.SEARCH_TOO_LONG:
            self.long += 1
            if self.long >= MAX_LONG_SEARCHES:
                raise _GivenUpError
        return isinstance(verdict, Placed)


def _choose(trial: _Trial, weaker: Sequence[Bound], given: Victims, known: Sequence[Budget]) -> Sequence[Bound] | None:
    """Evict all, then take back whom the pod does not need gone; None if it does not fit even so.

    The scheduler's own choice, as far as it holds GPUs, if it is enough and no one else is better.
    """
    protected = budgets.broken(_likeliest_first(weaker, given), known)
    # Who is going anyway costs nothing; the scheduler's own choice is best for what it counts and this does not.
    order = sorted(
        weaker, key=lambda pod: (pod.deleting, pod.ref.uid in given.pods, pod.ref.uid not in protected, _rank(pod))
    )
    gone = _start(trial, order)
    if gone is None:
        return None
    changed = True
    while changed:  # a second time only if the pod wants some of them beside it: else each is judged for good
        changed = False
        for pod in order:
            if pod.ref.uid in gone and trial.fits(rest := gone - {pod.ref.uid}):
                gone, changed = rest, True
    asked = {pod.ref.uid for pod in order if pod.ref.uid in given.pods}
    if gone <= asked and trial.fits(asked):
        gone = frozenset(asked)
    return [pod for pod in order if pod.ref.uid in gone]


def _start(trial: _Trial, order: Sequence[Bound]) -> frozenset[PodUid] | None:
    """Whom to remove so that the preemptor fits, as many as possible; None if nothing helps.

    It may want some of the very pods that could be evicted beside it. Then those stay, or at least one of them.
    """
    everybody = frozenset(pod.ref.uid for pod in order)
    beside = [pod.ref.uid for pod in order if _wanted(trial.preemptor.request.shape.affinity, pod)]
    tries = [everybody]
    if beside:
        tries += [everybody.difference(beside), *(everybody - {uid} for uid in beside)]
    return next((gone for gone in tries if trial.fits(gone)), None)


def _wanted(affinity: Affinity | None, pod: Bound) -> bool:
    if affinity is None or affinity.same is None or affinity.first:
        return False
    return pod.ref.namespace == affinity.namespace and affinity.same.matches(pod.labels)


def _likeliest_first(pods: Iterable[Bound], given: Victims) -> Sequence[Bound]:
    """In the order in which they would be evicted, so that budgets are used up by those that are likely to go."""
    return sorted(pods, key=lambda pod: (pod.ref.uid in given.pods, _rank(pod)), reverse=True)


def _rank(pod: Bound) -> tuple[int, str, str]:
    """The most important first, as kube-scheduler has it: high priority, then age."""
    return -pod.priority, pod.created, pod.ref.uid


def _by_importance(pods: Sequence[PodUid], given: Victims, known: Mapping[PodUid, Bound]) -> tuple[PodUid, ...]:
    """The most important first. The scheduler's list is sorted, so who is unknown counts as much as its neighbour."""
    ranks = {uid: _rank(pod) for uid, pod in known.items()}
    last = next((ranks[uid] for uid in given.pods if uid in ranks), None)
    for uid in given.pods:
        last = ranks.get(uid, last)
        if last is not None:
            ranks[uid] = last
    return tuple(sorted(pods, key=lambda uid: (uid not in ranks, ranks.get(uid, ()))))


def _violations(
    chosen: Sequence[Bound], given: Victims, weaker: Sequence[Bound], known: Sequence[Budget], *, others: int
) -> int:
    """Budgets broken by the choice, and by the scheduler's victims without GPUs, of which only it knows."""
    ours = budgets.broken(_likeliest_first(chosen, given), known)
    asked = [pod for pod in weaker if pod.ref.uid in given.pods]
    theirs = given.violations - len(budgets.broken(_likeliest_first(asked, given), known))
    return len(ours) + min(max(theirs, 0), others)


def _holds(ledger: NodeLedger, pod: PodUid) -> bool:
    held = ledger.allocations.get(pod)
    return held is not None and bool(held.grants)


@dataclass(frozen=True, slots=True, kw_only=True)
class Preemption:
    """Answers what to evict. It evicts no one itself. Safe for use by many threads."""

    state: ClusterState
    budgets: Callable[[], Sequence[Budget]]
    clock: Clock
    metrics: Metrics

    def decide(self, args: PreemptArgs, request: PodRequest | None) -> Mapping[NodeName, Victims]:
        """Whom to evict from each node, for a pod that asks for GPUs or, without a request, for none.

        Nodes on which that does not help, or for which there is no time, are left out.
        """
        deadline, known = self.clock.monotonic() + BUDGET_S, self.budgets()
        preemptor = None
        if request is not None:
            preemptor = Preemptor(request=request, priority=args.priority, policies=self.state.policies)
        decisions: dict[NodeName, Decision] = {}
        for node, given in args.victims.items():
            if preemptor is None:
                decisions[node] = as_given(given)
            elif self.clock.monotonic() < deadline:
                ledger, bound = self.state.index.occupants(node)
                decisions[node] = decide(preemptor, given, ledger, bound, known)
        self._tell(args, decisions)
        return {node: decision.victims for node, decision in decisions.items() if decision.ruling is not Ruling.DROPPED}

    def _tell(self, args: PreemptArgs, decisions: Mapping[NodeName, Decision]) -> None:
        nodes = Counter(decision.ruling.value for decision in decisions.values())
        nodes["late"] = len(args.victims) - len(decisions)
        victims: Counter[str] = Counter()
        for node, decision in decisions.items():
            before, after = set(args.victims[node].pods), set(decision.victims.pods)
            victims.update(kept=len(before & after), dropped=len(before - after), added=len(after - before))
        nodes, victims = +nodes, +victims  # without zeros
        self.metrics.preempted(nodes=nodes, victims=victims)
        chosen = (
            f"{node}: {', '.join(decision.victims.pods)}"
            for node, decision in decisions.items()
            if decision.ruling is Ruling.CHOSEN
        )
        metadata = args.pod["metadata"]
        logs.event(
            _LOG,
            "preempt",
            pod=f"{metadata.get('namespace')}/{metadata.get('name')}",
            uid=str(metadata.get("uid")),
            priority=args.priority,
            nodes=dict(nodes),
            victims=dict(victims),
            chosen="; ".join(itertools.islice(chosen, MAX_NAMED)),
        )
