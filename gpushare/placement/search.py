"""Find GPUs for several containers at once. The search is complete: if a fit exists, it is found.

Greedy best fit is not enough: GPUs with 6 and 4 GiB free refuse 3 + 3 + 4 if the first two containers are put apart.
States that differ only by which of several equal GPUs was taken are tried once, so real pods need few steps.
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from gpushare.identity import GpuUuid
from gpushare.model.request import ContainerKind, ContainerRequest
from gpushare.placement.score import Ranking

MAX_STEPS: Final = 20_000  # a pod made to be hard must not stop the scheduler


class SearchTooLongError(Exception):
    """The search was given up; nothing is known."""


@dataclass(frozen=True, slots=True)
class Bin:
    """One GPU during the search."""

    uuid: GpuUuid
    index: int
    free_mib: int
    held: tuple[int, ...] = ()
    """Positions of the containers that were put here, in the order in which they start."""


def find(
    containers: Sequence[ContainerRequest], bins: Sequence[Bin], ranking: Ranking
) -> tuple[tuple[GpuUuid, ...], ...] | None:
    """GPUs for every container, in the order of `containers`; None if there is no fit.

    Raises:
        SearchTooLongError: after MAX_STEPS.
    """
    return _Search(containers, ranking).run(tuple(bins))


class _Search:
    def __init__(self, containers: Sequence[ContainerRequest], ranking: Ranking) -> None:
        self._containers = containers
        self._ranking = ranking
        # The largest first: they have the fewest places, so a dead end shows early.
        self._order = sorted(
            range(len(containers)), key=lambda i: (-containers[i].gpu_count, -containers[i].memory_mib, i)
        )
        self._steps = 0
        self._dead: set[object] = set()
        self._chosen: dict[int, tuple[GpuUuid, ...]] = {}

    def run(self, bins: tuple[Bin, ...]) -> tuple[tuple[GpuUuid, ...], ...] | None:
        if not self._place(0, bins):
            return None
        return tuple(self._chosen[i] for i in range(len(self._containers)))

    def _place(self, depth: int, bins: tuple[Bin, ...]) -> bool:
        if depth == len(self._order):
            return True
        state = (depth, tuple(sorted(self._likeness(b) for b in bins)))
        if state in self._dead:
            return False
        position = self._order[depth]
        for taken in self._choices(position, bins):
            self._steps += 1
            if self._steps > MAX_STEPS:
                raise SearchTooLongError
            self._chosen[position] = tuple(b.uuid for b in taken)
            names = {b.uuid for b in taken}
            after = tuple(self._with(b, position) if b.uuid in names else b for b in bins)
            if self._place(depth + 1, after):
                return True
        self._dead.add(state)
        return False

    def _choices(self, position: int, bins: tuple[Bin, ...]) -> Iterator[tuple[Bin, ...]]:
        """Sets of GPUs for one container, best first, one of each group of equal sets."""
        fitting = [b for b in bins if self._peak(self._with(b, position)) <= b.free_mib]
        fitting.sort(key=lambda b: self._ranking.gpu(b.free_mib - self._peak(b), b.index))
        seen: set[object] = set()
        for taken in itertools.combinations(fitting, self._containers[position].gpu_count):
            likeness = tuple(sorted(self._likeness(b) for b in taken))
            if likeness not in seen:
                seen.add(likeness)
                yield taken

    def _with(self, into: Bin, position: int) -> Bin:
        return replace(into, held=tuple(sorted((*into.held, position))))

    def _likeness(self, of: Bin) -> tuple[object, ...]:
        """Equal for GPUs between which the rest of the search cannot tell.

        App containers only add up. Init containers and sidecars keep their place, because what they need depends on
        the sidecars that start before them.
        """
        held = [self._containers[i] for i in of.held]
        apps = sum(wish.memory_mib for wish in held if wish.kind is ContainerKind.APP)
        early = tuple(i for i, wish in zip(of.held, held, strict=True) if wish.kind is not ContainerKind.APP)
        return (of.free_mib, apps, early)

    def _peak(self, of: Bin) -> int:
        """MiB that the containers in a bin need at their worst moment (see model.allocation.footprint)."""
        running = peak = 0
        for i in of.held:
            level = running + self._containers[i].memory_mib
            peak = max(peak, level)
            if self._containers[i].kind is not ContainerKind.INIT:
                running = level
        return peak
