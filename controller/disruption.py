"""The cluster's PodDisruptionBudgets, for whom to evict last. Without them everything keeps working."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from controller.optional import OptionalWatch
from gpushare.cluster import budgets
from gpushare.cluster.budgets import Budget
from gpushare.errors import WireError
from gpushare.kube.api import JsonObject, KubeApi
from gpushare.runtime import logs
from gpushare.runtime.clock import Clock

_LOG: Final = logging.getLogger(__name__)
V1: Final = "/apis/policy/v1/poddisruptionbudgets"
V1BETA1: Final = "/apis/policy/v1beta1/poddisruptionbudgets"  # up to 1.20
_Key = tuple[str, str]
"""Namespace and name."""


@dataclass(slots=True)
class Budgets:
    """All budgets that are known. Safe for use by many threads: one thread replaces the mapping, and changes none."""

    by_key: Mapping[_Key, Budget] = field(default_factory=dict)

    def all(self) -> Sequence[Budget]:
        """In no order."""
        return tuple(self.by_key.values())


@dataclass(frozen=True, slots=True)
class BudgetRecord:
    """What was read of a PodDisruptionBudget."""

    key: _Key
    budget: Budget | None
    """None if it means nothing, and so protects no pod."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetSink:
    """Sink of the watch."""

    budgets: Budgets
    empty_is_all: bool
    """What a selector without conditions means in the version that is watched."""

    def read(self, obj: JsonObject) -> BudgetRecord:
        """A budget by its name, also if it means nothing."""
        metadata, budget = obj["metadata"], None
        namespace, name = str(metadata.get("namespace")), str(metadata.get("name"))
        try:
            budget = budgets.parse(obj, empty_is_all=self.empty_is_all)
        except WireError as error:
            logs.event(_LOG, "budget left out", level=logging.ERROR, budget=f"{namespace}/{name}", error=str(error))
        return BudgetRecord((namespace, name), budget)

    def replace(self, records: list[BudgetRecord]) -> None:
        """Keep these budgets and no others."""
        self.budgets.by_key = {record.key: record.budget for record in records if record.budget is not None}

    def upsert(self, record: BudgetRecord) -> None:
        """Keep a budget that was added or changed, or forget it if it means nothing any more."""
        self.remove(record)
        if record.budget is not None:
            self.budgets.by_key = {**self.budgets.by_key, record.key: record.budget}

    def remove(self, record: BudgetRecord) -> None:
        """Forget a budget that is gone."""
        self.budgets.by_key = {key: budget for key, budget in self.budgets.by_key.items() if key != record.key}


def watch(*, api: KubeApi, clock: Clock, known: Budgets) -> OptionalWatch:
    """Keeps the budgets up to date, in the version that the server has."""
    return OptionalWatch(
        api=api,
        clock=clock,
        paths=(V1, V1BETA1),
        sink=lambda path: BudgetSink(budgets=known, empty_is_all=path == V1),
        effect="preemption takes no account of PodDisruptionBudgets",
        right="list and watch of poddisruptionbudgets in the API group policy",
    )
