"""Amounts that no node has: a sum of them leaves 64 bits in kube-scheduler, and then fits every node."""

import itertools

import pytest

from gpushare import names, units
from testing.reviews import RULES, TOO_MUCH, VOID, WHOLE, Json, asking, container, pod
from webhook import mutation
from webhook.mutation import Denied, Mutated
from webhook.rules import Rules


def refusal(value: Json, rules: Rules = RULES) -> str:
    decision = mutation.mutate(value, rules)
    assert isinstance(decision, Denied), decision
    [error] = decision.errors
    return str(error)


def foreign(amount: object, resource: str = names.GPU, field: str = "limits", **fields: object) -> Json:
    return container("x", resources={field: {resource: amount}}, **fields)


@pytest.mark.parametrize("amount", TOO_MUCH)
def test_an_amount_that_no_node_has_is_refused_with_its_field(amount: object) -> None:
    for resource in (names.GPU, "nvidia.com/mig-1g.5gb", "nvidia.com/x", "aliyun.com/other", "nano-gpu/x"):
        assert refusal(pod(container("a"), foreign(amount, resource))) == (
            f"spec.containers[1].resources.limits[{resource}]: {amount!s:.40} is more than any node can have;"
            " write a number up to 1000000000"
        )


@pytest.mark.parametrize("field", ["limits", "requests"])
def test_it_is_refused_in_every_kind_of_container(field: str) -> None:
    big = foreign("10E", field=field)
    side = {**big, "restartPolicy": "Always"}
    for listed in (pod(big), pod(container("a"), init=[big]), pod(container("a"), init=[side])):
        assert f"resources.{field}[nvidia.com/gpu]: 10E is more than any node can have" in refusal(listed)
    assert "10E is more than any node can have" in refusal(pod(asking("a", mem=3), init=[side]))


def test_one_of_many_is_told() -> None:
    assert refusal(pod(*(foreign("10E") for _ in range(100)))).startswith("spec.containers[0].")


@pytest.mark.parametrize("amount", ["1", "8", 8, "1k", "1000000000", "1G", "500m"])
def test_what_a_node_may_have_is_left_to_the_plugin_that_hands_it_out(amount: object) -> None:
    decision = mutation.mutate(pod(foreign(amount, env=[VOID])), RULES)
    assert isinstance(decision, Mutated)


@pytest.mark.parametrize("amount", ["10E", str(2**63 - 1)])
def test_amounts_of_what_is_no_gpu_are_none_of_our_business(amount: str) -> None:
    decision = mutation.mutate(pod(foreign(amount, "example.com/x"), foreign(amount, "memory")), RULES)
    assert isinstance(decision, Mutated)


def test_a_resource_that_the_administrator_names_counts_as_gpus() -> None:
    rules = Rules(resource_config=RULES.resource_config, foreign_resources=("vendor.example/*",))
    assert "10E is more" in refusal(pod(foreign("10E", "vendor.example/gpu")), rules)


@pytest.mark.parametrize("amount", TOO_MUCH)
@pytest.mark.parametrize("resource", ["mem", "percent", "core", "gpu"])
def test_ours_are_refused_as_well(resource: str, amount: object) -> None:
    """Each with its own words; see test_bad_amounts.py."""
    asked = asking("a", **{"mem": 1, resource: amount} if resource == "core" else {resource: amount})
    assert isinstance(mutation.mutate(pod(asked), WHOLE), Denied)
    side = {**asked, "name": "s", "restartPolicy": "Always"}
    assert isinstance(mutation.mutate(pod(asking("a", mem=1), init=[side]), WHOLE), Denied)


def test_no_sum_of_admitted_amounts_leaves_64_bits() -> None:
    """Over all containers that admission lets through, init containers and sidecars included, on 64 GPUs each."""
    assert 2 * 512 * 64 * units.MAX_UNITS < 2**63
    for count in (1, 2, 4):
        for share in (2**62, 2**63 // count, (2**63 + 2**32) // count):
            listed = pod(*(foreign(str(share)) for _ in range(count)))
            assert "is more than any node can have" in refusal(listed)


def test_products_are_refused_as_well() -> None:
    """The webhook multiplies the amount by the number of GPUs."""
    for gpus, amount in itertools.product(("2", "64"), (10**9, 6 * 10**8)):
        value = pod(asking("a", mem=amount), annotations={names.ANNOTATION_GPUS: gpus})
        assert isinstance(mutation.mutate(value, RULES), Denied)
