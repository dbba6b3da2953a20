"""How many more pods of each kind a node has room for, if no other kind came. Pure, but for what it remembers."""

from functools import lru_cache
from typing import Final

from gpushare.model.capacity import Ask, FreeGpu, NodeCapacity

PART: Final = 16
"""Parts of a pod in which CPU and memory of a host are counted: a host for 3.5 pods is better than one for 3."""
_MOST: Final = 16_384
"""Nodes and GPUs that are remembered: 9 MiB with the most kinds that there are. Full nodes are alike in few ways."""

Counts = tuple[int, ...]
"""For every kind, how many pods fit, in parts."""


class Tally:
    """Counts for fixed kinds. Equal GPUs, and nodes with equal GPUs, are counted once."""

    def __init__(self, kinds: tuple[Ask, ...]) -> None:
        self.kinds = kinds
        self._on_one = lru_cache(_MOST)(self._grants)
        self.by_gpus = lru_cache(_MOST)(self._count)
        """How many would fit if hosts had all the CPU and memory that is asked for."""
        self._hosts = [(kind.cpu_milli, kind.host_mib) for kind in kinds]
        self._wide = [place for place, kind in enumerate(kinds) if kind.gpus > 1]

    def of(self, room: NodeCapacity) -> Counts:
        """How many pods of each kind fit on a node. A part of a wide pod is none: it runs on one node."""
        known = self.by_gpus(room.gpus)
        if room.host is None:
            return known
        cpu, memory = PART * max(room.host.cpu_milli, 0), PART * max(room.host.memory_mib, 0)
        fits = [
            fit and min(fit, cpu // kind_cpu if kind_cpu else fit, memory // kind_memory if kind_memory else fit)
            for fit, (kind_cpu, kind_memory) in zip(known, self._hosts, strict=True)
        ]
        for wide in self._wide:
            if fits[wide] < PART:
                fits[wide] = 0
        return tuple(fits)

    def _count(self, gpus: tuple[FreeGpu, ...]) -> Counts:
        if not gpus:
            return (0,) * len(self.kinds)
        grants = map(sum, zip(*map(self._on_one, gpus), strict=True))
        return tuple(PART * (number // kind.gpus) for kind, number in zip(self.kinds, grants, strict=True))

    def _grants(self, gpu: FreeGpu) -> Counts:
        return tuple(_grants(kind, gpu) for kind in self.kinds)


def _grants(kind: Ask, gpu: FreeGpu) -> int:
    """Grants of a kind that fit on one GPU; those of one pod need different GPUs."""
    if not kind.fits(gpu):
        return 0
    if kind.gpus > 1:
        return 1
    need = kind.need(gpu)
    many = gpu.free_mib // max(need.memory_mib, 1)  # an annotation may say 0
    return min(many, gpu.free_percent // need.compute_percent) if need.compute_percent else many
