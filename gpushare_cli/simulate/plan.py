"""Pods of a simulation, and what becomes of them. Pure.

The node is kube-scheduler's choice (`gpushare.simulation`); whether and where a pod fits on GPUs is the controller's.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, Final

from gpushare.cluster.node_ledger import LedgerOrRefused
from gpushare.identity import NodeName, PodRef
from gpushare.model.allocation import Grant
from gpushare.model.capacity import NodeCapacity
from gpushare.model.request import DEFAULT_POLICY, PodRequest, Policy
from gpushare.simulation import timeline
from gpushare.simulation.cluster import Nodes
from gpushare.simulation.engine import Extender, Scheduler
from gpushare.simulation.kinds import Kind
from gpushare.simulation.scores import Rules
from gpushare.simulation.timeline import Arrival, Came, Ended, Event
from gpushare_cli import world
from gpushare_cli.simulate import company, fleet
from gpushare_cli.simulate.curve import Curve
from gpushare_cli.simulate.fleet import Fleet
from gpushare_cli.simulate.hosts import Hosts
from gpushare_cli.simulate.kinds import Kinds
from gpushare_cli.simulate.neighbours import Neighbours
from gpushare_cli.simulate.refusals import Refusals
from gpushare_cli.world import NodeAnswer, World

_UNKNOWN: Final = -1
"""Place of a node that is not there."""
_TOLD_EVERY: Final = 5_000
"""Pods."""


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
    """None if it asks for no GPU, or `problem` says why it is not placed anywhere."""
    outcome: Outcome = Outcome.WAITS
    """What a problem means."""
    problem: str = ""
    of: str = ""
    """The workload that makes it; empty for a pod of its own."""
    only: NodeName | None = None
    """The only node that comes into question."""
    bound: bool = False
    """It is on that node already and was given no GPU yet, so Kubernetes has nothing more to say."""
    replicas_of: Hashable = None
    """The owner whose pods kube-scheduler keeps apart, if it does not say so itself."""
    created: str = ""
    """Time of its creation, if that is known."""
    at_s: float = 0.0
    """When it comes, if pods end."""
    lasts_s: float | None = None
    """From its binding on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What becomes of one pod."""

    pod: Pod
    outcome: Outcome
    node: NodeName | None = None
    grants: tuple[Grant, ...] = ()
    answers: tuple[NodeAnswer, ...] = ()
    """For a pod that no node takes: all nodes that came into question, those that come closest first."""

    @property
    def why(self) -> str:
        """Why it is on no node."""
        if self.outcome is Outcome.PLACED:
            return ""
        return self.pod.problem or world.summary(self.answers)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What would go where, and the cluster afterwards."""

    rows: tuple[Row, ...]
    ledgers: Mapping[NodeName, LedgerOrRefused]
    rooms: tuple[NodeCapacity, ...]
    kinds: Mapping[Kind, int]
    """How many pods of each came."""
    curve: Curve
    placed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """How pods are placed."""

    policy: Policy = DEFAULT_POLICY
    """Of pods that name none."""
    rules: Rules
    extender: Extender


class Cluster:
    """Nodes, and pods that are to be placed on them in several ways."""

    def __init__(self, world: World, hosts: Hosts, pods: Sequence[Pod]) -> None:
        """The nodes as they are before every plan."""
        self._world, self._hosts = world, hosts
        self.pods = list(pods)
        self._places = {name: i for i, name in enumerate(world.nodes)}
        values = [*(pod.value for pod in self.pods), *(value for value, _ in hosts.there)]
        self._sociable = any(map(company.has_terms, values))
        kinds = Kinds([node.facts for node in world.nodes.values()], sociable=self._sociable)
        self._kinds = [_kind(pod, kinds) for pod in self.pods]

    def plan(
        self,
        way: Way,
        order: Iterable[int],
        pick: Callable[[int], int],
        *,
        chance: Callable[[int], int] | None = None,
        details: bool = True,
        told: Callable[[int], None] = lambda _: None,
    ) -> Plan:
        """Place the pods, by their numbers, in this order.

        Args:
            way: how.
            order: the numbers of all pods.
            pick: a number below the given one, for nodes with equal scores.
            chance: the same, for when the controller looks at the cluster; None: when a look is due.
            details: also why pods are on no node.
            told: is given how many pods have come, now and then.
        """
        gpus = self._fleet(way.policy, chance)
        scheduler = Scheduler(self._nodes(way.rules), gpus, rules=way.rules, extender=way.extender, pick=pick)
        refusals = Refusals(self._world, gpus, scheduler)
        rows: dict[int, Row] = {}
        counts: dict[Kind, int] = {}
        curve = Curve(gpus.rooms, ends=any(pod.lasts_s is not None for pod in self.pods))
        arrivals = (arrival for number in _counted(order, told) if (arrival := self._arrival(number)) is not None)
        for event in timeline.run(scheduler, arrivals):
            number, kind = event.arrival.number, event.arrival.kind
            curve.note(event, gpus.free_mib)
            if isinstance(event, Came):
                counts[kind] = counts.get(kind, 0) + 1
            if not isinstance(event, Ended):
                rows[number] = self._row(event, gpus, refusals, details=details)
        found = [rows.get(number) or Row(pod=pod, outcome=pod.outcome) for number, pod in enumerate(self.pods)]
        return Plan(
            rows=tuple(found),
            ledgers=dict(zip(gpus.names, gpus.ledgers, strict=True)),
            rooms=tuple(gpus.rooms),
            kinds=counts,
            curve=curve,
            placed=sum(row.outcome is Outcome.PLACED for row in found),
        )

    def _fleet(self, policy: Policy, chance: Callable[[int], int] | None) -> Fleet:
        return Fleet(
            self._world,
            self._hosts.rooms,
            self._hosts.left,
            policy,
            known=self._hosts.known,
            pods=lambda number: (self.pods[number].ref, _labels(self.pods[number])),
            chance=chance,
        )

    def _nodes(self, rules: Rules) -> Nodes:
        if not self._sociable:
            return self._hosts.nodes
        facts = [node.facts for node in self._world.nodes.values()]
        there = [(company.company(value, facts), place) for value, place in self._hosts.there]
        return replace(self._hosts.nodes, neighbours=Neighbours([one.labels for one in facts], there, rules))

    def _arrival(self, number: int) -> Arrival | None:
        pod, kind = self.pods[number], self._kinds[number]
        only = None if pod.only is None else self._places.get(pod.only, _UNKNOWN)
        if kind is None:
            return None
        return Arrival(kind=kind, number=number, at_s=pod.at_s, lasts_s=pod.lasts_s, only=only)

    def _row(self, event: Event, gpus: Fleet, refusals: Refusals, *, details: bool) -> Row:
        pod = self.pods[event.arrival.number]
        if isinstance(event, Ended) or event.bound is None:
            meant = [pod.only] if pod.only is not None else gpus.names
            told = refusals.of(pod.value, event.arrival.kind, meant, bound=pod.bound) if details else ()
            return Row(pod=pod, outcome=Outcome.WAITS, answers=told)
        granted = fleet.grants(event.bound.taken)
        return Row(pod=pod, outcome=Outcome.PLACED, node=gpus.names[event.bound.node], grants=granted)


def _counted(order: Iterable[int], told: Callable[[int], None]) -> Iterator[int]:
    for count, number in enumerate(order):
        if count and count % _TOLD_EVERY == 0:
            told(count)
        yield number


def _kind(pod: Pod, kinds: Kinds) -> Kind | None:
    """None for a pod that is not placed anywhere."""
    if pod.problem:
        return None
    if pod.bound:
        return kinds.bound(pod.request) if pod.request is not None else None
    return kinds.of(pod.value, pod.request, pod.replicas_of)


def _labels(pod: Pod) -> Mapping[str, str]:
    return pod.request.labels if pod.request is not None else {}
