"""Find GPUs for several containers at once. The search is complete: if a fit exists, it is found.

Greedy best fit is not enough: GPUs with 6 and 4 GiB free refuse 3 + 3 + 4 if the first two containers are put apart.
Equal GPUs are chosen by number and not one by one, and what was found to be hopeless is not tried twice, so real pods
need few steps. The work is counted, not timed, so that the same question always has the same answer.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from gpushare.identity import GpuUuid
from gpushare.model.capacity import FreeGpu
from gpushare.model.gpu import Gpu
from gpushare.model.ledger import peak
from gpushare.model.request import ContainerKind, ContainerRequest, Need
from gpushare.placement.policies import Scoring

MAX_STEPS: Final = 40_000  # looks at a GPU, some 50 ms; a pod made to be hard must not stop the scheduler


class SearchTooLongError(Exception):
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class Bin:
    gpu: Gpu
    room: FreeGpu
    needs: tuple[Need | None, ...]
    """What each container would take from it; None if the container may not be there."""

    def holds(self, position: int) -> bool:
        """Whether it has room for one of the containers alone."""
        need = self.needs[position]
        return need is not None and self.room.holds(need)


Early = tuple[int, ...]
Load = tuple[int, int, int, Early]
"""Kind of a GPU, MiB and per cent of the pod's app containers on it, and positions of its other containers there.

GPUs are of one kind if their room is equal and every container needs the same. GPUs with equal loads are alike for
the rest of the search. App containers only add up; init containers and sidecars keep their place, because what they
need depends on the sidecars that start before them.
"""
Loads = tuple[Load, ...]
Choice = tuple[int, ...]  # places in the list of bins


def find(
    containers: Sequence[ContainerRequest], bins: Sequence[Bin], scoring: Scoring
) -> tuple[tuple[GpuUuid, ...], ...] | None:
    """GPUs for every container, in the order of `containers`; None if there is no fit.

    Raises:
        SearchTooLongError: after MAX_STEPS.
    """
    return _Search(containers, bins, scoring).run() if _may_fit(containers, bins) else None


def _may_fit(containers: Sequence[ContainerRequest], bins: Sequence[Bin]) -> bool:
    """What must hold for any fit, by arithmetic alone: it answers for most full nodes."""
    together = 0
    for position, request in enumerate(containers):
        fitting = [one for one in bins if one.holds(position)]
        if len(fitting) < request.gpu_count:
            return False
        if request.kind is not ContainerKind.INIT:
            together += _least(position, fitting) * request.gpu_count
    return together <= sum(one.room.free_mib for one in bins)


class _Search:
    def __init__(self, containers: Sequence[ContainerRequest], bins: Sequence[Bin], scoring: Scoring) -> None:
        self._containers = containers
        self._bins = bins
        self._scoring = scoring
        # The largest first: they have the fewest places, so a dead end shows early.
        self._least = [_least(position, bins) for position in range(len(containers))]
        self._order = sorted(range(len(containers)), key=lambda i: (-containers[i].gpu_count, -self._least[i], i))
        kinds = list(dict.fromkeys((one.room, one.needs) for one in bins))
        numbers = {kind: number for number, kind in enumerate(kinds)}
        self._kinds = kinds
        self._kind_of = [numbers[one.room, one.needs] for one in bins]
        self._left = self._what_is_left()
        self._steps = 0
        self._dead: set[tuple[int, Loads]] = set()

    def run(self) -> tuple[tuple[GpuUuid, ...], ...] | None:
        """Depth first, without recursion: a pod may have more containers than there are stack frames."""
        loads: Loads = tuple((kind, 0, 0, ()) for kind in self._kind_of)
        path = [(loads, self._choices(0, loads))]
        chosen: list[Choice] = []
        while path:
            loads, choices = path[-1]
            taken = next(choices, None)
            if taken is None:
                self._dead.add((len(path) - 1, tuple(sorted(loads))))
                path.pop()
                if chosen:
                    chosen.pop()
                continue
            depth = len(path)
            if depth == len(self._order):
                places = dict(zip(self._order, [*chosen, taken], strict=True))
                return tuple(tuple(self._bins[i].gpu.uuid for i in places[at]) for at in range(len(places)))
            after = self._after(loads, self._order[depth - 1], taken)
            if not self._is_dead(depth, after):
                chosen.append(taken)
                path.append((after, self._choices(depth, after)))
        return None

    def _choices(self, depth: int, loads: Loads) -> Iterator[Choice]:
        """Sets of GPUs for one container, best first, one of each kind of equal sets."""
        position = self._order[depth]
        alike: dict[Load, list[int]] = {}
        for i, load in enumerate(loads):
            alike.setdefault(load, []).append(i)
        asked: list[tuple[tuple[FreeGpu, Need], list[int]]] = []
        for load, members in alike.items():
            self._count(len(members) + len(load[3]))
            room, needs = self._kinds[load[0]]
            if needs[position] is not None and room.holds(after := self._peak(self._with(load, position))):
                before = self._peak(load)
                more = Need(after.memory_mib - before.memory_mib, after.compute_percent - before.compute_percent)
                asked.append(((room.without(before), more), members))
        costs = dict(zip(kinds := [each for each, _ in asked], self._scoring.of_gpus(kinds), strict=True))
        asked.sort(key=lambda one: (costs[one[0]], one[0][0], self._bins[one[1][0]].gpu.index))
        return self._subsets([members for _, members in asked], self._containers[position].gpu_count)

    def _subsets(self, groups: Sequence[Sequence[int]], wanted: int) -> Iterator[Choice]:
        """Choices of so many places that differ by how many come from which group, the most from the first groups."""
        behind = [0] * (len(groups) + 1)
        for i in reversed(range(len(groups))):
            behind[i] = behind[i + 1] + len(groups[i])
        if behind[0] < wanted:
            return
        counts: list[int] = []
        missing = wanted
        while True:
            while len(counts) < len(groups):
                counts.append(min(missing, len(groups[len(counts)])))
                missing -= counts[-1]
            yield tuple(i for group, count in zip(groups, counts, strict=True) for i in group[:count])
            # The last group that can give one fewer, because those behind it have enough.
            while counts and (counts[-1] == 0 or missing + 1 > behind[len(counts)]):
                missing += counts.pop()
            if not counts:
                return
            counts[-1] -= 1
            missing += 1

    def _after(self, loads: Loads, position: int, taken: Choice) -> Loads:
        self._count(sum(1 + len(load[3]) for load in loads))
        changed = list(loads)
        for i in taken:
            changed[i] = self._with(changed[i], position)
        return tuple(changed)

    def _is_dead(self, depth: int, loads: Loads) -> bool:
        """Whether the containers from `depth` on cannot fit, by a sum or because the like was tried before."""
        demand, smallest = self._left[depth]
        room = sum(left for load in loads if (left := self._room(load)) >= smallest)
        return room < demand or (depth, tuple(sorted(loads))) in self._dead

    def _what_is_left(self) -> list[tuple[int, int]]:
        """For every depth: MiB of all apps and sidecars still to place, and the least that one of them needs."""
        demand, smallest = 0, 0
        found = [(demand, smallest)]
        for position in reversed(self._order):
            request = self._containers[position]
            if request.kind is not ContainerKind.INIT:
                least = self._least[position]
                demand += least * request.gpu_count
                smallest = min(smallest or least, least)
            found.append((demand, smallest))
        return found[::-1]

    def _count(self, steps: int) -> None:
        self._steps += steps
        if self._steps > MAX_STEPS:
            raise SearchTooLongError

    def _with(self, load: Load, position: int) -> Load:
        kind, memory, compute, early = load
        if self._containers[position].kind is not ContainerKind.APP:
            return kind, memory, compute, tuple(sorted((*early, position)))
        need = self._need(kind, position)
        return kind, memory + need.memory_mib, compute + need.compute_percent, early

    def _need(self, kind: int, position: int) -> Need:
        return self._kinds[kind][1][position] or _NOTHING

    def _room(self, load: Load) -> int:
        """MiB that a GPU's apps and sidecars leave."""
        kind, memory, _, early = load
        for position in early:
            if self._containers[position].kind is ContainerKind.SIDECAR:
                memory += self._need(kind, position).memory_mib
        return self._kinds[kind][0].free_mib - memory

    def _peak(self, load: Load) -> Need:
        """What a GPU's containers need at their worst moment."""
        kind, memory, compute, early = load
        if not early:  # nearly every pod
            return Need(memory, compute)
        needs = ((self._containers[position].kind, self._need(kind, position)) for position in early)
        steps = ((which, (need.memory_mib, need.compute_percent)) for which, need in needs)
        return Need(*peak([*steps, (ContainerKind.APP, (memory, compute))]))


_NOTHING: Final = Need(0, 0)


def _least(position: int, bins: Sequence[Bin]) -> int:
    """The least MiB that a container would take from any GPU on which it may be."""
    return min(need.memory_mib for one in bins if (need := one.needs[position]) is not None)
