"""Why a pod of a simulation is on no node, node by node."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from gpushare.cluster import world as cluster_world
from gpushare.identity import NodeName
from gpushare.model.allocation import Placed, RefusalReason, Refused
from gpushare.simulation.engine import Scheduler
from gpushare.simulation.kinds import Kind
from gpushare.simulation.scores import Host, Load
from gpushare_cli import schedulable, world
from gpushare_cli.simulate.fleet import Fleet
from gpushare_cli.world import NodeAnswer, World

_MOST: Final = 500_000
"""Answers of nodes; from then on a pod that finds no room is told what the last one of its kind was told."""


class Refusals:
    """Asks the nodes; what one pod was told is kept for others of its kind."""

    def __init__(self, world: World, gpus: Fleet, scheduler: Scheduler) -> None:
        self._facts = {name: node.facts for name, node in world.nodes.items()}
        self._places = {name: i for i, name in enumerate(world.nodes)}
        self._gpus, self._scheduler = gpus, scheduler
        self._told: dict[tuple[Kind, tuple[NodeName, ...]], tuple[int, tuple[NodeAnswer, ...]]] = {}
        self._left = _MOST

    def of(
        self, pod: Mapping[str, Any], kind: Kind, meant: Sequence[NodeName], *, bound: bool
    ) -> tuple[NodeAnswer, ...]:
        """What the nodes that come into question say to a pod, those that come closest first."""
        key = kind, tuple(meant) if len(meant) == 1 else ()
        known = self._told.get(key)
        if known is not None and (known[0] == self._scheduler.changes or self._left <= 0):
            return known[1]
        self._left -= len(meant)
        found = [self._answer(pod, kind, name, bound=bound) for name in meant]
        ledgers = dict(zip(self._gpus.names, self._gpus.ledgers, strict=True))
        told = tuple(world.closest_first(found, ledgers))
        self._told[key] = self._scheduler.changes, told
        return told

    def _answer(self, pod: Mapping[str, Any], kind: Kind, name: NodeName, *, bound: bool) -> NodeAnswer:
        place = self._places.get(name)
        if place is None:
            unknown = Refused(RefusalReason.NO_INVENTORY, f"there is no node {name} in the input", permanent=True)
            return NodeAnswer(node=name, verdict=unknown)
        verdict = self._gpus.verdict(kind, place)
        if bound:
            return NodeAnswer(node=name, verdict=verdict)
        facts, counted = self._facts[name], schedulable.requests(pod) if isinstance(verdict, Placed) else {}
        sums = cluster_world.short(counted, facts.allocatable, self._gpus.requested[place])
        told = NodeAnswer(node=name, verdict=verdict, blockers=(*schedulable.misplaced(pod, facts), *sums))
        short = host_short(kind.load, self._scheduler.used[place], self._scheduler.hosts[place])
        if not self._scheduler.is_welcome(kind, place):
            short.append("pod affinity or topology spread, its own or that of pods there, keeps it away")
        if not short or (isinstance(verdict, Refused) and kind.ask.gpus == 0):
            return told
        return NodeAnswer(node=name, verdict=verdict, blockers=(*told.blockers, *short))


def host_short(load: Load, used: Load, host: Host) -> list[str]:
    """CPU, memory and pods of which a node has too little left."""
    lacking = []
    for what, unit, asked, taken, has in (
        ("cpu", "m", load.cpu_milli, used.cpu_milli, host.cpu_milli),
        ("memory", "Mi", load.memory_mib, used.memory_mib, host.memory_mib),
    ):
        if asked and asked + taken > has:
            lacking.append(
                f"Insufficient {what}: {asked}{unit} asked for, {has}{unit} allocatable, {taken}{unit} requested by"
                " pods there"
            )
    if used.pods >= host.pods:
        lacking.append(f"Too many pods: {used.pods} of {host.pods} there")
    return lacking


def reason(told: Sequence[NodeAnswer]) -> str:
    """In a word or two what the node lacks that comes closest."""
    relevant = [answer for answer in told if answer.has_gpus] or list(told)
    if not relevant:
        return "NoNodes"
    closest = relevant[0]
    match closest.verdict:
        case Refused(reason=why):
            return why.value
        case Placed():
            return closest.blockers[0].partition(":")[0].partition(" is ")[0] if closest.blockers else "Unknown"
