"""What is kept of each node so that pods need not be placed there to know whether they fit.

It is computed once for each ledger. The simple pod, which is nearly every pod, asks for memory of one GPU, whichever
that is: its verdict is one comparison. Other pods with one container are judged by `placement.judge`. `place` is the
reference: what is said here is the same, word for word.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from gpushare.model.allocation import RefusalReason, Refused
from gpushare.model.gpu import Gpu, NodeInventory
from gpushare.model.ledger import NodeLedger
from gpushare.model.request import ContainerRequest, RequestShape
from gpushare.model.selector import ANY_GPU
from gpushare.placement import candidates, explain


class GpuKind(NamedTuple):
    """What a GPU is, as far as selectors may ask."""

    model: str
    memory_mib: int
    limit: str
    mig: bool
    oversubscribed: bool


class GpuState(NamedTuple):
    """A healthy GPU, and what is free of it."""

    kind: GpuKind
    free_mib: int
    free_percent: int
    untouched: bool
    unused_mib: int
    """Of its own memory; `free_mib` is what a pod may get."""

    @classmethod
    def of(cls, gpu: Gpu, ledger: NodeLedger) -> "GpuState":
        """A GPU of a node."""
        kind = GpuKind(gpu.model, gpu.memory_mib, gpu.limit.value, gpu.mig is not None, gpu.extra_mib > 0)
        free_mib, unused_mib = ledger.free_mib(gpu), ledger.unused_mib(gpu)
        return cls(kind, free_mib, ledger.free_percent(gpu), ledger.untouched(gpu), unused_mib)


@dataclass(frozen=True)
class Room:
    """What a node with healthy GPUs has."""

    free_mib: int
    """On the healthy GPU that has most left."""
    largest_mib: int
    """Of the largest healthy GPU, in all."""
    left: str
    """What the refusal of a pod that asks for memory says of the node."""
    never: str
    """The same if it could not hold the pod even if it were empty."""
    gpus: tuple[GpuState, ...]
    """The healthy ones, in their order."""
    inventory: NodeInventory

    @cached_property
    def plain(self) -> bool:
        """Whether no GPU is out of use, and none is a MIG instance."""
        return len(self.gpus) == len(self.inventory.gpus) and not any(gpu.kind.mig for gpu in self.gpus)

    @cached_property
    def kinds(self) -> tuple[tuple[int, GpuKind], ...]:
        """What the GPUs are, with their numbers. The node is plain, as below."""
        return tuple((gpu.index, state.kind) for gpu, state in zip(self.inventory.gpus, self.gpus, strict=True))

    @cached_property
    def best(self) -> tuple[tuple[int, int], ...]:
        """Per cent and MiB free on the GPUs than which no other has more of both, those with less compute first."""
        found: list[tuple[int, int]] = []
        for percent, mib in sorted({(gpu.free_percent, gpu.free_mib) for gpu in self.gpus}, reverse=True):
            if not found or mib > found[-1][1]:
                found.append((percent, mib))
        return tuple(reversed(found))

    @cached_property
    def alike_mib(self) -> int:
        """Of each GPU, in all; 0 where they differ."""
        return self.largest_mib if {gpu.kind.memory_mib for gpu in self.gpus} == {self.largest_mib} else 0

    def fits(self, request: ContainerRequest) -> bool | None:
        """Whether a container gets a share of one GPU, whichever that is; None where `place` has to tell."""
        mib = request.memory_mib or (self.alike_mib and max(self.alike_mib * request.memory_percent // 100, 1))
        if not self.plain or not mib:
            return None
        return self.free_mib_with(request.compute_percent) >= mib

    def free_mib_with(self, percent: int) -> int:
        """On the GPU that has most left, of those with so many per cent of compute left; -1 if none has."""
        for has, mib in self.best:
            if has >= percent:
                return mib
        return -1

    @cached_property
    def left_of_both(self) -> str:
        """As `left`, for a pod that asks for memory and compute."""
        unit = self.inventory.unit
        free = [f"{unit.floor(gpu.free_mib)} {unit.name} and {gpu.free_percent} %" for gpu in self.gpus]
        return explain.left_on(self.inventory.node, free)

    @cached_property
    def left_of_whole(self) -> str:
        """As `left`, for a pod that asks for whole GPUs."""
        unit = self.inventory.unit
        free = [
            f"{unit.floor(gpu.unused_mib)} of {unit.floor(gpu.kind.memory_mib)} {unit.name} and {gpu.free_percent} %"
            for gpu in self.gpus
        ]
        return explain.left_on(self.inventory.node, free)

    @property
    def in_all(self) -> str:
        """By which `never` is longer than `left`."""
        return self.never[len(self.left) :]


RoomOrRefused = Room | Refused
"""Refused: the node takes no pod at all."""


def simple(shape: RequestShape) -> int:
    """MiB that a simple pod asks for; 0 for any other pod."""
    request = shape.containers[0]
    return 0 if request.compute_percent or not asks_one(shape) else request.memory_mib


def asks_one(shape: RequestShape) -> bool:
    """Whether a pod is one container that asks for a share of one GPU, whichever that is."""
    request = shape.containers[0]
    return (
        len(shape.containers) == 1
        and request.gpu_count == 1
        and not request.whole
        and shape.affinity is None
        and not shape.only_cdi
        and shape.gpus == ANY_GPU
    )


def enough_mib(shape: RequestShape, largest_mib: int) -> int:
    """Free memory of one GPU with which such a pod fits if the GPU has the compute, too.

    Args:
        shape: of which `asks_one` is true.
        largest_mib: no GPU has more in all.
    """
    request = shape.containers[0]
    return request.memory_mib or max(largest_mib * request.memory_percent // 100, 1)


def of_ledger(ledger: NodeLedger | Refused) -> RoomOrRefused:
    """What a node has, or why it takes no pod (but for `only_cdi`, which counts first)."""
    if isinstance(ledger, Refused):
        return ledger
    healthy = candidates.healthy(ledger)
    if not healthy:
        return Refused(RefusalReason.NO_HEALTHY_GPU, explain.no_healthy_gpu(ledger), permanent=True)
    gpus = tuple(GpuState.of(gpu, ledger) for gpu in healthy)
    return Room(
        free_mib=max(gpu.free_mib for gpu in gpus),
        largest_mib=max(gpu.memory_mib for gpu in healthy),
        left=(left := explain.left_of_memory(ledger)),
        never=left + explain.in_all(ledger),
        gpus=gpus,
        inventory=ledger.inventory,
    )
