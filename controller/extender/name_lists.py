"""Lists of names that requests repeat: what filter has answered is what prioritize is asked about, byte for byte.

A list that is known need not be decoded, and its names, once looked up, are looked up in half of the time.
"""

import threading
from collections import OrderedDict
from collections.abc import Sequence
from functools import cached_property
from typing import Final

from controller.sheets import Sheet
from gpushare.identity import NodeName

_KEY: Final = b'"NodeNames":['
_OTHER: Final = b'nodenames"'
"""Keys count whatever their case, and which of two counts is told by reading both."""
_END: Final = b"]}"
_STRUCTURE: Final = (b"[", b"]", b"{", b"}", b"\\")
MAX_BYTES: Final = 2**19
"""Of all lists together in JSON; decoded they take eight times as much, and with their sheets 32 times."""


def split(body: bytes) -> tuple[bytes, bytes]:
    """A request with null in place of its list of names, and the list; both empty unless it ends with a plain list.

    Go writes it so. If the former is an object with that key, the latter is its value: what follows the key has no
    structure but commas, so that the last two brackets close the list and the whole.
    """
    at = body.find(_KEY)
    if at < 0 or not body.endswith(_END) or _OTHER in body[:at].lower() or body[:at].endswith(b"\\"):
        return b"", b""
    sent = body[at + len(_KEY) - 1 : -1]
    inside = memoryview(sent)[1:-1].tobytes()
    if any(mark in inside for mark in _STRUCTURE):
        return b"", b""
    return body[: at + len(_KEY) - 1] + b"null}", sent


class NameList:
    """One of them."""

    def __init__(self, sent: bytes, names: Sequence[NodeName]) -> None:
        """The names must not change any more."""
        self.sent = sent
        """In JSON."""
        self.names = names
        self.least: dict[int | None, tuple[int, int]] = {}
        """By the per cent of compute that are left there, None for any: number of a change of nodes, and MiB that were
        free then on one GPU of each of these nodes, at least."""
        self._asked = 0

    def sheet(self) -> Sheet | None:
        """For prioritize, once it has asked twice: most lists are asked about by one pod. None before."""
        self._asked += 1
        return self._sheet if self._asked > 1 else None

    @cached_property
    def _sheet(self) -> Sheet | None:
        return Sheet.of(self.names)


class NameLists:
    """The lists that were kept last. Safe for use by many threads."""

    def __init__(self) -> None:
        self._lists: OrderedDict[bytes, NameList] = OrderedDict()
        self._size = 0
        self._lock = threading.Lock()

    def get(self, sent: bytes) -> NameList | None:
        """A list, by what it is in JSON; None if it is not known."""
        with self._lock:
            return self._lists.get(sent)

    def keep(self, sent: bytes, names: Sequence[NodeName]) -> None:
        """Remember a list of names, which must not change any more, by what it is in JSON.

        Not by what a sender calls so: anyone may send requests, and would choose which nodes the scheduler asks about.
        """
        with self._lock:
            if sent in self._lists:
                self._lists.move_to_end(sent)
                return
            self._lists[sent] = NameList(sent, names)
            self._size += len(sent)
            while self._size > MAX_BYTES:
                forgotten, _ = self._lists.popitem(last=False)
                self._size -= len(forgotten)
