"""What admission writes into pods."""

from dataclasses import replace
from typing import Any

import pytest

from gpushare.units import MemoryUnit, ResourceConfig
from gpushare.wire import requests
from testing import reviews
from testing.reviews import (
    ALL,
    PLAIN,
    RULES,
    VOID,
    WHOLE,
    Json,
    admitted,
    asking,
    container,
    debugged,
    from_annotation,
    mutated,
    pod,
    values,
    visible,
    warnings,
)
from tests.unit.webhook.conftest import Webhook
from webhook import mutation, review
from webhook.edits import Rules
from webhook.mutation import Patched

MEMORY, THREADS = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
CAPABILITIES = {"name": "NVIDIA_DRIVER_CAPABILITIES", "value": "compute,utility"}
OVERRIDDEN = "gpushare.dev/overridden"
DEMANDING, ENFORCED = replace(RULES, demands_limit=True), {"gpushare.dev/limit": "enforced"}
SHARE = [
    visible("main"),
    from_annotation("GPUSHARE_MEMORY_MIB", "memory.gpushare.dev/main"),
    from_annotation("ALIYUN_COM_GPU_MEM_IDX", "index.gpushare.dev/main"),
    from_annotation("ALIYUN_COM_GPU_MEM_DEV", "capacity.gpushare.dev/main"),
    {"name": "ALIYUN_COM_GPU_MEM_CONTAINER", "value": "3"},
    {"name": "ALIYUN_COM_GPU_MEM_POD", "value": "3"},
    {"name": MEMORY, "value": "0=3072M"},
]
PART = [*SHARE[:2], {"name": MEMORY, "value": "0=$(GPUSHARE_MEMORY_MIB)M"}, {"name": THREADS, "value": "20"}]


def unit(mib: int) -> Rules:
    return replace(RULES, resource_config=ResourceConfig(unit=MemoryUnit(mib)))


def first(value: Json, rules: Rules = WHOLE) -> Any:
    return mutated(value, rules)["spec"]["containers"][0]


def marked(value: Json) -> str | None:
    found: str | None = mutated(value)["metadata"].get("annotations", {}).get(OVERRIDDEN)
    return found


@pytest.mark.parametrize(
    ("asked", "env"),
    [
        ({"mem": "3"}, SHARE),
        ({"mem": 3, "core": 30}, [*SHARE, {"name": THREADS, "value": "30"}]),
        ({"percent": 20}, PART),
        ({"gpu": 2}, SHARE[:1]),
    ],
)
def test_a_container_gets_the_variables_of_its_grant_before_those_of_its_author(asked: Json, env: list[Json]) -> None:
    own = {"name": "X", "value": "$(NVIDIA_VISIBLE_DEVICES)"}
    assert first(pod({**asking("main", **asked), "env": [own]}))["env"] == [*env, CAPABILITIES, own]
    forged = [{"name": each["name"], "value": value} for value in ("forged", "again") for each in env]
    assert first(pod({**asking("main", **asked), "env": [*forged, own, ALL]}))["env"] == [*env, CAPABILITIES, own]


def test_driver_capabilities_and_what_tunes_a_whole_gpu_are_the_authors_to_write() -> None:
    own = [{**CAPABILITIES, "value": "all"}, {"name": THREADS, "value": "50"}, {"name": MEMORY, "value": "0=1G"}]
    assert first(pod({**asking("main", gpu=1), "env": own}))["env"] == [visible("main"), *own]


def test_a_pod_gets_scheduler_runtime_class_and_label_where_its_author_and_the_rules_leave_them_open() -> None:
    result = mutated(pod(container("a", "3"), schedulerName="default-scheduler"))
    assert result["spec"]["schedulerName"] == "gpushare-scheduler"
    assert result["spec"]["runtimeClassName"] == "nvidia"
    assert result["metadata"]["labels"] == {"gpushare.dev/managed": "true"}
    assert "annotations" not in result["metadata"]
    assert mutated({"spec": {"containers": [container("a", 3)]}})["metadata"] == {
        "labels": {"gpushare.dev/managed": "true"}
    }
    result = mutated(pod(container("a", "3"), schedulerName="mine", runtimeClassName="other", labels={"app": "x"}))
    assert (result["spec"]["schedulerName"], result["spec"]["runtimeClassName"]) == ("mine", "other")
    assert result["metadata"]["labels"] == {"app": "x", "gpushare.dev/managed": "true"}
    result = mutated(pod(container("a", "3"), schedulerName="default-scheduler"), PLAIN)
    assert result["spec"]["schedulerName"] == "default-scheduler"
    assert "runtimeClassName" not in result["spec"]


def test_nano_gpus_label_is_written_on_its_pods_and_left_on_others() -> None:
    for labels in [{"app": "x"}, {"nano-gpu/assume": "no"}]:
        marks = {"gpushare.dev/managed": "true", "nano-gpu/assume": "true"}
        assert mutated(pod(asking(percent=20), labels=labels))["metadata"]["labels"] == {**labels, **marks}
    # Without it a ReplicaSet would not know its own pods again, and make new ones without end.
    labels = {"nano-gpu/assume": "true"}
    assert mutated(pod(asking(mem=3), labels=labels))["metadata"]["labels"].items() >= labels.items()
    assert mutated(pod(container(), labels=labels))["metadata"]["labels"] == labels


def test_requests_become_equal_to_limits_and_other_resources_are_kept() -> None:
    cases: list[Json] = [{"mem": "3"}, {"mem": 3, "core": 30}, {"gpu": 2}]
    for asked in cases:
        resources = first(pod(asking(**asked)))["resources"]
        assert resources == {key: asking(**asked)["resources"]["limits"] for key in ("limits", "requests")}
    resources = {
        "limits": {"aliyun.com/gpu-mem": "3", "cpu": "2"},
        "requests": {"aliyun.com/gpu-mem": "3", "cpu": "1"},
        "claims": [],
    }
    assert first(pod(container("a", resources=resources)))["resources"] == resources


def test_only_gpu_mem_is_multiplied_by_the_per_gpu_form_and_that_once() -> None:
    result = mutated(pod(asking("a", mem=5), asking("b", gpu=2), annotations={"gpushare.dev/gpus": "4"}), WHOLE)
    one, other = result["spec"]["containers"]
    assert one["resources"]["limits"] == one["resources"]["requests"] == {"aliyun.com/gpu-mem": "20"}
    assert other["resources"]["limits"] == {"nvidia.com/gpu": 2}
    assert result["metadata"]["annotations"] == {"gpushare.dev/gpus": "4", "gpushare.dev/limits-are-totals": "true"}
    assert values(one)[MEMORY] == "0=5120M,1=5120M,2=5120M,3=5120M"
    assert values(one)["ALIYUN_COM_GPU_MEM_CONTAINER"] == "20"
    assert mutation.mutate(result, WHOLE) is None
    result = mutated(pod(container("a", "16k"), annotations={"gpushare.dev/gpus": "2"}), unit(1))
    assert result["spec"]["containers"][0]["resources"]["limits"] == {"aliyun.com/gpu-mem": "32000"}
    short = {"aliyun.com/gpu-mem": "32k"}
    result["spec"]["containers"][0]["resources"] = {"limits": short, "requests": short}
    assert mutation.mutate(result, unit(1)) is None


def test_the_total_form_is_split_and_a_unit_of_mebibytes_written_as_such() -> None:
    found = first(pod(container("a", "6"), labels={"aliyun.com/gpu-count": "2"}))
    assert found["resources"]["limits"] == {"aliyun.com/gpu-mem": "6"}
    assert values(found)[MEMORY] == "0=3072M,1=3072M"
    assert values(found)["ALIYUN_COM_GPU_MEM_CONTAINER"] == "6"
    assert values(first(pod(container("a", "3")), unit(256)))[MEMORY] == "0=768M"


def test_every_container_is_told_its_own_share_and_the_pods() -> None:
    init = [container("i", "2"), container("s", restartPolicy="Always", env=[ALL])]
    result = mutated(pod(container("a", "3"), asking("b", mem=4), asking("c", percent=20), container("d"), init=init))
    every = {each["name"]: each for each in (*result["spec"]["initContainers"], *result["spec"]["containers"])}
    assert [values(every[name])["ALIYUN_COM_GPU_MEM_CONTAINER"] for name in "iab"] == ["2", "3", "4"]
    assert {values(every[name])["ALIYUN_COM_GPU_MEM_POD"] for name in "iab"} == {"9"}
    assert [every[name]["env"][0] for name in "iabc"] == [visible(name) for name in "iabc"]
    assert [every[name]["env"] for name in "sd"] == [[VOID], [VOID]]


def test_whole_gpus_are_other_plugins_unless_an_administrator_says_otherwise() -> None:
    asked = pod({**asking("main", gpu=1), "env": [ALL]})
    result = mutated(asked)
    assert result["spec"] == {"containers": [{**asking("main", gpu=1), "env": []}]}
    assert "labels" not in result["metadata"]
    assert mutated(asked, WHOLE)["metadata"]["labels"] == {"gpushare.dev/managed": "true"}
    for resource in ["nvidia.com/mig-1g.5gb", "nvidia.com/gpu.shared"]:
        foreign = container("m", env=[ALL], resources={"limits": {resource: "1"}})
        assert mutation.mutate(pod(container(resources={"limits": {resource: "1"}})), WHOLE) is None
        assert mutated(pod(asking("a", gpu=1), foreign), WHOLE)["spec"]["containers"][1] == {**foreign, "env": []}


def test_no_whole_gpu_is_no_request_and_leaves_no_trace_for_the_scheduler() -> None:
    cases: list[Json] = [{"limits": {"nvidia.com/gpu": "0"}}, {"requests": {"nvidia.com/gpu": 0}}]
    for resources in cases:
        [(field, amounts)] = resources.items()
        found = mutated(pod(container(resources={field: {**amounts, "cpu": "1"}})), WHOLE)
        assert found["spec"]["containers"][0] == container(resources={field: {"cpu": "1"}}, env=[VOID])
        assert "schedulerName" not in found["spec"]
        assert mutation.mutate(found, WHOLE) is None
        isolated = container(env=[VOID], resources=resources)
        assert first(pod(isolated)) == {**isolated, "resources": {field: {}}}
    assert first(pod(asking(mem="3", gpu="0")))["resources"]["limits"] == {"aliyun.com/gpu-mem": "3"}


def operations(value: Json) -> list[Json]:
    """The patch, without regard to the order of its independent parts."""
    return sorted(review.verified(value, mutated(value, WHOLE)), key=lambda each: str(each["path"]))


def test_a_sidecar_that_another_webhook_adds_is_all_that_changes_then() -> None:
    """Reinvocation: the API server asks again when another webhook has changed the pod."""
    once = mutated(pod(asking("a", percent=20), {**asking("b", gpu=1), "env": [ALL]}), WHOLE)
    once["spec"]["containers"].append(container("injected", env=[ALL]))
    assert operations(once) == [
        {"op": "replace", "path": "/metadata/annotations", "value": {"gpushare.dev/overridden": "b,injected"}},
        {"op": "replace", "path": "/spec/containers/2/env", "value": [VOID]},
    ]


def test_the_patch_touches_only_what_changes_and_leaves_the_pod_that_was_sent_alone() -> None:
    asked = pod(asking("a", percent=20, requests={"percent": 20}), container("b", env=[VOID]), labels={"app": "x"})
    assert [(each["op"], each["path"]) for each in operations(asked)] == [
        *(("replace", "/metadata/labels"), ("add", "/spec/containers/0/env"), ("add", "/spec/runtimeClassName")),
        ("add", "/spec/schedulerName"),
    ]
    asked = pod(asking("a", gpu="2", requests={"gpu": "2"}), schedulerName="mine", runtimeClassName="x")
    assert [each["path"] for each in operations(asked)] == ["/metadata/labels", "/spec/containers/0/env"]

    def sent() -> Json:
        return pod(container("a", "3", env=[{**ALL}]), annotations={"devices.gpushare.dev/a": "x"})

    asked = sent()
    mutated(asked)
    assert asked == sent()


def test_forged_annotations_are_stripped_and_named() -> None:
    forged = {
        "devices.gpushare.dev/a": "GPU-1",
        "ALIYUN_COM_GPU_MEM_IDX": "0",
        "gpushare.dev/allocation": "{}",
        "nano-gpu/container-a": "0",
        "scheduler.framework.gpushare.allocation": "{}",
        "keep": "me",
    }
    decision = admitted(pod(container("a", "3"), annotations=forged))
    assert decision.pod["metadata"]["annotations"] == {"keep": "me"}
    assert decision.warnings == (
        "annotations removed, because only gpushare-controller may write them: ALIYUN_COM_GPU_MEM_IDX,"
        " devices.gpushare.dev/a, gpushare.dev/allocation, nano-gpu/container-a,"
        " scheduler.framework.gpushare.allocation",
    )


@pytest.mark.parametrize("value", ["all", "none", "0", "", "void", "0" * 60])
def test_a_container_that_chose_its_devices_is_told_and_marked(value: str) -> None:
    asked = pod(container("a", "3", env=[{**ALL, "value": value}]))
    assert marked(asked) == "a"
    told = "its value" if len(value) > 40 else repr(value)
    assert warnings(asked) == (
        f"container a: NVIDIA_VISIBLE_DEVICES is set by gpushare to the GPUs that it is granted; {told} was removed",
    )


def test_every_container_whose_last_value_is_a_choice_is_in_the_mark_in_the_order_of_their_starts() -> None:
    foreign = container("n", env=[ALL], resources={"limits": {"nvidia.com/gpu": "1"}})
    silent = container("s", env=[VOID, {"name": "X", "value": "all"}])
    chosen = {**asking("a", mem=3), "env": [ALL]}
    asked = pod(chosen, asking("b", mem=1), foreign, silent, init=[container("i", env=[ALL])])
    assert marked(asked) == "i,a,n"
    assert warnings(asked)[-1] == (
        "container n: NVIDIA_VISIBLE_DEVICES is set by the plugin that serves its GPUs; 'all' was removed"
    )
    # It is the one that Kubernetes takes.
    for env, mark in [([{"name": "X", "value": "1"}], None), ([ALL, VOID], None), ([VOID, ALL], "b")]:
        assert marked(pod(asking(mem=3), container("b", env=env))) == mark


def test_the_mark_outlives_the_next_call_and_takes_in_what_another_webhook_adds() -> None:
    once = mutated(pod({**asking("a", mem=3), "env": [ALL]}, container("b", env=[ALL])))
    assert once["metadata"]["annotations"] == {OVERRIDDEN: "a,b"}
    assert mutation.mutate(once, RULES) is None
    once["spec"]["containers"].insert(0, container("injected", env=[ALL]))
    assert marked(once) == "injected,a,b"
    asked = pod({**asking("a", mem=3), "env": [ALL]}, asking("b", mem=1), annotations={OVERRIDDEN: "b"})
    assert marked(asked) == "a"


@pytest.mark.parametrize(
    ("key", "forged"),
    [*((OVERRIDDEN, each) for each in ("a", "b", "a,b", "x", "", ",,", "a\n,<b>")), ("gpushare.dev/hand-over", "cdi")],
)
@pytest.mark.parametrize("asked", [asking("a", mem=3), container("a")])
def test_an_author_cannot_write_a_mark(asked: Json, key: str, forged: str) -> None:
    value = pod(asked, container("b"), annotations={key: forged, "keep": "me"})
    assert mutated(value)["metadata"]["annotations"] == {"keep": "me"}
    assert warnings(value) == (f"annotation removed, because only gpushare-webhook may write it: {key}",)


def test_all_that_a_perfect_forgery_gets_is_a_mark_on_his_own_containers() -> None:
    asked = pod({**asking("a", mem=3), "env": [visible("a")]}, container("b"), annotations={OVERRIDDEN: "z,b,a"})
    assert marked(asked) == "a"
    assert warnings(asked) == ()


@pytest.mark.parametrize("before", [None, {}, {"x": "y"}, ENFORCED])
def test_a_gpu_pod_of_a_labelled_namespace_demands_an_enforced_limit(before: dict[str, str] | None) -> None:
    wanted = pod(asking("a", percent=20), container("b", env=[ALL]), annotations=before)
    other, made = admitted(wanted), admitted(wanted, DEMANDING)
    notes = {**other.pod["metadata"]["annotations"], **ENFORCED}
    assert made.pod == {**other.pod, "metadata": {**other.pod["metadata"], "annotations": notes}}
    assert made.warnings == other.warnings
    request = requests.of_pod(made.pod, ResourceConfig())
    assert request is not None
    assert request.shape.gpus.enforced
    # Called by the one after the other, in whichever order.
    assert mutation.mutate(made.pod, DEMANDING) is mutation.mutate(made.pod, RULES) is None
    assert before == ENFORCED or mutated(other.pod, DEMANDING) == made.pod


def test_a_pod_without_a_request_demands_nothing_and_no_author_asks_for_less(webhook: Webhook) -> None:
    assert mutated(pod(container("a", env=[ALL])), DEMANDING) == pod(container("a", env=[VOID]))
    [error] = reviews.refusals(pod(asking("a", mem=3), annotations={"gpushare.dev/limit": "advisory"}), DEMANDING)
    assert error.startswith("metadata.annotations[gpushare.dev/limit]: 'advisory' is no")
    # The API server sends reviews of such a namespace to a path of their own.
    asked = reviews.review(pod(asking("a", mem=3)))
    assert webhook.admit("/enforce", asked)["metadata"]["annotations"] == ENFORCED
    assert "annotations" not in webhook.admit("/mutate", asked)["metadata"]


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
