"""What nodes cost one kind of pod, by the number of the room on them (`controller.node_rooms`), under one outlook.

Nothing here locks: `controller.boards` does.
"""

import itertools
import math
import operator
import threading
from collections import OrderedDict
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from typing import Final

from controller.ranks import Ranks
from gpushare.cluster.node_ledger import LedgerOrRefused
from gpushare.identity import NodeName
from gpushare.model.capacity import Ask, FreeGpu, FreeHost, NodeCapacity
from gpushare.model.request import Policy, RequestShape
from gpushare.model.selector import ANY_GPU, accepts
from gpushare.placement import ranking
from gpushare.placement.policies import Policies

FREE: Final = -(2**200)
"""Cost of a node without GPUs for a pod without GPUs; all others are far above."""
MAX_BYTES: Final = 24 * 2**20
"""Of all boards, about."""
_ENTRY: Final = 160
_BOARD: Final = 4096
_CHARACTER: Final = 8
_SPARE: Final = 256
_MOST_GPUS: Final = 50_000
"""GPUs whose prices are remembered for a kind of pod."""

Cost = int | None
"""None where the pod does not fit."""


@dataclass(frozen=True, slots=True)
class Kind:
    """Pods that cost the same everywhere."""

    shape: RequestShape | None
    """Resolved; None for a pod without GPUs."""
    takes: FreeHost


class Board:
    """Costs for one kind of pod."""

    def __init__(self, kind: Kind, policies: Policies, worths: dict[int, int]) -> None:
        """Nothing is known yet, but what rooms are worth to the policy, by their numbers; it is shared."""
        shape, takes = kind.shape, kind.takes
        self.kind = kind
        self.policy = policies.of(policy_of(kind))
        self._worths = worths
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
        self._prices: dict[FreeGpu, float] = {}
        self._models: dict[str, bool] = {}

    @property
    def entries(self) -> int:
        """How many costs are kept, of nodes and of GPUs."""
        return len(self.by_number) + len(self.placed) + len(self._prices)

    def cost(self, number: int, room: NodeCapacity) -> Cost:
        """What a node with this room costs, as `ranking.best` says. Whether its host has room kube-scheduler says."""
        if self.kind.shape is None and not room.gpus:
            return FREE
        if self.ask.gpus and not self._admits(room.model):
            return None
        fitting = sorted((price, gpu) for gpu, price in self._priced(room.gpus) if price < math.inf)
        if len(fitting) < self.ask.gpus:
            return None
        enough = self.ask.fits_host(room.host)
        if not enough:
            room = replace(room, host=self.ask.host)
        after = room.after(self.ask, tuple(gpu for _, gpu in fitting[: self.ask.gpus]))
        worth = self._worths.get(number) if enough else None
        if worth is None:
            worth = self.policy.worth(room)
            if enough:
                self._worths[number] = worth
        return self.policy.first(room, after) * ranking.ROOM + worth - self.policy.worth(after)

    def promise(self, room: NodeCapacity) -> float:
        """By which good nodes come first, without a look at typical pods. Infinite where the GPUs have no room.

        Thousands of nodes have one each.
        """
        if not self.ask.gpus:
            return sum(gpu.free_mib for gpu in room.gpus)
        prices = sorted(price for _, price in self._priced(room.gpus))
        return sum(prices[: self.ask.gpus]) if len(prices) >= self.ask.gpus else math.inf

    def sorted_gpus(self, gpus: Collection[FreeGpu]) -> list[list[FreeGpu]]:
        """Those that have room for the pod, the best first; equally good ones together."""
        fitting = sorted((price, gpu) for gpu, price in self._priced(gpus) if price < math.inf)
        return [[gpu for _, gpu in each] for _, each in itertools.groupby(fitting, operator.itemgetter(0))]

    def forget_all_but(self, numbers: Collection[int], nodes: Collection[NodeName]) -> None:
        """Once most of what is kept is of the past."""
        if len(self.by_number) > 2 * len(numbers) + _SPARE:
            self.by_number = {number: cost for number, cost in self.by_number.items() if number in numbers}
            self.ranks = None
        if len(self._worths) > 2 * len(numbers) + _SPARE:
            for number in [number for number in list(self._worths) if number not in numbers]:
                self._worths.pop(number, None)
        if len(self._prices) > _MOST_GPUS:
            self._prices = {}
        if len(self.placed) > 2 * len(nodes) + _SPARE:
            self.placed = {name: each for name, each in self.placed.items() if name in nodes}

    def _priced(self, gpus: Collection[FreeGpu]) -> Iterable[tuple[FreeGpu, float]]:
        """What the pod takes of each GPU; infinite where it has no room. Few GPUs of a cluster differ."""
        if not self.ask.gpus:
            return ()
        known = self._prices
        try:
            return [(gpu, known[gpu]) for gpu in gpus]
        except KeyError:
            for gpu in gpus:
                fits = self.ask.fits(gpu)
                known[gpu] = self.policy.gpu(gpu, self.ask.need(gpu)) if fits else math.inf
            return [(gpu, known[gpu]) for gpu in gpus]

    def _admits(self, model: str) -> bool:
        if model not in self._models:
            self._models[model] = accepts(self.ask.models, model)
        return self._models[model]


class Generation:
    """Boards under one outlook, those last used at the end. Guarded by the lock of `Boards`."""

    def __init__(self, policies: Policies) -> None:
        self.policies = policies
        self.boards: OrderedDict[Kind, Board] = OrderedDict()
        self._worths: dict[Policy | None, dict[int, int]] = {}
        self._weights: dict[Kind, int] = {}
        self._total = 0

    def board(self, kind: Kind) -> Board:
        """The costs for a kind of pod, as they were left. Those that were not used for long are forgotten."""
        board = self.boards.get(kind)
        if board is None:
            worths = self._worths.setdefault(policy_of(kind), {})
            board = self.boards[kind] = Board(kind, self.policies, worths)
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


def policy_of(kind: Kind) -> Policy | None:
    """Who asks for no GPU is kept from what others need, whatever they are ranked by."""
    return Policy.DENSE if kind.shape is None else kind.shape.policy
