"""How a policy compares the GPUs of a node, and nodes with each other. Pure.

A policy says which GPUs of a node a pod gets. What that costs follows from the room on the node before and after, so
the node that ranks first is judged by the very GPUs that bind chooses there.
"""

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple, Protocol

from gpushare.model.allocation import Grant, footprint
from gpushare.model.capacity import Ask, FreeGpu, FreeHost, NodeCapacity
from gpushare.model.ledger import NodeLedger, mib_on
from gpushare.model.request import Need

ROOM: Final = 2**128
"""More than twice of what any `Ranking.worth` is."""


class Ranking(Protocol):
    """A policy with what it knows of the cluster. All is pure; less is better, and only the order means anything."""

    by_gpus: bool
    """Whether `first` looks at nothing but the GPUs."""
    adds_up: bool = False
    """Whether `first` is the sum of `gpu` over the GPUs that a pod gets."""

    basis: object
    """What `first` depends on: equal in two policies where it is the same."""

    def gpu(self, before: FreeGpu, need: Need) -> int:
        """What is lost by taking so much of a GPU that has room for it. Of several GPUs, it adds up."""

    def first(self, before: NodeCapacity, after: NodeCapacity) -> int:
        """What the cluster loses when a pod makes this of a node. Comparable for one pod among all nodes."""

    def worth(self, room: NodeCapacity) -> int:  # noqa: ARG002 - of those that have one
        """What a node is worth beside that. It decides among nodes that lose equally much at first, by what they lose.

        It may take longer than `first`.
        """
        return 0

    def cost(self, before: NodeCapacity, after: NodeCapacity) -> int:
        """Both in one number, which may be negative, and has no bound."""
        return self.first(before, after) * ROOM + self.then(before, after)

    def then(self, before: NodeCapacity, after: NodeCapacity) -> int:
        """What decides among nodes that lose equally much at first."""
        return self.worth(before) - self.worth(after)


Key = tuple[int, FreeGpu, int]


def key(ranking: Ranking, room: FreeGpu, need: Need, index: int) -> Key:
    """By which GPUs of a node are sorted, the best first. Only equal GPUs are told apart by their index."""
    return ranking.gpu(room, need), room, index


class Best(NamedTuple):
    """The best GPUs of a node for a pod."""

    cost: int
    gpus: tuple[FreeGpu, ...]


def best(ask: Ask, room: NodeCapacity, ranking: Ranking) -> Best | None:
    """What a pod of one container gets of a node, as `place` chooses it; None if GPUs or host have no room for it.

    Whether it accepts the node's model is not looked at.
    """
    if not ask.fits_host(room.host) or (gpus := choose(ask, room.gpus, ranking)) is None:
        return None
    return Best(ranking.cost(room, room.after(ask, gpus)), gpus)


def choose(ask: Ask, gpus: Sequence[FreeGpu], ranking: Ranking) -> tuple[FreeGpu, ...] | None:
    """The best GPUs of a node, in any order; None if there are too few with room."""
    fitting = [(ranking.gpu(gpu, ask.need(gpu)), gpu) for gpu in gpus if ask.fits(gpu)]
    if len(fitting) < ask.gpus:
        return None
    fitting.sort()
    return tuple(gpu for _, gpu in fitting[: ask.gpus])


def cost_of(
    grants: Iterable[Grant],
    ledger: NodeLedger,
    ranking: Ranking,
    *,
    host: FreeHost | None = None,
    takes: FreeHost = FreeHost(0, 0),  # noqa: B008 - immutable
) -> int:
    """What a node costs a pod that gets these grants of it, whatever containers it has.

    Args:
        grants: as `place` found them.
        ledger: the node's ledger, without the pod.
        ranking: of the pod's policy.
        host: what pods leave of the node's CPU and memory; None if it is not known.
        takes: CPU and memory that the pod requests.
    """
    before = NodeCapacity.of(ledger, host)
    left = list(before.gpus)
    for uuid, held in footprint(grants).items():
        gpu = ledger.inventory.by_uuid[uuid]
        room = FreeGpu.of(gpu, ledger)
        left.remove(room)
        need = Need(room.total_mib, 100) if held.whole else Need(mib_on(held, gpu), held.compute_percent)
        left.append(room.without(need))
    after = host and host.without(takes)
    return ranking.cost(before, NodeCapacity(model=before.model, gpus=tuple(sorted(left)), host=after))
