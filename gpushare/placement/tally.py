"""How many more pods of each kind a node has room for, if no other kind came. Pure, but for what it remembers."""

from typing import Final

from gpushare.model.room import Ask, GpuRoom, HostRoom, NodeRoom

PART: Final = 16
"""Parts of a pod in which CPU and memory of a host are counted: a host for 3.5 pods is better than one for 3."""
_MOST: Final = 50_000
"""Rooms and GPUs that are remembered, some 40 MiB; full nodes are alike in few ways."""

Counts = tuple[int, ...]
"""For every kind, how many pods fit, in parts."""


class Tally:
    """Counts for fixed kinds. Equal GPUs and equal nodes are counted once."""

    def __init__(self, kinds: tuple[Ask, ...]) -> None:
        self.kinds = kinds
        self._gpus: dict[GpuRoom, Counts] = {}
        self._rooms: dict[NodeRoom, Counts] = {}

    def of(self, room: NodeRoom) -> Counts:
        """How many pods of each kind fit on a node."""
        known = self._rooms.get(room)
        if known is None:
            if len(self._rooms) >= _MOST:
                self._rooms.clear()
            known = self._rooms[room] = self._count(room)
        return known

    def _count(self, room: NodeRoom) -> Counts:
        if not room.gpus:
            return (0,) * len(self.kinds)
        grants = map(sum, zip(*map(self._on_one, room.gpus), strict=True))
        return tuple(_fit(kind, number, room.host) for kind, number in zip(self.kinds, grants, strict=True))

    def _on_one(self, gpu: GpuRoom) -> Counts:
        known = self._gpus.get(gpu)
        if known is None:
            if len(self._gpus) >= _MOST:
                self._gpus.clear()
            known = self._gpus[gpu] = tuple(_grants(kind, gpu) for kind in self.kinds)
        return known


def _fit(kind: Ask, grants: int, host: HostRoom | None) -> int:
    fit = PART * (grants // kind.gpus)
    if host is None or fit == 0:
        return fit
    if kind.cpu_milli:
        fit = min(fit, PART * max(host.cpu_milli, 0) // kind.cpu_milli)
    return min(fit, PART * max(host.memory_mib, 0) // kind.host_mib) if kind.host_mib else fit


def _grants(kind: Ask, gpu: GpuRoom) -> int:
    """Grants of a kind that fit on one GPU; those of one pod need different GPUs."""
    if not kind.fits(gpu):
        return 0
    if kind.whole or kind.gpus > 1:
        return 1
    need = kind.need(gpu)
    many = gpu.free_mib // need.memory_mib
    return min(many, gpu.free_percent // need.compute_percent) if need.compute_percent else many
