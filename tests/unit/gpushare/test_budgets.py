"""PodDisruptionBudgets as Kubernetes means them."""

from collections.abc import Mapping
from typing import Any

import pytest

from gpushare.cluster import budgets
from gpushare.cluster.budgets import Budget
from gpushare.cluster.pod_records import Bound
from gpushare.errors import WireError
from gpushare.identity import NodeName
from testing.builders import make_ref


def pdb(selector: object = None, **status: object) -> dict[str, Any]:
    return {"metadata": {"namespace": "default", "name": "web"}, "spec": {"selector": selector}, "status": status}


def pod(name: str = "a", labels: Mapping[str, str] | None = None, **fields: Any) -> Bound:
    return Bound(ref=make_ref(name), node=NodeName("n"), labels=labels or {}, **fields)


def expression(key: str, operator: str, *values: str) -> dict[str, Any]:
    return {"matchExpressions": [{"key": key, "operator": operator, "values": list(values)}]}


@pytest.mark.parametrize(
    ("selector", "labels", "meant"),
    [
        ({"matchLabels": {"app": "web"}}, {"app": "web", "x": "y"}, True),
        ({"matchLabels": {"app": "web"}}, {"app": "api"}, False),
        ({"matchLabels": {"app": "web", "tier": "a"}}, {"app": "web"}, False),
        ({"matchLabels": {"app": ""}}, {"app": ""}, True),
        (expression("app", "In", "web", "api"), {"app": "api"}, True),
        (expression("app", "NotIn", "web"), {"app": "web"}, False),
        (expression("app", "NotIn", "web"), {"app": "api"}, True),
        (expression("app", "Exists"), {"app": ""}, True),
        (expression("app", "DoesNotExist"), {}, True),
        ({"matchLabels": {"app": "web"}, **expression("tier", "Exists")}, {"app": "web"}, False),
        ({"matchLabels": None, "matchExpressions": None}, {"app": "web"}, True),
        ({}, {"app": "web"}, True),
        (None, {"app": "web"}, False),
    ],
)
def test_a_selector_means_what_it_means_in_policy_v1(selector: object, labels: Mapping[str, str], meant: bool) -> None:
    assert budgets.parse(pdb(selector), empty_is_all=True).counts(pod(labels=labels)) is meant


@pytest.mark.parametrize(
    ("policy", "status", "spares"),
    [
        (None, {}, False),
        (None, {"currentHealthy": 0, "desiredHealthy": 0}, False),
        (None, {"currentHealthy": 1, "desiredHealthy": 2}, False),
        (None, {"currentHealthy": 2, "desiredHealthy": 2}, True),
        ("IfHealthyBudget", {"currentHealthy": 1, "desiredHealthy": 2}, False),
        ("AlwaysAllow", {"currentHealthy": 1, "desiredHealthy": 2}, True),
    ],
)
def test_unready_pods_are_spared_as_by_evictions(policy: str | None, status: dict[str, int], spares: bool) -> None:
    found = pdb({}, **status)
    if policy:
        found["spec"]["unhealthyPodEvictionPolicy"] = policy
    assert budgets.parse(found, empty_is_all=True).spares_unready is spares


@pytest.mark.parametrize("selector", [{}, {"matchLabels": {}}, {"matchExpressions": []}, None])
def test_an_empty_selector_means_no_one_in_v1beta1(selector: object) -> None:
    assert not budgets.parse(pdb(selector), empty_is_all=False).counts(pod(labels={"app": "web"}))


ALLOWED = "status.disruptionsAllowed: expected a whole number, 0 or more, found"
WRONG_EXPRESSIONS: list[tuple[object, str]] = [
    (1, ": expected an object, found a number"),
    ({"operator": "In"}, ".key: expected a string, found nothing"),
    ({"key": "a", "operator": "Gt"}, ".operator: expected In, NotIn, Exists, DoesNotExist, found 'Gt'"),
    ({"key": "a", "operator": "In", "values": []}, ".values: In needs at least one"),
    ({"key": "a", "operator": "Exists", "values": ["b"]}, ".values: Exists needs no values"),
    ({"key": "a", "operator": "In", "values": [1]}, ".values[0]: expected a string, found a number"),
]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"metadata": {}}, "metadata.namespace: expected a string, found nothing"),
        ({"metadata": {"namespace": "n"}}, "metadata.name: expected a string, found nothing"),
        ({"metadata": []}, "object.metadata: expected an object, found a list"),
        ({"spec": "all"}, "object.spec: expected an object, found a string"),
        ({"spec": {"selector": []}}, "spec.selector: expected an object, found a list"),
        *(
            ({"spec": {"selector": {"matchLabels": labels}}}, f"spec.selector.matchLabels{message}")
            for labels, message in (
                ({"app": 1}, ".app: expected a string, found a number"),
                (["app"], ": expected an object, found a list"),
            )
        ),
        *(
            ({"spec": {"selector": {"matchExpressions": [found]}}}, f"spec.selector.matchExpressions[0]{message}")
            for found, message in WRONG_EXPRESSIONS
        ),
        ({"status": {"disruptionsAllowed": "1"}}, f"{ALLOWED} a string"),
        ({"status": {"disruptionsAllowed": True}}, f"{ALLOWED} true or false"),
        ({"status": {"disruptedPods": ["a"]}}, "status.disruptedPods: expected an object, found a list"),
    ],
)
def test_what_is_no_budget_is_refused_with_what_is_wrong_where(change: dict[str, Any], message: str) -> None:
    with pytest.raises(WireError) as error:
        budgets.parse(pdb({}) | change, empty_is_all=True)
    assert str(error.value) == message


def test_a_budget_without_status_allows_nothing() -> None:
    found = budgets.parse({"metadata": {"namespace": "n", "name": "web"}}, empty_is_all=True)
    assert found == Budget(namespace="n", name="web", selector=None, allowed=0)


def test_who_was_counted_already_or_is_going_uses_no_disruption() -> None:
    found = budgets.parse(pdb({}, disruptionsAllowed=1, disruptedPods={"b": "2026-01-01T00:00:00Z"}), empty_is_all=True)
    pods = [pod("b"), pod("c", deleting=True), pod("a"), pod("d"), pod("e")]
    assert budgets.broken(pods, [found]).keys() == {"uid-d", "uid-e"}
    assert budgets.broken(reversed(pods), [found]).keys() == {"uid-d", "uid-a"}


def test_each_budget_is_counted_by_itself() -> None:
    web = budgets.parse(pdb({"matchLabels": {"app": "web"}}, disruptionsAllowed=1), empty_is_all=True)
    everybody = budgets.parse(pdb({}, disruptionsAllowed=2), empty_is_all=True)
    pods = [pod("a", {"app": "web"}), pod("b"), pod("c", {"app": "web"}), pod("d")]
    assert budgets.broken(pods, [web]).keys() == {"uid-c"}
    assert budgets.broken(pods, [web, everybody]).keys() == {"uid-c", "uid-d"}
