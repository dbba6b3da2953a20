"""What the API server refuses by itself: amounts of GPUs whose sum would leave 64 bits."""

from typing import Any

import pytest

from gpushare import names, units
from testing.manifests import tree
from testing.manifests.tree import Json
from testing.reviews import TOO_MUCH, container, pod
from tests.manifests import cel

NEW = tree.objects("servers/1.30")
POLICY = tree.one(NEW, "ValidatingAdmissionPolicy", names.AMOUNTS_POLICY)["spec"]
MESSAGE = f"a container asks for more of a GPU resource than any node can have; write a number up to {units.MAX_UNITS}"
RESOURCES = [names.GPU, names.GPU_MEM, names.GPU_PERCENT, "nvidia.com/mig-1g.5gb", "nvidia.com/x", "aliyun.com/x"]


def refusals(value: Json) -> list[str]:
    scope: dict[str, Any] = {"object": value, "request": {"operation": "CREATE"}}
    return cel.refusals(POLICY, scope)


def asking(amount: object, resource: str = names.GPU, **fields: object) -> Json:
    return container("x", resources={"limits": {"cpu": "1", resource: amount}}, **fields)


def test_every_new_pod_is_looked_at_whatever_its_runtime_class() -> None:
    [rule] = POLICY["matchConstraints"]["resourceRules"]
    assert (rule["operations"], rule["resources"]) == (["CREATE"], ["pods"])
    assert (POLICY["failurePolicy"], POLICY.get("matchConditions")) == ("Fail", None)


@pytest.mark.parametrize("amount", [str(amount) for amount in TOO_MUCH])
@pytest.mark.parametrize("resource", RESOURCES)
def test_an_amount_that_no_node_has_is_refused_in_every_kind_of_container(resource: str, amount: str) -> None:
    big = asking(amount, resource)
    for value in (
        pod(container("a"), big),
        pod(container("a"), init=[big]),
        pod(container("a"), init=[{**big, "restartPolicy": "Always"}]),
    ):
        assert refusals(value) == [MESSAGE]


@pytest.mark.parametrize("amount", ["1", "8", "1k", str(units.MAX_UNITS), "1G"])
def test_what_a_node_may_have_passes(amount: str) -> None:
    assert refusals(pod(*(asking(amount, resource) for resource in RESOURCES))) == []


def test_other_pods_pass() -> None:
    for each in (container(), container(resources={}), asking("10E", "example.com/x"), asking("10Ei", "memory")):
        assert refusals(pod(each)) == []
