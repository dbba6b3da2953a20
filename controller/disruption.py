"""The cluster's PodDisruptionBudgets, for whom to evict last. Without them everything keeps working."""

import logging
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from controller import budgets
from controller.budgets import Budget
from controller.optional import OptionalWatch
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
class BudgetRecord:
    """What was read of a PodDisruptionBudget."""

    namespace: str
    name: str
    budget: Budget | None
    """None if it means nothing, and so protects no pod."""

    @property
    def key(self) -> _Key:
        """Which one it is."""
        return self.namespace, self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetSink:
    """Sink of the watch."""

    budgets: Budgets
    empty_is_all: bool
    """What a selector without conditions means in the version that is watched."""

    def read(self, obj: JsonObject) -> BudgetRecord:
        """See Sink."""
        metadata, budget = obj["metadata"], None
        namespace, name = str(metadata.get("namespace")), str(metadata.get("name"))
        try:
            budget = budgets.parse(obj, empty_is_all=self.empty_is_all)
        except WireError as error:
            logs.event(_LOG, "budget left out", level=logging.ERROR, budget=f"{namespace}/{name}", error=str(error))
        return BudgetRecord(namespace=namespace, name=name, budget=budget)

    def replace(self, found: list[BudgetRecord]) -> None:
        """See Sink."""
        self.budgets.set({one.key: one.budget for one in found if one.budget is not None})

    def upsert(self, found: BudgetRecord) -> None:
        """See Sink."""
        if found.budget is None:
            self.remove(found)
            return
        self.budgets.set({**self.budgets.known(), found.key: found.budget})

    def remove(self, found: BudgetRecord) -> None:
        """See Sink."""
        known = self.budgets.known()
        known.pop(found.key, None)
        self.budgets.set(known)


class DisruptionWatch:
    """Keeps the budgets up to date, in the version that the server has."""

    def __init__(self, *, api: KubeApi, clock: Clock) -> None:
        self.budgets = Budgets()
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

    def _reflector(self, path: str, synced: threading.Event) -> Reflector[BudgetRecord]:
        sink = BudgetSink(budgets=self.budgets, empty_is_all=path == V1)
        return Reflector(api=self._api, path=path, sink=sink, clock=self._clock, optional=True, synced=synced)
