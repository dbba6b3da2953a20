"""What every node has for simple pods, kept beside the ledgers. Written under the lock of `controller.index`.

Read without it: each look-up sees the newest that there is of one node, and a filter takes a third of a millisecond.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

import orjson

from gpushare.identity import NodeName
from gpushare.model.allocation import Refused
from gpushare.placement.room import Room, RoomOrRefused

NONE: Final = -1
"""MiB free on a node that takes no simple pod, not even one that asks for nothing."""

STEP: Final = 5
"""Per cent of compute: what is kept of nodes in these steps takes 6 MiB for 5,000 of them at most."""


class Ready(NamedTuple):
    """A refusal on one node in JSON, but for what the pod needs, which comes after the start.

    Of a simple pod, and of one that asks for compute, too.
    """

    largest_mib: int
    """Of the largest healthy GPU, in all; a pod that needs more never fits."""
    start: bytes
    left: bytes
    """The rest where others may give memory back, with a comma after it."""
    never: bytes
    """The rest where that would not help."""

    left_of_both: bytes
    """The rest for a pod that asks for compute; as the next one empty where only a closer look tells."""
    never_of_both: bytes


class Rooms:
    """One entry for each node."""

    def __init__(self) -> None:
        self.free_mib: dict[NodeName, int] = {}
        """Of each node, on the GPU that has most left; NONE where no simple pod may go. Apart, for quick look-ups."""
        self.with_compute: dict[int, dict[NodeName, int]] = {}
        """The same of GPUs of which so many per cent of compute are left, for those that were asked for, in steps."""
        self.largest_mib = 0
        """No GPU has more in all."""
        self.by_node: dict[NodeName, RoomOrRefused] = {}
        self.ready: dict[NodeName, Ready] = {}
        """Of those that take simple pods."""

    def set(self, name: NodeName, found: RoomOrRefused) -> None:
        """A node's ledger is another one."""
        self.by_node[name] = found
        if isinstance(found, Room):
            # Readers look at it last, so that it counts for all that they have read.
            self.largest_mib = max(self.largest_mib, found.largest_mib)
            self.ready[name] = _ready(name, found)
            self.free_mib[name] = found.free_mib
        else:
            self.free_mib[name] = NONE
            self.ready.pop(name, None)
        for percent, free_mib in self.with_compute.items():
            free_mib[name] = _free_mib(found, percent)

    def forget(self, name: NodeName) -> None:
        """A node is gone."""
        self.free_mib.pop(name, None)
        self.ready.pop(name, None)
        self.by_node.pop(name, None)
        for free_mib in self.with_compute.values():
            free_mib.pop(name, None)

    def keep(self, percent: int) -> Mapping[NodeName, int]:
        """Begin to keep what has so many per cent of compute left."""
        if percent not in self.with_compute:
            self.with_compute[percent] = {name: _free_mib(found, percent) for name, found in self.by_node.items()}
        return self.with_compute[percent]


def _free_mib(found: RoomOrRefused, percent: int) -> int:
    return NONE if isinstance(found, Refused) else found.free_mib_with(percent)


def json_start(name: NodeName) -> bytes:
    """An entry of a JSON object up to the string that is its value, with that one's first quote."""
    return orjson.dumps(name) + b':"'


def json_rest(text: str) -> bytes:
    """The rest of a string, and a comma."""
    return orjson.dumps(text)[1:] + b","


def _ready(name: NodeName, room: Room) -> Ready:
    both = (room.left_of_both, room.left_of_both + room.in_all) if room.plain else ()
    rests = [json_rest(text) for text in both] or [b"", b""]
    return Ready(room.largest_mib, json_start(name), json_rest(room.left), json_rest(room.never), *rests)
