"""Pods one after another, as kube-scheduler decides: fit, filter, scores, extenders, chance among the best nodes."""

import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import orjson

from bench.scheduling import scores
from bench.scheduling.configuration import Configuration, Extender
from bench.scheduling.scores import SPREAD_WEIGHT, ResourceScores, Spread
from gpushare.model.capacity import FreeHost

_PER_POINT = 10  # of the score of an extender with weight 1, which is 0 to 10

Json = dict[str, Any]


class UnansweredError(Exception):
    """An extender did not answer."""


class Transport(Protocol):
    """Extenders and the API server."""

    def ask(self, path: str, body: bytes) -> bytes:
        """The answer.

        Raises:
            UnansweredError: there is none.
        """
        ...

    def bind(self, pod: Json, node: str) -> None:
        """What kube-scheduler does where no extender binds."""


@dataclass(frozen=True, slots=True)
class Decided:
    """Where a pod went."""

    node: int | None
    """None if it fits on no node."""
    times_ms: Mapping[str, float]
    """What each question to extenders took."""


class Scheduler:
    """Knows what pods request of the nodes. It never samples nodes."""

    def __init__(
        self,
        *,
        names: Sequence[str],
        has: Sequence[FreeHost],
        configuration: Configuration,
        transport: Transport,
        seed: int,
        since_1_36: bool = False,
    ) -> None:
        strategy = scores.most_allocated if configuration.packs else scores.least_allocated
        balance = scores.more_balanced if since_1_36 else scores.balanced
        self._names, self._places = list(names), {name: place for place, name in enumerate(names)}
        self._free = [list(room) for room in has]
        self._scores = ResourceScores(has, (strategy, balance))
        self._spread = Spread()
        self._extenders = configuration.extenders
        self._transport = transport
        self._random = random.Random(seed)
        self._times: dict[str, float] = {}
        self.unanswered = 0
        """Questions for scores to which there was no answer."""

    def schedule(self, pod: Json, asks: FreeHost, owner: object = None) -> Decided:
        """Choose a node and bind the pod there.

        Args:
            pod: for the extenders.
            asks: CPU and memory that it requests.
            owner: equal for pods of one owner; None for a pod without one.
        """
        self._times = {}
        node = self._node(pod, asks, owner)
        if node is not None:
            self._bind(pod, node)
            self._add(node, asks, owner, 1)
        return Decided(node, self._times)

    def gone(self, node: int, asks: FreeHost, owner: object = None) -> None:
        """A pod has left its node."""
        self._add(node, asks, owner, -1)

    def _add(self, node: int, asks: FreeHost, owner: object, sign: int) -> None:
        for place, amount in enumerate(asks):
            self._free[node][place] -= sign * amount
        self._scores.add(node, asks, sign)
        if owner is not None:
            self._spread.add(owner, node, sign)

    def _node(self, pod: Json, asks: FreeHost, owner: object) -> int | None:
        cpu, memory = asks
        asked = [extender for extender in self._extenders if extender.is_asked(pod)]
        fits = [place for place, (c, m) in enumerate(self._free) if c >= cpu and m >= memory]
        for extender in asked:
            if extender.filter_verb and fits:
                answer = self._ask(extender, extender.filter_verb, pod, fits)
                if answer["Error"]:
                    raise RuntimeError(f"filter: {answer['Error']}")
                fits = [self._places[name] for name in answer["NodeNames"] or ()]
        if len(fits) < 2:
            return fits[0] if fits else None
        found = self._own(asks, owner, fits)
        for extender in asked:
            if extender.prioritize_verb:
                factor, given = extender.weight * _PER_POINT, self._given(extender, pod, fits)
                found = [
                    one + factor * given.get(self._names[place], 0) for one, place in zip(found, fits, strict=True)
                ]
        high = max(found)
        return self._random.choice([place for place, one in zip(fits, found, strict=True) if one == high])

    def _given(self, extender: Extender, pod: Json, fits: Sequence[int]) -> Mapping[str, int]:
        """Scores by node; none without an answer, as kube-scheduler goes on without one."""
        try:
            answer = self._ask(extender, extender.prioritize_verb, pod, fits)
        except UnansweredError:
            self.unanswered += 1
            return {}
        return {entry["Host"]: entry["Score"] for entry in answer}

    def _own(self, asks: FreeHost, owner: object, fits: Sequence[int]) -> list[int]:
        known = self._scores.of(asks)
        found = [known[place] for place in fits]
        if owner is None:
            return found
        return [one + SPREAD_WEIGHT * more for one, more in zip(found, self._spread.of(owner, fits), strict=True)]

    def _bind(self, pod: Json, node: int) -> None:
        binder = next((one for one in self._extenders if one.bind_verb and one.is_asked(pod)), None)
        if binder is None:
            self._transport.bind(pod, self._names[node])
            return
        metadata = pod["metadata"]
        body = {
            "PodName": metadata["name"],
            "PodNamespace": metadata["namespace"],
            "PodUID": metadata["uid"],
            "Node": self._names[node],
        }
        if error := self._timed("bind", f"{binder.path}/{binder.bind_verb}", body)["Error"]:
            raise RuntimeError(f"bind: {error}")

    def _ask(self, extender: Extender, verb: str, pod: Json, fits: Sequence[int]) -> Any:
        body = {"Pod": pod, "NodeNames": [self._names[place] for place in fits]}
        return self._timed(verb, f"{extender.path}/{verb}", body)

    def _timed(self, what: str, path: str, body: Json) -> Any:
        data = orjson.dumps(body)
        began = time.perf_counter()
        answer = self._transport.ask(path, data)
        self._times[what] = self._times.get(what, 0.0) + (time.perf_counter() - began) * 1000
        return orjson.loads(answer)
