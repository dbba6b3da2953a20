"""The simple pod, which is nearly every pod: one container that asks for memory of one GPU, whichever that is.

All that such a pod needs to know of a node is computed once for each ledger, so that a verdict is one comparison, or a
few if the pod asks for compute, too. `place` is the reference: what is said here is the same, word for word.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from gpushare.model.ledger import NodeLedger
from gpushare.model.request import RequestShape
from gpushare.model.selector import ANY_GPU
from gpushare.model.verdict import RefusalReason, Refused
from gpushare.placement import candidates, explain
from gpushare.units import MemoryUnit


@dataclass(frozen=True, slots=True)
class Room:
    """What a node has for simple pods."""

    free_mib: int
    """On the healthy GPU that has most left."""
    largest_mib: int
    """Of the largest healthy GPU, in all."""
    corners: tuple[tuple[int, int], ...]
    """MiB and per cent of compute that are free on healthy GPUs, without those that have less of both than another."""
    left: str
    """What a refusal says of the node."""
    never: str
    """The same if it could not hold the pod even if it were empty."""

    def fits(self, mib: int, percent: int) -> bool:
        """Whether a simple pod finds so much on one GPU."""
        if not percent:
            return self.free_mib >= mib
        return any(mib <= memory and percent <= compute for memory, compute in self.corners)

    def refusal(self, mib: int, unit: MemoryUnit) -> Refused:
        """Why a simple pod that asks for no compute does not fit; the unit is the node's."""
        never = mib > self.largest_mib
        text = explain.needs_memory(mib, unit) + (self.never if never else self.left)
        return Refused(RefusalReason.INSUFFICIENT_GPU_MEMORY, text, permanent=never)


RoomOrRefused = Room | Refused
"""Refused: the node takes no simple pod at all."""


def simple(shape: RequestShape) -> tuple[int, int]:
    """MiB and per cent of compute that a simple pod asks for; 0 MiB for any other pod."""
    request = shape.containers[0]
    if (
        len(shape.containers) > 1
        or request.gpu_count > 1
        or shape.affinity is not None
        or shape.only_cdi
        or shape.gpus != ANY_GPU
    ):
        return 0, 0
    return request.memory_mib, request.compute_percent


def of_ledger(ledger: NodeLedger | Refused) -> RoomOrRefused:
    """What a node has for simple pods, or why it takes none."""
    if isinstance(ledger, Refused):
        return ledger
    healthy = candidates.healthy(ledger)
    if not healthy:
        return Refused(RefusalReason.NO_HEALTHY_GPU, explain.no_healthy_gpu(ledger), permanent=True)
    free = [(ledger.free_mib(gpu), ledger.free_percent(gpu)) for gpu in healthy]
    return Room(
        free_mib=max(free)[0],
        largest_mib=max(gpu.memory_mib for gpu in healthy),
        corners=_corners(free),
        left=(left := explain.left_of_memory(ledger)),
        never=left + explain.in_all(ledger),
    )


def _corners(free: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    found: list[tuple[int, int]] = []
    for memory, compute in sorted(set(free), reverse=True):
        if not found or compute > found[-1][1]:
            found.append((memory, compute))
    return tuple(found)
