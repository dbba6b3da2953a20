"""An author who misspells a resource is told at once, not by a pod that waits for ever."""

from collections.abc import Mapping

import pytest

from gpushare.resource_config import ResourceConfig
from gpushare.wire import misspelt
from testing.reviews import RULES, Json, asking, container, pod
from webhook import mutation
from webhook.mutation import Mutated
from webhook.rules import Rules


def limits(amounts: Mapping[str, object], name: str = "a") -> Json:
    return container(name, resources={"limits": dict(amounts)})


def warnings(value: Json, rules: Rules = RULES) -> tuple[str, ...]:
    decision = mutation.mutate(value, rules)
    assert isinstance(decision, Mutated), decision
    return decision.warnings


@pytest.mark.parametrize(
    ("resource", "meant"),
    [
        ("aliyun.com/gpu-memory", "aliyun.com/gpu-mem"),
        ("aliyun.com/gpumem", "aliyun.com/gpu-mem"),
        ("nano-gpu/gpu-percentage", "nano-gpu/gpu-percent"),
    ],
)
def test_the_author_of_a_misspelt_resource_is_told_what_was_meant(resource: str, meant: str) -> None:
    text = f"container a: gpushare does not know {resource} and gives no GPU for it; do you mean {meant}?"
    assert warnings(pod(limits({"cpu": "1", resource: "3"}))) == (text,)
    assert warnings(pod(asking("b", mem=1), init=[limits({resource: "3"})])) == (text,)


def test_resources_of_others_need_no_word() -> None:
    assert warnings(pod(limits({"cpu": 1, "example.com/x": 1, "nvidia.com/gpumem": 1}))) == ()
    rules = Rules(resource_config=RULES.resource_config, foreign_resources=("aliyun.com/gpu-memory",))
    assert warnings(pod(container("x"), limits({"aliyun.com/gpu-memory": 1})), rules) == ()


def test_of_many_a_few_are_compared_and_told(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[str] = []

    def counted(resource: str, resource_config: ResourceConfig) -> str | None:
        compared.append(resource)
        return "aliyun.com/gpu-mem" if resource.startswith("aliyun.com/") else None

    monkeypatch.setattr(misspelt, "meant", counted)
    assert len(warnings(pod(limits({f"aliyun.com/gpumem{i}": 1 for i in range(10_000)})))) == 8
    assert len(compared) <= 9
    compared.clear()
    assert warnings(pod(limits({f"example.com/x{i}": 1 for i in range(10_000)}))) == ()
    assert len(compared) == 64
