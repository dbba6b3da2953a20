"""Prioritize's answers, kept ready for lists of names that are asked about again, and brought up to date node by node.

For one list and one kind of pod, an answer differs from the last one by the scores of nodes whose rooms have changed,
and by which node is the best. A score other than the best one is a digit.
"""

import threading
import weakref
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Final

from controller.ranks import Ranks
from controller.sheets import Sheet

MAX_BYTES: Final = 16 * 2**20
"""Of all answers, about."""
_NAME: Final = 16
_ZERO: Final = ord("0")
_BEST: Final = b"10"


class Answer:
    """What is said of the nodes on one sheet, for one kind of pod. Guarded by the lock of its board.

    It keeps neither the sheet nor the ranks: each has a limit of its own.
    """

    def __init__(
        self, sheet: Sheet, ranks: Ranks, numbers: Sequence[int | None], found: Sequence[int], sequence: int
    ) -> None:
        """All scores are set.

        Args:
            sheet: has the names.
            ranks: of all rooms that are known.
            numbers: of the rooms on the nodes, in the order of `Sheet.names`.
            found: their ranks.
            sequence: number of the last change of a room before they were looked up.
        """
        self.sequence = sequence
        self.size = 2 * len(sheet.blank) + _NAME * len(sheet.names)
        """In bytes, about."""
        self._sheet, self._ranks = weakref.ref(sheet), weakref.ref(ranks)
        self._numbers, self._found = list(numbers), list(found)
        self._text = bytearray(sheet.blank)
        self._ready = b""
        for offset, score in zip(sheet.offsets, ranks.plain(found), strict=True):
            self._text[offset] = _ZERO + score

    def is_of(self, sheet: Sheet, ranks: Ranks | None) -> bool:
        """Whether it has been made of these."""
        return self._sheet() is sheet and ranks is not None and self._ranks() is ranks

    def change(self, sheet: Sheet, ranks: Ranks, numbers: Mapping[int, int | None]) -> None:
        """Nodes have other rooms.

        Args:
            sheet: as before.
            ranks: as before; they know the rooms.
            numbers: of the rooms, by places on the sheet.
        """
        found = ranks.of(list(numbers.values()))
        for (place, number), rank, score in zip(numbers.items(), found, ranks.plain(found), strict=True):
            self._numbers[place], self._found[place] = number, rank
            self._text[sheet.offsets[place]] = _ZERO + score
            self._ready = b""

    def sent(self, sheet: Sheet, ranks: Ranks) -> bytes:
        """A HostPriorityList."""
        if not self._ready:
            best, text = ranks.first(self._numbers, self._found), memoryview(self._text)
            at = None if best is None else sheet.offsets[best]
            self._ready = bytes(text) if at is None else b"".join((text[:at], _BEST, text[at + 1 :]))
        return self._ready


class Answers:
    """Those that were used last. Safe for use by many threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: OrderedDict[int, Answer] = OrderedDict()
        self._size = 0

    def get(self, board: int) -> Answer | None:
        """The last answer that was kept by this number, of whatever sheet and ranks it was made."""
        with self._lock:
            if board in self._kept:
                self._kept.move_to_end(board)
            return self._kept.get(board)

    def keep(self, board: int, answer: Answer) -> None:
        """Keep it instead of the last one."""
        with self._lock:
            if (before := self._kept.pop(board, None)) is not None:
                self._size -= before.size
            self._kept[board] = answer
            self._size += answer.size
            while self._size > MAX_BYTES:
                _, forgotten = self._kept.popitem(last=False)
                self._size -= forgotten.size
