"""Pods that ask for no share: kept away from GPUs, and otherwise left alone."""

from dataclasses import replace
from typing import Any

import pytest

from testing.reviews import ALL, RULES, VOID, Json, asking, container, debugged, mutated, pod, warnings
from webhook import mutation
from webhook.mutation import Patched

TAKEN = "NVIDIA_VISIBLE_DEVICES is set by gpushare to no GPU, because it asks for none; 'all' was removed"
OTHER = {"name": "X", "value": "1"}


def env_of(*env: Json, **fields: Any) -> list[Json]:
    [found] = mutated(pod(container(env=list(env), **fields)))["spec"]["containers"]
    return list(found["env"])


def test_every_container_is_isolated_once_and_nothing_else_changes() -> None:
    before = pod(container("a"), container("b", env=[ALL]), init=[container("i", env=None)], schedulerName="mine")
    isolated = [container(name, env=[VOID]) for name in "abi"]
    after = {**before["spec"], "containers": isolated[:2], "initContainers": isolated[2:]}
    assert mutated(before) == {**before, "spec": after}
    assert warnings(before) == (f"container b: {TAKEN}",)
    assert mutation.mutate(pod(container(env=[OTHER, VOID]), nodeName="n1"), RULES) is None


@pytest.mark.parametrize(
    "env",
    [
        [VOID, VOID],
        [VOID, ALL],
        [{**VOID, "value": "none"}],
        [{**VOID, "value": ""}],
        [{"name": VOID["name"], "valueFrom": {"configMapKeyRef": {"name": "c", "key": "k"}}}],
        [{**VOID, "value": 3}],
        [],
    ],
)
def test_one_entry_says_void_whatever_was_there(env: list[Json]) -> None:
    assert env_of(*env) == [VOID]


def test_a_name_that_is_no_string_and_a_source_of_variables_stay_beside_our_entry() -> None:
    for name in [None, 1, ["A"], {"A": "A"}]:
        odd = {"name": name, "value": "1"}
        assert env_of(odd) == [VOID, odd]
    sources = [{"configMapRef": {"name": "gpus"}}]
    assert mutated(pod(container(envFrom=sources)))["spec"]["containers"] == [container(envFrom=sources, env=[VOID])]


@pytest.mark.parametrize(
    "resources",
    [
        {"limits": {"nvidia.com/gpu": 2}},
        {"requests": {"nvidia.com/mig-1g.5gb": "1"}},
        {"limits": {"cpu": "1", "nvidia.com/gpu.shared": "1k"}},
    ],
)
def test_a_container_of_nvidias_plugin_is_left_to_that_plugin(resources: Json) -> None:
    """Neither void, which would beat the plugin's choice, nor the author's value, which would too."""
    assert env_of(OTHER, ALL, resources=resources) == [OTHER]
    assert mutation.mutate(pod(container(env=[OTHER], resources=resources)), RULES) is None


def test_only_plugins_that_choose_devices_are_left_to_do_so() -> None:
    """Another one, say for network cards, sets no variable, and the image's "all" would count."""
    for name in ["hostdev", "rdma", "gpu2", "gpu.sharedx", "mig"]:
        assert env_of(ALL, resources={"limits": {f"nvidia.com/{name}": "1"}}) == [VOID]
    for amount in ["0", 0, "0.0", "0m", "-1", -1, "", True, None, [1], "x"]:
        assert env_of(ALL, resources={"limits": {"nvidia.com/gpu": amount}}) == [VOID]


@pytest.mark.parametrize(
    ("resources", "is_ours"), [(RULES.foreign_resources, False), (("vendor.example/*",), True), ((), False)]
)
def test_which_plugins_there_are_is_a_setting(resources: tuple[str, ...], is_ours: bool) -> None:
    asks = pod(container(resources={"limits": {"vendor.example/gpu": "1"}}))
    assert (mutation.mutate(asks, replace(RULES, foreign_resources=resources)) is None) == is_ours


def test_a_forged_binding_and_the_label_are_stripped() -> None:
    notes, marks = {"devices.gpushare.dev/a": "GPU-1", "keep": "me"}, {"gpushare.dev/managed": "true", "app": "x"}
    after = mutated(pod(container(env=[VOID]), annotations=notes, labels=marks))["metadata"]
    assert (after["annotations"], after["labels"]) == ({"keep": "me"}, {"app": "x"})


def test_new_ephemeral_containers_are_isolated_and_those_that_were_there_stay_as_they_are() -> None:
    old, new = container("old", env=[ALL]), {**asking("d", mem=3), "env": [ALL]}
    decision = mutation.mutate_ephemeral(debugged(old, new), debugged(old))
    assert decision == Patched(debugged(old, {**new, "env": [VOID]}), (f"container d: {TAKEN}",))
    cases: list[Json] = [{}, {"ephemeralContainers": None}, {"ephemeralContainers": []}]
    for spec in cases:
        assert mutation.mutate_ephemeral(pod(container("a"), **spec), pod(container("a"))) is None


@pytest.mark.parametrize("key", ["cdi.k8s.io/sly", "nvidia.cdi.k8s.io/pod", "nvidia.cdi.k8s.io/container.a"])
@pytest.mark.parametrize("asked", [container(env=[VOID]), asking(mem=3)])
def test_devices_chosen_by_cdi_annotations_are_removed_with_a_warning(asked: Json, key: str) -> None:
    before = pod(asked, annotations={key: "nvidia.com/gpu=all", "team": "a"})
    assert mutated(before)["metadata"]["annotations"] == {"team": "a"}
    assert warnings(before) == (f"annotations removed, because they choose devices past the scheduler: {key}",)
