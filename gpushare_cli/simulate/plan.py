"""Places pods one after the other, as webhook, kube-scheduler and controller would do. Pure.

The decision about a node is the controller's own (`cluster.node_ledger.verdict`); of the nodes with room the
one that costs least wins, and among equal ones the first name.
"""

import heapq
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from gpushare.cluster import groups, node_ledger
from gpushare.cluster.node_ledger import LedgerOrRefused
from gpushare.cluster.verdicts import Answers, Changes, ShapeCache
from gpushare.identity import NodeName, PodRef
from gpushare.model.allocation import Allocation, Grant
from gpushare.model.ledger import NodeLedger
from gpushare.model.request import PodRequest, Policy, RequestShape
from gpushare.model.verdict import Placed, RefusalReason, Refused, Verdict
from gpushare.placement import ranking
from gpushare.placement.policies import Rankings
from gpushare_cli import answers, schedulable
from gpushare_cli.answers import Answer
from gpushare_cli.world import World


class Outcome(Enum):
    """What becomes of a pod."""

    PLACED = "Placed"
    WAITS = "Waits"
    """No node takes it."""
    REFUSED = "Refused"
    """The webhook does not let it be created."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """A pod that is to be placed."""

    ref: PodRef
    value: Mapping[str, Any]
    request: PodRequest | None
    """None if `problem` says why it is not placed anywhere."""
    outcome: Outcome = Outcome.WAITS
    """What a problem means."""
    problem: str = ""
    of: str = ""
    """The workload that makes it; empty for a pod of its own."""
    only: NodeName | None = None
    """The only node that comes into question."""
    bound: bool = False
    """It is on that node already and was given no GPU yet, so Kubernetes has nothing more to say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What becomes of one pod."""

    pod: Pod
    outcome: Outcome
    node: NodeName | None = None
    grants: tuple[Grant, ...] = ()
    answers: tuple[Answer, ...] = ()
    """For a pod that no node takes: all nodes that came into question, those that come closest first."""

    @property
    def why(self) -> str:
        """Why it is on no node."""
        if self.outcome is Outcome.PLACED:
            return ""
        return self.pod.problem or answers.summary(self.answers)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What would go where, and the ledger afterwards."""

    rows: tuple[Row, ...]
    ledgers: Mapping[NodeName, LedgerOrRefused]


def make(world: World, pods: Iterable[Pod], policy: Policy) -> Plan:
    """Place the pods in their order; the policy is of those that name none."""
    ledgers = _Ledgers(world, policy)
    rows = tuple(ledgers.add(pod) for pod in pods)
    return Plan(rows=rows, ledgers=ledgers.ledgers)


class _Ledgers:
    """The ledgers of all nodes while pods are being placed."""

    def __init__(self, world: World, policy: Policy) -> None:
        self.ledgers: dict[NodeName, LedgerOrRefused] = {name: node.ledger for name, node in world.nodes.items()}
        self._facts = {name: node.facts for name, node in world.nodes.items()}
        self._requested = {name: dict(node.requested) for name, node in world.nodes.items()}
        self._labels = {namespace: list(labels) for namespace, labels in world.holders.items()}
        self._changes: list[NodeName] = []
        self._rankings = Rankings(policy)
        self._cache = ShapeCache(lambda shape: Answers(lambda ledger: self._judged(shape, ledger)))
        self._failed: tuple[object, tuple[Answer, ...]] = (None, ())

    def add(self, pod: Pod) -> Row:
        """Place one pod, if it can be."""
        if pod.request is None:
            return Row(pod=pod, outcome=pod.outcome)
        shape = groups.resolved(
            pod.request.shape, pod.request.labels, lambda namespace: self._labels.get(namespace, ())
        )
        judged = self._verdicts(shape)
        verdicts = {name: verdict for name, (verdict, _) in judged.items()}
        costs = {name: cost for name, (_, cost) in judged.items()}
        # Replicas that find no room get the answers of the first, as long as nothing has changed.
        key = (pod.of, pod.only, shape, len(self._changes))
        if pod.of and self._failed[0] == key:
            return Row(pod=pod, outcome=Outcome.WAITS, answers=self._failed[1])
        meant = [pod.only] if pod.only else list(verdicts)
        best = self._best(pod, {name: costs[name] for name in meant if name in costs}, verdicts)
        if best is None:
            self._failed = (key, self._answers(pod, meant, verdicts))
            return Row(pod=pod, outcome=Outcome.WAITS, answers=self._failed[1])
        name, placed = best
        self._hold(pod, name, placed)
        return Row(pod=pod, outcome=Outcome.PLACED, node=name, grants=placed.grants)

    def _judged(self, shape: RequestShape, ledger: LedgerOrRefused) -> tuple[Verdict, int]:
        """Of one node, with what it costs the pod."""
        verdict = node_ledger.verdict(shape, ledger, self._rankings)
        if isinstance(verdict, Refused) or isinstance(ledger, Refused):
            return verdict, 0
        return verdict, ranking.cost_of(verdict.grants, ledger, self._rankings.of(shape.policy))

    def _best(
        self, pod: Pod, costs: Mapping[NodeName, int], verdicts: Mapping[NodeName, Verdict]
    ) -> tuple[NodeName, Placed] | None:
        ranked = [(cost, name) for name, cost in costs.items() if isinstance(verdicts[name], Placed)]
        heapq.heapify(ranked)
        while ranked:
            _, name = heapq.heappop(ranked)
            verdict = verdicts[name]
            if isinstance(verdict, Placed) and self._answer(pod, name, verdict).fits:
                return name, verdict
        return None

    def _answer(self, pod: Pod, name: NodeName, verdict: Verdict) -> Answer:
        if pod.bound or name not in self._facts:
            return Answer(node=name, verdict=verdict)
        return answers.of_node(pod.value, self._facts[name], self._requested[name], verdict)

    def _answers(self, pod: Pod, meant: Iterable[NodeName], verdicts: Mapping[NodeName, Verdict]) -> tuple[Answer, ...]:
        found = [self._answer(pod, name, verdicts.get(name) or _unknown(name)) for name in meant]
        return tuple(answers.closest_first(found, self.ledgers))

    def _hold(self, pod: Pod, name: NodeName, placed: Placed) -> None:
        ledger = self.ledgers[name]
        if not isinstance(ledger, NodeLedger) or pod.request is None:  # a node without a ledger places nothing
            return
        held = Allocation(pod=pod.ref, node=name, grants=placed.grants, labels=pod.request.labels)
        self.ledgers[name] = ledger.with_allocation(held)
        self._changes.append(name)
        self._labels.setdefault(pod.ref.namespace, []).append(pod.request.labels)
        if not pod.bound:
            for resource, amount in schedulable.requests(pod.value).items():
                self._requested[name][resource] = self._requested[name].get(resource, 0) + amount

    def _verdicts(self, shape: RequestShape) -> Mapping[NodeName, tuple[Verdict, int]]:
        """Of every node; only those are asked again whose ledger has changed."""
        found = self._cache.of(shape)
        changed = self._changes[found.sequence - 1 :] if found.sequence else self.ledgers
        found.note(Changes(ledgers={name: self.ledgers[name] for name in changed}, sequence=len(self._changes) + 1))
        found.refresh()
        return found.by_node


def _unknown(name: NodeName) -> Refused:
    return Refused(RefusalReason.NO_INVENTORY, f"there is no node {name} in the input", permanent=True)
