"""What nodes cost kinds of pods, for prioritize. Only nodes that were asked for are looked at in a request.

Nearly all costs follow from the room on a node alone (`controller.node_rooms`), so one that was found stays right for
as long as the outlook is the same: when a pod is bound, its node has another room, and nothing else changes. Where they
do not (`_by_place`), they hold for one ledger. When there is a new outlook, the boards that were used last are filled
first, and then all answers are given from these.
"""

import contextlib
import heapq
import math
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial
from typing import Final

from controller.answers import Answer, Answers
from controller.background import Background
from controller.board import FREE, Board, Cost, Generation, Kind
from controller.ranks import Ranks
from controller.sheets import Sheet
from controller.state import ClusterState
from gpushare.cluster.node_ledger import LedgerOrRefused
from gpushare.identity import NodeName
from gpushare.model.allocation import Placed
from gpushare.model.ledger import NodeLedger
from gpushare.model.selector import ANY_GPU
from gpushare.placement import grade, ranking
from gpushare.placement.outlook import Outlook
from gpushare.placement.policies import Policies
from gpushare.placement.tally import Tally
from gpushare.runtime.clock import Clock

MOST: Final = 64
"""Costs that are found in one request, some 6 ms of CPU. Of more nodes, those with the best GPUs for the pod are looked
at, and all others count as worse; the background finds the rest."""
FEW: Final = 256
"""Nodes of a request whose costs are sorted for it. Of more, ranks among all nodes are kept (`controller.ranks`)."""
BUDGET_S: Final = 0.5
"""For pods of several containers, which can be made so that their search is hard on each node."""
WARM: Final = 10_000
"""Costs, about half a second's work, that are found before a new outlook is used."""


class Boards:
    """Costs of nodes. Safe for use by many threads."""

    def __init__(self, state: ClusterState, clock: Clock) -> None:
        """Nothing is known yet."""
        self._state = state
        self._clock = clock
        self._rooms = state.index.node_rooms
        self._lock = threading.Lock()
        self._now = Generation(state.policies)
        self._answers = Answers()
        self.background: Background[Kind] = Background(self._find_some, lambda: list(self._rooms.ids), clock)
        """To be run for what requests have left."""

    def grades(
        self, kind: Kind, names: Sequence[NodeName], reserved: Collection[NodeName] = frozenset()
    ) -> Sequence[int]:
        """What kube-scheduler is told of each of these nodes (`grade.grades`).

        Args:
            kind: of the pod.
            names: the scheduler's nodes.
            reserved: nodes where memory is set aside for this very pod by an earlier try.
        """
        with self._using(kind) as board:
            found = self._ranked(board, names, reserved)
            if found is not None:
                return found
            costs = self._costs_or_worst(board, names)
        if kind.shape is None:
            reserved = frozenset(name for name, cost in zip(names, costs, strict=True) if cost == FREE)
        return grade.grades(names, costs, reserved)

    def answer(self, kind: Kind, sheet: Sheet) -> bytes | None:
        """The same of the nodes on a sheet, ready to be sent, where no memory is set aside for the pod.

        None if it has to be put together from `grades`.
        """
        with self._using(kind) as board:
            return self._ready(board, sheet) if self._may_rank(board, len(sheet.names)) else None

    def costs(self, kind: Kind, names: Sequence[NodeName]) -> list[Cost]:
        """What each of these nodes costs; None where the pod does not fit, or for a node that is not known."""
        with self._using(kind) as board:
            return self._costs_or_worst(board, names)

    @contextlib.contextmanager
    def _using(self, kind: Kind) -> Iterator[Board]:
        self._state.index.settle()
        with self._lock:
            generation = self._now
            board = generation.board(kind)
        with board.lock:
            before = board.entries
            yield board
            grown = board.entries - before
        with self._lock:
            generation.weigh(board, grown)

    def publish(self, outlook: Outlook, tally: Tally, gently: Callable[[list[int]], Iterable[int]]) -> None:
        """Use a new outlook, once the boards that were used last are as long under it as they were."""
        fresh = Generation(Policies(self._state.policies.default, outlook, tally))
        with self._lock:
            used = [board for board in reversed(self._now.boards.values()) if not board.by_place]
        left = WARM
        for board in used:
            numbers = [number for number in list(board.by_number) if number in self._rooms.by_id]
            left -= len(numbers)
            if left < 0:
                break
            with self._lock:
                warm = fresh.board(board.kind)
            for number in gently(numbers):
                self._find(warm, {number}, 1)
            with self._lock:
                fresh.weigh(warm, warm.entries)
        with self._lock:
            fresh.boards = OrderedDict(reversed(fresh.boards.items()))
            self._now = fresh
            self._state.policies = fresh.policies

    def _find_some(self, kind: Kind, names: list[NodeName]) -> None:
        with self._lock:
            generation, board = self._now, self._now.boards.get(kind)
        if board is None:
            return
        with board.lock:
            before = board.entries
            self._costs(board, names, len(names))
            grown = board.entries - before
        with self._lock:
            generation.weigh(board, grown)

    # Under the lock of the board.

    def _ranked(self, board: Board, names: Sequence[NodeName], reserved: Collection[NodeName]) -> Sequence[int] | None:
        """Grades of most nodes that there are, if the numbers of their rooms tell all and few are new."""
        if not self._may_rank(board, len(names)):
            return None
        numbers = list(map(self._rooms.ids.get, names))
        ranks = self._ranks(board, numbers)
        return None if ranks is None else ranks.grades(names, numbers, reserved)

    def _may_rank(self, board: Board, count: int) -> bool:
        rooms, shape = self._rooms, board.kind.shape
        if shape is None or board.by_place or count < FEW or 2 * count < len(rooms.ids):
            return False
        return not ((shape.only_cdi and rooms.without_cdi) or (shape.gpus != ANY_GPU and rooms.mixed))

    def _ranks(self, board: Board, numbers: Sequence[int | None]) -> Ranks | None:
        """Ranks that know these rooms; None if too many are new."""
        board.forget_all_but(self._rooms.by_id, self._rooms.ids)
        ranks = board.ranks
        if ranks is not None and not ranks.worn() and ranks.know(numbers):
            return ranks
        missing = numbers - board.by_number.keys()
        if len(missing) > MOST:
            return None
        self._find(board, missing, MOST)
        if ranks is None or ranks.worn():
            ranks = board.ranks = Ranks(board.by_number)
        ranks.add(numbers)
        return ranks

    def _ready(self, board: Board, sheet: Sheet) -> bytes | None:
        answer, ids = self._answers.get(id(board)), self._rooms.ids
        if answer is not None and answer.is_of(sheet, board.ranks):
            changed = self._state.index.rooms_changed_since(answer.sequence)
            if changed.names is not None:
                new = {sheet.places[name]: ids.get(name) for name in changed.names if name in sheet.places}
                if (ranks := self._ranks(board, list(new.values()))) is None:
                    return None
                if answer.is_of(sheet, ranks):
                    answer.change(sheet, ranks, new)
                    answer.sequence = changed.sequence
                    return answer.sent(sheet, ranks)
        sequence = self._rooms.log.sequence
        numbers = list(map(ids.get, sheet.names))
        if (ranks := self._ranks(board, numbers)) is None:
            return None
        answer = Answer(sheet, ranks, numbers, ranks.of(numbers), sequence)
        self._answers.keep(id(board), answer)
        return answer.sent(sheet, ranks)

    def _costs_or_worst(self, board: Board, names: Sequence[NodeName]) -> list[Cost]:
        costs, late = self._costs(board, names, MOST)
        if late:
            worst = max((cost for cost in costs if cost is not None), default=0) + 1
            costs = [worst if name in late else cost for name, cost in zip(names, costs, strict=True)]
            self.background.add(board.kind)
        return costs

    def _costs(self, board: Board, names: Sequence[NodeName], most: int) -> tuple[list[Cost], set[NodeName]]:
        """Costs, and nodes of which they are not known yet."""
        board.forget_all_but(self._rooms.by_id, self._rooms.ids)
        numbers = list(map(self._rooms.ids.get, names))
        if board.by_place:
            return self._by_place(board, names, numbers, most)
        known, missing = board.by_number, set[NodeName]()
        try:
            costs = [known[number] for number in numbers]
        except KeyError:
            late = self._find(board, set(numbers), most)
            costs = list(map(known.get, numbers))
            missing = {name for name, number in zip(names, numbers, strict=True) if number in late} if late else missing
        shape = board.kind.shape
        if shape is not None and shape.only_cdi and self._rooms.without_cdi:
            without = self._rooms.without_cdi
            costs = [None if name in without else cost for name, cost in zip(names, costs, strict=True)]
        if shape is not None and shape.gpus != ANY_GPU and self._rooms.mixed:
            mixed = [position for position, name in enumerate(names) if name in self._rooms.mixed]
            apart, late_apart = self._by_place(
                board, [names[position] for position in mixed], [numbers[position] for position in mixed], most
            )
            for position, cost in zip(mixed, apart, strict=True):
                costs[position] = cost
            missing = missing - {names[position] for position in mixed} | late_apart
        return costs, missing

    def _find(self, board: Board, numbers: set[int | None], most: int) -> set[int | None]:
        """Find the costs of rooms, of so many at most. The numbers of the others."""
        missing = {number for number in numbers - board.by_number.keys() if number is not None}
        by_id, late = self._rooms.by_id, set[int | None]()
        if len(missing) > most:
            order = partial(self._deterministic, 1 if board.ask.gpus else -1)
            promising = self._of_best_gpus(board, missing) if board.ask.gpus == 1 else self._promising(board, missing)
            missing = set()
            for equal in promising:
                room_for = most - len(missing)
                chosen = equal if len(equal) <= room_for else set(heapq.nsmallest(room_for, equal, order))
                missing |= chosen
                late |= equal - chosen
        for number in missing:
            if (room := by_id.get(number)) is not None:
                board.by_number[number] = board.cost(number, room)
        return late

    def _of_best_gpus(self, board: Board, numbers: set[int]) -> Iterator[set[int]]:
        """As `_promising`, where a pod takes one GPU: what rooms have which GPU is kept."""
        by_gpu = self._rooms.by_gpu.copy()
        for gpus in board.sorted_gpus(by_gpu):
            equal = set[int]().union(*(by_gpu[gpu] & numbers for gpu in gpus))
            numbers = numbers - equal
            yield equal
        board.by_number.update(dict.fromkeys(numbers))

    def _promising(self, board: Board, numbers: set[int]) -> Iterator[set[int]]:
        """Rooms, the most promising first, equally promising ones together. All others have no room for the pod."""
        by_promise: dict[float, set[int]] = {}
        for number in numbers:
            if (room := self._rooms.by_id.get(number)) is not None:
                by_promise.setdefault(board.promise(room), set()).add(number)
        board.by_number.update(dict.fromkeys(by_promise.pop(math.inf, ())))
        yield from (by_promise[promise] for promise in sorted(by_promise))

    def _deterministic(self, sign: int, number: int) -> tuple[object, ...]:
        """By what a room is, first by the CPU that is left: numbers depend on what happened before."""
        room = self._rooms.by_id.get(number)
        if room is None:
            return (math.inf,)
        host = room.host
        return 0 if host is None else sign * host.cpu_milli, room.model, room.gpus, host or ()

    def _by_place(
        self, board: Board, names: Sequence[NodeName], numbers: Sequence[int | None], most: int
    ) -> tuple[list[Cost], set[NodeName]]:
        """Costs where only the ledger tells which GPUs the pod gets, of so many nodes at most that have changed."""
        ledgers = self._state.index.ledgers(names)
        deadline = self._clock.monotonic() + BUDGET_S
        costs: list[Cost] = []
        late: set[NodeName] = set()
        for name, number in zip(names, numbers, strict=True):
            ledger, known = ledgers.get(name), board.placed.get(name)
            if ledger is None or number is None:
                costs.append(None)
            elif known is not None and known[0] is ledger and known[1] == number:
                costs.append(known[2])
            elif most and self._clock.monotonic() < deadline:
                most -= 1
                cost = self._placed(board, ledger, number)
                board.placed[name] = ledger, number, cost
                costs.append(cost)
            else:
                costs.append(None)
                late.add(name)
        return costs, late

    def _placed(self, board: Board, ledger: LedgerOrRefused, number: int) -> Cost:
        shape, room = board.kind.shape, self._rooms.by_id.get(number)
        if shape is None or room is None or not isinstance(ledger, NodeLedger):
            return None
        verdict = self._state.verdict(shape, ledger)
        if not isinstance(verdict, Placed):
            return None
        takes = board.kind.takes
        return ranking.cost_of(verdict.grants, ledger, board.policy, host=room.host, takes=takes)
