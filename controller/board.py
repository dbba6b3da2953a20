"""What nodes cost one kind of pod, by the number of the room on them (`controller.node_rooms`), under one outlook.

Nothing here locks: `controller.boards` does.
"""

import math
import threading
from collections import OrderedDict
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Final

from controller.ranks import Ranks
from gpushare.cluster.node_ledger import LedgerOrRefused
from gpushare.identity import NodeName
from gpushare.model.request import Policy, RequestShape
from gpushare.model.room import Ask, GpuRoom, HostRoom, NodeRoom
from gpushare.model.selector import ANY_GPU, is_model
from gpushare.placement import ranking
from gpushare.placement.policies import Rankings

FREE: Final = -(2**200)
"""Cost of a node without GPUs for a pod without GPUs; all others are far above."""
MAX_BYTES: Final = 24 * 2**20
"""Of all boards, about."""
_ENTRY: Final = 160
_BOARD: Final = 4096
_CHARACTER: Final = 8
_SPARE: Final = 256

Cost = int | None
"""None where the pod does not fit."""


@dataclass(frozen=True, slots=True)
class Kind:
    """Pods that cost the same everywhere."""

    shape: RequestShape | None
    """Resolved; None for a pod without GPUs."""
    takes: HostRoom


class Board:
    """Costs for one kind of pod."""

    def __init__(self, kind: Kind, rankings: Rankings) -> None:
        shape, takes = kind.shape, kind.takes
        self.kind = kind
        self.rankings = rankings
        self.policy = rankings.of(Policy.DENSE if shape is None else shape.policy)
        self.ask = (
            Ask(cpu_milli=takes.cpu_milli, host_mib=takes.memory_mib)
            if shape is None
            else Ask.of(shape, cpu_milli=takes.cpu_milli, host_mib=takes.memory_mib)
        )
        self.by_place = shape is not None and not _follows_from_room(shape)
        self.by_number: dict[int | None, Cost] = {}
        """By the number of a room."""
        self.placed: dict[NodeName, tuple[LedgerOrRefused, int, Cost]] = {}
        """By node, for one ledger and room."""
        self.ranks: Ranks | None = None
        """Of `by_number`."""
        self.lock = threading.Lock()
        """Held while costs are found."""
        self._prices: dict[GpuRoom, float] = {}
        """Of what the pod takes of a GPU; infinite where it has no room."""

    @property
    def entries(self) -> int:
        """How many costs are kept."""
        return len(self.by_number) + len(self.placed)

    def cost(self, room: NodeRoom) -> Cost:
        """What a node with this room costs. Whether its host has room is for kube-scheduler to say."""
        if self.kind.shape is None and not room.gpus:
            return FREE
        if self.ask.gpus and not self.ask.models.admits(lambda meant: is_model(room.model, meant)):
            return None
        if not self.ask.fits_host(room.host):
            room = replace(room, host=self.ask.host)
        found = ranking.best(self.ask, room, self.policy)
        return None if found is None else found.cost

    def promise(self, room: NodeRoom) -> tuple[float, int]:
        """By which good nodes come first, without a look at typical pods: by GPUs, then by what is left of the host.

        Infinite where the GPUs have no room. Thousands of nodes have one each.
        """
        left = 0 if room.host is None else room.host.cpu_milli
        if not self.ask.gpus:
            return sum(gpu.free_mib for gpu in room.gpus), -left
        try:
            prices = map(self._prices.__getitem__, room.gpus)
            if self.ask.gpus == 1:
                return min(prices, default=math.inf), left
            lost = sorted(prices)
        except KeyError:
            for gpu in room.gpus:
                fits = self.ask.fits(gpu)
                self._prices[gpu] = self.policy.gpu(gpu, self.ask.need(gpu)) if fits else math.inf
            return self.promise(room)
        return sum(lost[: self.ask.gpus]) if len(lost) >= self.ask.gpus else math.inf, left

    def forget_all_but(self, numbers: Collection[int], nodes: Collection[NodeName]) -> None:
        """Once most of what is kept is of the past."""
        if len(self.by_number) > 2 * len(numbers) + _SPARE:
            self.by_number = {number: cost for number, cost in self.by_number.items() if number in numbers}
            self.ranks = None
        if len(self.placed) > 2 * len(nodes) + _SPARE:
            self.placed = {name: each for name, each in self.placed.items() if name in nodes}


class Generation:
    """Boards under one outlook, those last used at the end. Guarded by the lock of `Boards`."""

    def __init__(self, rankings: Rankings) -> None:
        self.rankings = rankings
        self.boards: OrderedDict[Kind, Board] = OrderedDict()
        self._weights: dict[Kind, int] = {}
        self._total = 0

    def board(self, kind: Kind) -> Board:
        """The costs for a kind of pod, as they were left. Those that were not used for long are forgotten."""
        board = self.boards.get(kind)
        if board is None:
            board = self.boards[kind] = Board(kind, self.rankings)
            self._weights[kind] = own = _BOARD + _CHARACTER * len(repr(kind))
            self._total += own
        self.boards.move_to_end(kind)
        return board

    def weigh(self, board: Board, grown: int) -> None:
        """A board has so many entries more."""
        if self.boards.get(board.kind) is board:
            self._weights[board.kind] += _ENTRY * grown
            self._total += _ENTRY * grown
        while len(self.boards) > 1 and self._total > MAX_BYTES:
            forgotten, _ = self.boards.popitem(last=False)
            self._total -= self._weights.pop(forgotten)


def _follows_from_room(shape: RequestShape) -> bool:
    """Whether the GPUs that a pod gets follow from the room on a node whose GPUs are of one model."""
    gpus = replace(shape.gpus, models=ANY_GPU.models, mig=None)
    return len(shape.containers) == 1 and shape.affinity is None and gpus == ANY_GPU
