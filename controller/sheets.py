"""A list of names as prioritize answers about it: the same bytes for all pods, but for the scores. Pure."""

import itertools
from array import array
from collections.abc import Sequence
from typing import Final, Optional

import orjson

from gpushare.identity import NodeName

_HOST: Final = b'{"Host":'
_SCORE: Final = b',"Score":'


class Sheet:
    """One list, in which no name comes twice."""

    def __init__(self, names: Sequence[NodeName]) -> None:
        """Make it. `Sheet.of` looks whether a name comes twice."""
        starts = [_HOST + orjson.dumps(name) + _SCORE for name in names]
        ends = itertools.accumulate((len(start) + 3 for start in starts), initial=-1)
        where = {name: end + len(start) + 2 for name, start, end in zip(names, starts, ends, strict=False)}
        self.names: Sequence[NodeName] = sorted(where)
        """In their order, so that the first of several is the first by name."""
        self.places = {name: place for place, name in enumerate(self.names)}
        """Of each name among them."""
        self.blank = b"[%s]" % b",".join(start + b"0}" for start in starts)
        """An answer that gives 0 to each."""
        self.offsets = array("L", (where[name] for name in self.names))
        """Of the digit of each name in it."""

    @classmethod
    def of(cls, names: Sequence[NodeName]) -> Optional["Sheet"]:
        """None if a name comes twice."""
        return cls(names) if len(set(names)) == len(names) else None
