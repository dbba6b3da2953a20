"""PodDisruptionBudgets: how many pods of a kind may be disrupted at a time, and whose eviction breaks that. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpushare.cluster.pod_records import Bound
from gpushare.errors import WireError
from gpushare.identity import PodUid
from gpushare.model.request import LabelSelector, Operator, Requirement
from gpushare.wire import fields


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    namespace: str
    name: str
    selector: LabelSelector | None  # None protects no one
    allowed: int  # disruptions that the disruption controller allows at this moment
    spares_unready: bool = False  # the eviction API evicts a pod that is not ready without using one of the disruptions
    disrupted: frozenset[str] = frozenset()  # names of pods whose eviction was counted already

    def selects(self, pod: Bound) -> bool:
        return self.selector is not None and self.namespace == pod.ref.namespace and self.selector.matches(pod.labels)

    def counts(self, pod: Bound) -> bool:
        """Whether evicting a pod uses one of the disruptions. One that is going anyway uses none."""
        return not pod.deleting and pod.ref.name not in self.disrupted and self.selects(pod)


def broken(pods: Iterable[Bound], budgets: Sequence[Budget]) -> Mapping[PodUid, Budget]:
    """Pods whose eviction breaks a budget, when all are evicted in this order, with the last one that each breaks."""
    left = [budget.allowed for budget in budgets]
    found: dict[PodUid, Budget] = {}
    for pod in pods:
        for i, budget in enumerate(budgets):
            if budget.counts(pod):
                left[i] -= 1
                if left[i] < 0:
                    found[pod.ref.uid] = budget
    return found


def parse(obj: Mapping[str, Any], *, empty_is_all: bool) -> Budget:
    """Read a PodDisruptionBudget. Raises WireError: it is none, or has a selector that means nothing."""
    # A selector without conditions means every pod in policy/v1, and none in v1beta1.
    metadata = fields.mapping(obj, "metadata", "object")
    spec, status = fields.mapping(obj, "spec", "object"), fields.mapping(obj, "status", "object")
    healthy = fields.integer(status, "currentHealthy", "status", default=0)
    desired = fields.integer(status, "desiredHealthy", "status", default=0)
    return Budget(
        namespace=fields.needed(metadata, "namespace", "metadata"),
        name=fields.needed(metadata, "name", "metadata"),
        selector=_selector(spec, empty_is_all=empty_is_all),
        allowed=fields.integer(status, "disruptionsAllowed", "status", default=0),
        spares_unready=spec.get("unhealthyPodEvictionPolicy") == "AlwaysAllow" or healthy >= desired > 0,
        disrupted=frozenset(fields.mapping(status, "disruptedPods", "status")),
    )


def _selector(spec: Mapping[str, Any], *, empty_is_all: bool) -> LabelSelector | None:
    if spec.get("selector") is None:
        return None
    found = label_selector(fields.mapping(spec, "selector", "spec"), "spec.selector")
    return found if found.requirements or empty_is_all else None


def label_selector(selector: Mapping[str, Any], path: str) -> LabelSelector:
    """Read the selector of an object, in its field at this path. Raises WireError. Without conditions it means all."""
    labels = fields.mapping(selector, "matchLabels", path)
    conditions = [
        Requirement(key, Operator.IN, (fields.text(labels, key, f"{path}.matchLabels"),)) for key in sorted(labels)
    ]
    for i, each in enumerate(fields.objects(selector, "matchExpressions", path)):
        conditions.append(_requirement(each, f"{path}.matchExpressions[{i}]"))
    return LabelSelector(tuple(conditions), text="")


def _requirement(each: Mapping[str, Any], path: str) -> Requirement:
    key, word = fields.needed(each, "key", path), fields.text(each, "operator", path)
    try:
        operator = Operator(word)
    except ValueError as error:
        known = ", ".join(one.value for one in Operator)
        raise WireError(f"{path}.operator: expected {known}, found {word!r:.100}") from error
    values = fields.strings(each, "values", path)
    if (operator in {Operator.IN, Operator.NOT_IN}) != bool(values):
        raise WireError(f"{path}.values: {word} needs {'no values' if values else 'at least one'}")
    return Requirement(key, operator, tuple(values))
