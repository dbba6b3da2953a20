"""How a policy compares the GPUs of a node, and nodes with each other. Pure.

A policy says which GPUs of a node a pod gets. What that costs follows from the room on the node before and after, so
the node that ranks first is judged by the very GPUs that bind chooses there.
"""

from collections.abc import Iterable
from typing import NamedTuple, Protocol

from gpushare.model.allocation import Grant, footprint
from gpushare.model.ledger import NodeLedger, mib_on
from gpushare.model.request import Need
from gpushare.model.room import Ask, GpuRoom, HostRoom, NodeRoom


class Ranking(Protocol):
    """A policy with what it knows of the cluster. Both are pure; less is better, and only the order means anything."""

    def gpu(self, before: GpuRoom, need: Need) -> int:
        """What is lost by taking so much of a GPU that has room for it. Of several GPUs, it adds up."""

    def cost(self, before: NodeRoom, after: NodeRoom) -> int:
        """What the cluster loses when a pod makes this of a node. Comparable for one pod among all nodes."""


Key = tuple[int, GpuRoom, int]


def key(ranking: Ranking, room: GpuRoom, need: Need, index: int) -> Key:
    """By which GPUs of a node are sorted, the best first. Only equal GPUs are told apart by their index."""
    return ranking.gpu(room, need), room, index


class Best(NamedTuple):
    """The best GPUs of a node for a pod."""

    cost: int
    gpus: tuple[GpuRoom, ...]


def best(ask: Ask, room: NodeRoom, ranking: Ranking) -> Best | None:
    """What a pod of one container gets of a node, as `place` chooses it; None if GPUs or host have no room for it.

    Whether it accepts the node's model is not looked at.
    """
    if not ask.fits_host(room.host):
        return None
    fitting = [key(ranking, gpu, ask.need(gpu), i) for i, gpu in enumerate(room.gpus) if ask.fits(gpu)]
    if len(fitting) < ask.gpus:
        return None
    fitting.sort()
    gpus = tuple(gpu for _, gpu, _ in fitting[: ask.gpus])
    return Best(ranking.cost(room, room.after(ask, gpus)), gpus)


def cost_of(
    grants: Iterable[Grant],
    ledger: NodeLedger,
    ranking: Ranking,
    *,
    host: HostRoom | None = None,
    takes: HostRoom = HostRoom(0, 0),  # noqa: B008 - immutable
) -> int:
    """What a node costs a pod that gets these grants of it, whatever containers it has.

    Args:
        grants: as `place` found them.
        ledger: the node's ledger, without the pod.
        ranking: of the pod's policy.
        host: what pods leave of the node's CPU and memory; None if it is not known.
        takes: CPU and memory that the pod requests.
    """
    before = NodeRoom.of(ledger, host)
    left = list(before.gpus)
    for uuid, held in footprint(grants).items():
        gpu = ledger.inventory.by_uuid[uuid]
        room = GpuRoom.of(gpu, ledger)
        left.remove(room)
        left.append(room.without(Need(mib_on(held, gpu), 100 if held.whole else held.compute_percent)))
    after = host and HostRoom(host.cpu_milli - takes.cpu_milli, host.memory_mib - takes.memory_mib)
    return ranking.cost(before, NodeRoom(model=before.model, gpus=tuple(sorted(left)), host=after))
