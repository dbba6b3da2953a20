"""What the API server refuses by itself: annotations by which runtimes and NVIDIA's NRI plugin choose devices."""

from typing import Any

import pytest

from gpushare import names
from testing.manifests import tree
from testing.manifests.tree import Json
from testing.reviews import container, pod
from tests.manifests import cel

NEW = tree.objects("servers/1.30")
POLICY = tree.one(NEW, "ValidatingAdmissionPolicy", names.CDI_POLICY)["spec"]
MESSAGE = "annotations of cdi.k8s.io or one of its subdomains choose devices past the scheduler; remove them"
KEYS = [
    *("cdi.k8s.io/x", "cdi.k8s.io/vendor-class_x", "nvidia.cdi.k8s.io/pod", "nvidia.cdi.k8s.io/container.main"),
    *("nvidia.cdi.k8s.io/pod.x", "a.b.cdi.k8s.io/x"),
]
OTHERS = ["x", "cdi.k8s.io", "notcdi.k8s.io/x", "cdi.k8s.io.example.com/x", "k8s.io/cdi.k8s.io", "team"]


def noted(**annotations: str) -> Json:
    return pod(container("a"), annotations=annotations)


def refusals(obj: Json, old: Json | None = None) -> list[str]:
    scope: dict[str, Any] = {"object": obj, "request": {"operation": "CREATE" if old is None else "UPDATE"}}
    return cel.refusals(POLICY, scope if old is None else {**scope, "oldObject": old})


def test_it_is_asked_at_every_door_that_writes_annotations_of_a_pod() -> None:
    asked = {
        (operation, resource)
        for rule in POLICY["matchConstraints"]["resourceRules"]
        for operation in rule["operations"]
        for resource in rule["resources"]
    }
    assert asked == {
        *(("CREATE", each) for each in ("pods", "pods/binding", "bindings")),
        *(("UPDATE", each) for each in ("pods", "pods/status", "pods/ephemeralcontainers", "pods/resize")),
    }
    assert (POLICY["failurePolicy"], POLICY.get("matchConditions")) == ("Fail", None)


def test_very_many_annotations_cost_an_api_server_little(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every pod of the cluster comes here, and its status every time that it changes."""
    evaluated, evaluate = list[None](), cel._value

    def counted(*arguments: Any) -> Any:
        evaluated.append(None)
        return evaluate(*arguments)

    monkeypatch.setattr(cel, "_value", counted)
    many = noted(**{f"a{i}": "" for i in range(1000)})
    assert refusals(many, many) == []
    assert len(evaluated) < 100
    assert refusals(many) == []
    assert len(evaluated) < 1000 * 5
    changed = noted(**many["metadata"]["annotations"], b="")
    assert refusals(changed, many) == []
    assert len(evaluated) < 2 * 1000 * 5


@pytest.mark.parametrize("key", KEYS)
def test_devices_by_cdi_are_refused(key: str) -> None:
    assert names.is_cdi(key)
    assert refusals(noted(**{"a": "b", key: "nvidia.com/gpu=all"})) == [MESSAGE]
    binding = {"metadata": {"name": "p", "annotations": {key: "nvidia.com/gpu=0"}}, "target": {"name": "node-a"}}
    assert refusals(binding) == [MESSAGE]
    for before in (pod(container("a")), noted(x="y"), noted(**{key: "other"})):
        assert refusals(noted(**{"a": "b", key: "nvidia.com/gpu=all"}), before) == [MESSAGE]


@pytest.mark.parametrize("key", KEYS)
def test_what_was_there_before_may_stay_or_go(key: str) -> None:
    before = noted(**{key: "x"})
    for after in (before, noted(**{key: "x", "a": "b"}), noted(a="b"), pod(container("a"))):
        assert refusals(after, before) == []


@pytest.mark.parametrize("key", OTHERS)
def test_other_annotations_pass(key: str) -> None:
    assert not names.is_cdi(key)
    assert refusals(noted(**{key: "x"})) == []
    assert refusals(noted(**{key: "x"}), pod(container("a"))) == []
    assert refusals({"metadata": {"name": "p"}, "target": {"name": "node-a"}}) == []
