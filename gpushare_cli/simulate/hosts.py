"""CPU, memory and pods of the nodes of a simulation. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from gpushare import units
from gpushare.errors import WireError
from gpushare.identity import NodeName
from gpushare.model.capacity import Ask, FreeHost
from gpushare.simulation.cluster import Nodes
from gpushare.simulation.scores import Host
from gpushare.units import ResourceConfig
from gpushare.wire import asks, fields, host
from gpushare.wire import pods as pods_wire
from gpushare_cli.simulate import kinds
from gpushare_cli.simulate.objects import Found
from gpushare_cli.world import World

_ENOUGH: Final = 10**15
"""CPU, memory and pods of a node that does not tell."""
_ZONE: Final = "topology.kubernetes.io/zone"


@dataclass(frozen=True, slots=True, kw_only=True)
class Hosts:
    """What kube-scheduler knows of the nodes of a world, in their order."""

    nodes: Nodes
    rooms: Mapping[NodeName, FreeHost | None]
    """CPU and memory of nodes; None for those that do not tell."""
    there: Sequence[tuple[Mapping[str, Any], int]]
    """Pods on nodes, and the places of these."""
    known: Sequence[Ask]
    """What pods on nodes ask for."""

    @property
    def silent(self) -> int:
        """How many nodes do not tell."""
        return sum(room is None for room in self.rooms.values())

    @property
    def left(self) -> dict[NodeName, FreeHost]:
        """CPU and memory that no pod has requested."""
        return {
            name: host.left(room, [FreeHost(used.cpu_milli, used.memory_mib)])
            for (name, room), used in zip(self.rooms.items(), self.nodes.used, strict=True)
            if room is not None
        }


def hosts_of(nodes: Iterable[Found], state: World, pods: Sequence[Found], resource_config: ResourceConfig) -> Hosts:
    """Read the objects of the nodes of a world, and of the pods on them."""
    given = {NodeName(node.name): node.value for node in nodes}
    places = {name: i for i, name in enumerate(state.nodes)}
    rooms, hosts = {}, []
    for name in places:
        room = rooms[name] = host.allocatable(given[name]) if name in given else None
        hosts.append(Host(*(room or FreeHost(_ENOUGH, _ENOUGH)), _pods(given[name]) if name in given else _ENOUGH))
    values = [pod.value for pod in pods]
    used, replicas = kinds.on_nodes(values, places)
    zones = [state.nodes[name].facts.labels.get(_ZONE) for name in places]
    known = [_ask(value, resource_config) for value in values if pods_wire.counts(value)]
    there = [
        (value, places[node])
        for value in values
        if (node := pods_wire.node_of(value)) is not None and node in places and pods_wire.counts(value)
    ]
    return Hosts(nodes=Nodes(hosts, used, zones, replicas), rooms=rooms, there=there, known=known)


def _pods(node: Mapping[str, object]) -> int:
    allocatable = fields.mapping(fields.mapping(node, "status", "node"), "allocatable", "status")
    return units.whole(allocatable.get("pods")) or _ENOUGH


def _ask(pod: Mapping[str, object], resource_config: ResourceConfig) -> Ask:
    if pods_wire.node_of(pod) is None:
        return Ask()
    try:
        return asks.of_bound(pod, None, resource_config)
    except WireError:
        return Ask()
