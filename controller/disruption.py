"""The cluster's PodDisruptionBudgets, for whom to evict last. Knowing none of them stops nobody from working."""

import logging
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from controller import budgets
from controller.budgets import Budget
from controller.optional import OptionalWatch
from controller.watches import Freshness
from gpushare.errors import WireError
from gpushare.kube.api import JsonObject, KubeApi
from gpushare.kube.watch import Reflector
from gpushare.runtime import logs
from gpushare.runtime.clock import Clock

_LOG: Final = logging.getLogger(__name__)
V1: Final = "/apis/policy/v1/poddisruptionbudgets"
V1BETA1: Final = "/apis/policy/v1beta1/poddisruptionbudgets"  # up to 1.20
_Key = tuple[str, str]


class Budgets:
    """All budgets that are known. Safe for use by many threads."""

    def __init__(self) -> None:
        self._known: Mapping[_Key, Budget] = {}

    def all(self) -> Sequence[Budget]:
        """In no order."""
        return tuple(self._known.values())

    def set(self, known: Mapping[_Key, Budget]) -> None:
        """Other budgets from now on; called by one thread only."""
        self._known = known

    def known(self) -> dict[_Key, Budget]:
        """A copy to change."""
        return dict(self._known)


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetSink:
    """Sink of the watch."""

    budgets: Budgets
    freshness: Freshness
    empty_is_all: bool
    """What a selector without conditions means in the version that is watched."""

    def keep(self, obj: JsonObject) -> JsonObject:
        """Reduce a budget to what matters as soon as it was read. One that means nothing protects nobody."""
        metadata = obj["metadata"]
        key = (metadata.get("namespace"), metadata.get("name"))
        try:
            return {"key": key, "budget": budgets.parse(obj, empty_is_all=self.empty_is_all)}
        except WireError as error:
            name = "/".join(map(str, key))
            logs.event(_LOG, "budget left out", level=logging.ERROR, budget=name, error=str(error))
            return {"key": key, "budget": None}

    def replace(self, objects: list[JsonObject]) -> None:
        """See Sink."""
        self.budgets.set({obj["key"]: obj["budget"] for obj in objects if obj["budget"] is not None})
        self.freshness.touch()

    def upsert(self, obj: JsonObject) -> None:
        """See Sink."""
        if obj["budget"] is None:
            self.remove(obj)
            return
        self.budgets.set({**self.budgets.known(), obj["key"]: obj["budget"]})
        self.freshness.touch()

    def remove(self, obj: JsonObject) -> None:
        """See Sink."""
        known = self.budgets.known()
        known.pop(obj["key"], None)
        self.budgets.set(known)
        self.freshness.touch()


class DisruptionWatch:
    """Keeps the budgets up to date, in the version that the server has."""

    def __init__(self, *, api: KubeApi, clock: Clock) -> None:
        self.budgets = Budgets()
        self.freshness = Freshness(clock)
        self._api = api
        self._clock = clock
        self.watch = OptionalWatch(
            api=api,
            clock=clock,
            paths=(V1, V1BETA1),
            reflector=self._reflector,
            effect="preemption takes no account of PodDisruptionBudgets",
            right="list and watch of poddisruptionbudgets in the API group policy",
        )

    def _reflector(self, path: str, synced: threading.Event) -> Reflector:
        sink = BudgetSink(budgets=self.budgets, freshness=self.freshness, empty_is_all=path == V1)
        return Reflector(
            api=self._api, path=path, sink=sink, clock=self._clock, optional=True, keep=sink.keep, synced=synced
        )
