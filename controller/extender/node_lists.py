"""Lists of nodes as kube-scheduler sends them: what filter has answered is what prioritize is asked about next.

A list that is known need not be decoded; its nodes' rows in the table, and prioritize's answer but for the scores, are
found once.
"""

import itertools
import threading
from collections import OrderedDict
from functools import cached_property
from typing import Final

import numpy as np
import orjson
from numpy.typing import NDArray

from controller.cluster_table import NodeNames

_KEY: Final = b'"NodeNames":['
_OTHER: Final = b'nodenames"'
"""Keys count whatever their case, and which of two counts is told by reading both."""
_END: Final = b"]}"
_STRUCTURE: Final = (b"[", b"]", b"{", b"}", b"\\")
_HOST: Final = b'{"Host":"'
_SCORE: Final = b'","Score": 0}'
_TENS: Final = np.frombuffer(b" " * 10 + b"1", np.uint8)
_UNITS: Final = np.frombuffer(b"01234567890", np.uint8)
MAX_BYTES: Final = 2**19
"""Of all lists together in JSON; with all that is kept of them they take some 20 times as much."""


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


class NodeList(NodeNames):
    @cached_property
    def sent(self) -> bytes:
        return orjson.dumps(self.names)

    def priorities(self, scores: NDArray[np.uint8]) -> bytes:
        """A HostPriorityList; the scores, 0 to 10, are in the order of the names."""
        blank, offsets = self._blank
        text = blank.copy()
        text[offsets] = _TENS[scores]
        text[offsets + 1] = _UNITS[scores]
        return text.tobytes()

    def without_preference(self) -> bytes:
        """The same with 0 for each."""
        return self._blank[0].tobytes()

    @cached_property
    def _blank(self) -> tuple[NDArray[np.uint8], NDArray[np.int32]]:
        """An answer with two places for each score, and where these are."""
        names = [orjson.dumps(name)[1:-1] for name in self.names]
        text = b"[%s]" % b",".join([_HOST + name + _SCORE for name in names])
        ends = itertools.accumulate(len(_HOST) + len(name) + len(_SCORE) + 1 for name in names)
        return np.frombuffer(text, np.uint8), np.array(list(ends), np.int32) - len(b" 0}")


class NodeLists:
    """The lists that were kept last. Safe for use by many threads."""

    def __init__(self) -> None:
        self._lists: OrderedDict[bytes, NodeList] = OrderedDict()
        self._size = 0
        self._lock = threading.Lock()

    def get(self, sent: bytes) -> NodeList | None:
        """A list, by what it is in JSON; None if it is not known."""
        with self._lock:
            return self._lists.get(sent)

    def keep(self, answered: NodeList) -> None:
        """Remember a list that was answered with.

        None by what a sender calls so: anyone may send requests, and would choose which nodes the scheduler asks about.
        """
        sent = answered.sent
        with self._lock:
            if sent in self._lists:
                self._lists.move_to_end(sent)
                return
            self._lists[sent] = answered
            self._size += len(sent)
            while self._size > MAX_BYTES:
                forgotten, _ = self._lists.popitem(last=False)
                self._size -= len(forgotten)
