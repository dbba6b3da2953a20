"""What nodes answer to kinds of pods, as much of it as there is memory for. Pure; not thread-safe.

Replicas of a workload ask for the same, so that few kinds make most of the questions.
"""

from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Final, Generic, Protocol, TypeVar

from gpushare.identity import NodeName
from gpushare.model.request import RequestShape

MAX_BYTES: Final = 40 * 2**20
"""Of all that is kept, about."""
_ENTRY: Final = 256
"""Bytes of a verdict: most are a number, some a refusal."""
_CHARACTER: Final = 8
"""Bytes of a kind of pod for each character in which Python writes it: selectors are as long as tenants like."""


class Sized(Protocol):
    """Answers to one kind of pod."""

    by_node: dict[NodeName, Any]


A = TypeVar("A", bound=Sized)


class ShapeCache(Generic[A]):
    """Answers to the kinds of pods that were asked about last, as many as there is memory for."""

    def __init__(self, make: Callable[[RequestShape], A], *, part: int = 1) -> None:
        """An empty cache, which makes answers that know nothing yet; `part` divides its limit."""
        self._make = make
        self._most = MAX_BYTES // part
        self._kinds: OrderedDict[RequestShape, A] = OrderedDict()
        self._weights: dict[RequestShape, tuple[int, int]] = {}
        """Of each kind: bytes of itself, and of its answers."""
        self._total = 0

    def __contains__(self, shape: RequestShape) -> bool:
        return shape in self._kinds

    def of(self, shape: RequestShape) -> A:
        """The answers to a kind of pod, as they were left."""
        answers = self._kinds.get(shape)
        if answers is None:
            answers = self._kinds[shape] = self._make(shape)
            own = _CHARACTER * len(repr(shape))
            self._weights[shape] = own, 0
            self._total += own
        self._kinds.move_to_end(shape)
        self.weigh(shape)
        return answers

    def weigh(self, shape: RequestShape) -> None:
        """The answers to a kind of pod have become more or fewer."""
        if shape in self._kinds:
            own, before = self._weights[shape]
            now = _ENTRY * len(self._kinds[shape].by_node)
            self._weights[shape] = own, now
            self._total += now - before
        while len(self._kinds) > 1 and self._total > self._most:
            forgotten, _ = self._kinds.popitem(last=False)
            self._total -= sum(self._weights.pop(forgotten))
