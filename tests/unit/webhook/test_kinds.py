"""What each way of asking gets: parts of a GPU, compute beside memory, whole GPUs."""

import base64
from typing import Any

import orjson
import pytest

from testing.reviews import (
    ALL,
    RULES,
    VOID,
    WHOLE,
    Json,
    asking,
    container,
    from_annotation,
    pod,
    review,
    values,
    visible,
)
from webhook import admission, mutation
from webhook import review as reviews
from webhook.mutation import Mutated, Untouched
from webhook.rules import Rules

CAPABILITIES = {"name": "NVIDIA_DRIVER_CAPABILITIES", "value": "compute,utility"}
MEMORY = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
THREADS = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"


def mutated(value: Json, rules: Rules = WHOLE) -> Any:
    decision = mutation.mutate(value, rules)
    assert isinstance(decision, Mutated), decision
    return decision.pod


def first(value: Json, rules: Rules = WHOLE) -> Any:
    return mutated(value, rules)["spec"]["containers"][0]


def test_a_part_of_a_gpu_gets_limits_that_follow_the_gpu() -> None:
    """The kubelet puts the amount in, from the entry that stands before."""
    own = {"name": "X", "value": "$(GPUSHARE_MEMORY_MIB)"}
    assert first(pod({**asking("main", percent=20), "env": [own]}))["env"] == [
        visible("main"),
        from_annotation("GPUSHARE_MEMORY_MIB", "memory.gpushare.dev/main"),
        {"name": MEMORY, "value": "0=$(GPUSHARE_MEMORY_MIB)M"},
        {"name": THREADS, "value": "20"},
        CAPABILITIES,
        own,
    ]


def test_a_pod_with_parts_of_gpus_carries_nano_gpus_label() -> None:
    result = mutated(pod(asking(percent=20), labels={"app": "x"}))
    assert result["metadata"]["labels"] == {
        "app": "x",
        "gpushare.dev/managed": "true",
        "nano-gpu/assume": "true",
    }
    assert "nano-gpu/assume" not in mutated(pod(asking(mem=3)))["metadata"]["labels"]
    assert mutated(pod(asking(percent=20), labels={"nano-gpu/assume": "no"}))["metadata"]["labels"] == {
        "gpushare.dev/managed": "true",
        "nano-gpu/assume": "true",
    }


def test_a_label_that_a_workload_selects_by_is_left_on_pods_of_other_kinds() -> None:
    """Without it a ReplicaSet would not know its own pods again, and make new ones without end."""
    labels = {"nano-gpu/assume": "true"}
    assert mutated(pod(asking(mem=3), labels=labels))["metadata"]["labels"].items() >= labels.items()
    assert mutated(pod(container(), labels=labels))["metadata"]["labels"] == labels


def test_compute_beside_memory_is_one_variable_more() -> None:
    plain, more = first(pod(asking("a", mem=3))), first(pod(asking("a", mem=3, core=30)))
    assert more["env"] == [*plain["env"][:-1], {"name": THREADS, "value": "30"}, CAPABILITIES]
    assert more["resources"] == {
        "limits": {"aliyun.com/gpu-mem": 3, "aliyun.com/gpu-core.percentage": 30},
        "requests": {"aliyun.com/gpu-mem": 3, "aliyun.com/gpu-core.percentage": 30},
    }


def test_whole_gpus_have_no_limits() -> None:
    found = first(pod(asking("main", gpu=2)))
    assert found["env"] == [visible("main"), CAPABILITIES]
    assert found["resources"] == {"limits": {"nvidia.com/gpu": 2}, "requests": {"nvidia.com/gpu": 2}}


def test_what_the_author_of_a_whole_gpu_tunes_is_kept() -> None:
    own = [{"name": THREADS, "value": "50"}, {"name": MEMORY, "value": "0=1G"}]
    assert first(pod({**asking("main", gpu=1), "env": own}))["env"] == [visible("main"), CAPABILITIES, *own]


@pytest.mark.parametrize("asked", [{"percent": 20}, {"mem": 3, "core": 20}])
@pytest.mark.parametrize("name", [MEMORY, THREADS, "NVIDIA_VISIBLE_DEVICES"])
def test_limits_are_not_the_authors_to_write(name: str, asked: dict[str, int]) -> None:
    found = first(pod({**asking("a", **asked), "env": [{"name": name, "value": "forged"}, ALL]}))
    assert len([entry for entry in found["env"] if entry["name"] == name]) == 1
    assert "forged" not in values(found).values()


def test_the_memory_of_a_part_is_not_the_authors_to_write() -> None:
    forged = {"name": "GPUSHARE_MEMORY_MIB", "value": "80000"}
    found = first(pod({**asking("a", percent=20), "env": [forged]}))
    assert forged not in found["env"]


def test_whole_gpus_are_other_plugins_unless_an_administrator_says_otherwise() -> None:
    asked = pod({**asking("main", gpu=1), "env": [ALL]})
    decision = mutation.mutate(asked, RULES)
    assert isinstance(decision, Mutated)
    assert decision.pod["spec"] == {"containers": [{**asking("main", gpu=1), "env": []}]}
    assert "labels" not in decision.pod["metadata"]
    assert mutated(asked)["metadata"]["labels"] == {"gpushare.dev/managed": "true"}


@pytest.mark.parametrize("resource", ["nvidia.com/mig-1g.5gb", "nvidia.com/gpu.shared"])
def test_other_resources_of_nvidia_stay_foreign_beside_whole_gpus(resource: str) -> None:
    foreign = container("m", env=[ALL], resources={"limits": {resource: "1"}})
    assert mutation.mutate(pod(container(resources={"limits": {resource: "1"}})), WHOLE) == Untouched()
    result = mutated(pod(asking("a", gpu=1), foreign))
    assert result["spec"]["containers"][1] == {**foreign, "env": []}


def test_a_whole_gpu_beside_a_mig_slice_in_one_container_is_explained() -> None:
    both = container("a", resources={"limits": {"nvidia.com/gpu": 1, "nvidia.com/mig-1g.5gb": 1}})
    decision = mutation.mutate(pod(both), WHOLE)
    assert isinstance(decision, Mutated)
    assert decision.warnings == (
        "container a asks for nvidia.com/gpu and for another plugin's GPUs (nvidia.com/mig-1g.5gb);"
        " it will see only those of the former",
    )


def test_containers_of_one_pod_may_ask_in_different_ways() -> None:
    init = asking("i", percent=50)
    result = mutated(pod(asking("a", mem=3), asking("b", gpu=1), container("c"), init=[init]))
    got = {each["name"]: each for each in (*result["spec"]["initContainers"], *result["spec"]["containers"])}
    assert [got[name]["env"][0] for name in "iab"] == [visible("i"), visible("a"), visible("b")]
    assert got["c"]["env"] == [VOID]
    assert values(got["a"])["ALIYUN_COM_GPU_MEM_POD"] == "3"  # gpu-mem only: the rest is known when the GPU is
    assert (THREADS in values(got["i"]), THREADS in values(got["a"])) == (True, False)
    assert result["metadata"]["labels"]["nano-gpu/assume"] == "true"


def test_only_gpu_mem_is_multiplied_by_the_per_gpu_form() -> None:
    result = mutated(pod(asking("a", mem=5), asking("b", gpu=2), annotations={"gpushare.dev/gpus": "4"}))
    limits = [each["resources"]["limits"] for each in result["spec"]["containers"]]
    assert limits == [{"aliyun.com/gpu-mem": "20"}, {"nvidia.com/gpu": 2}]
    assert mutation.mutate(result, WHOLE) == Untouched()


ASKED = [
    pod(asking(percent=20)),
    pod(asking(percent="100"), asking("b", mem=2, core="7")),
    pod(asking(gpu=1)),
    pod({**asking(gpu=8), "env": [ALL]}, container("side")),
    pod(asking(percent=1), init=[{**asking("i", percent=5), "restartPolicy": "Always"}], labels={"app": "x"}),
]


@pytest.mark.parametrize("asked", ASKED)
def test_mutating_again_changes_nothing(asked: Json) -> None:
    assert mutation.mutate(mutated(asked), WHOLE) == Untouched()


@pytest.mark.parametrize("asked", ASKED)
def test_a_sidecar_that_another_webhook_adds_is_all_that_changes_then(asked: Json) -> None:
    """Reinvocation: the API server asks again when another webhook has changed the pod."""
    once = mutated(asked)
    once["spec"]["containers"].append(container("injected", env=[ALL]))
    assert operations(once) == [
        {
            "op": "replace",
            "path": f"/spec/containers/{len(once['spec']['containers']) - 1}/env/0/value",
            "value": "void",
        },
        *mark(once),
    ]


def mark(once: Json) -> list[Json]:
    """The operation that notes the injected container."""
    before = once["metadata"].get("annotations")
    if before is None:
        return [{"op": "add", "path": "/metadata/annotations", "value": {"gpushare.dev/overridden": "injected"}}]
    value = f"{before['gpushare.dev/overridden']},injected"
    return [{"op": "replace", "path": "/metadata/annotations/gpushare.dev~1overridden", "value": value}]


def operations(value: Json, rules: Rules = WHOLE) -> Any:
    """The patch that is sent, without regard to the order of its independent parts."""
    body = reviews.parse(orjson.dumps(review(value)))
    decision = admission.mutate(body, rules)
    assert isinstance(decision, Mutated)
    answer = reviews.patched(body, decision.pod, decision.warnings)["response"]
    return sorted(orjson.loads(base64.b64decode(answer["patch"])), key=lambda each: str(each["path"]), reverse=True)


def test_the_patch_touches_only_what_changes() -> None:
    asked = pod(asking("a", percent=20, requests={"percent": 20}), container("b", env=[VOID]), labels={"app": "x"})
    found = operations(asked)
    assert [(each["op"], each["path"]) for each in found] == [
        ("add", "/spec/schedulerName"),
        ("add", "/spec/runtimeClassName"),
        ("add", "/spec/containers/0/env"),
        ("add", "/metadata/labels/nano-gpu~1assume"),
        ("add", "/metadata/labels/gpushare.dev~1managed"),
    ]


def test_the_patch_of_a_whole_gpu_leaves_equal_requests_alone() -> None:
    found = operations(pod(asking("a", gpu="2", requests={"gpu": "2"}), schedulerName="mine", runtimeClassName="x"))
    assert [(each["op"], each["path"]) for each in found] == [
        ("add", "/spec/containers/0/env"),
        ("add", "/metadata/labels"),
    ]


@pytest.mark.parametrize("resources", [{"limits": {"nvidia.com/gpu": "0"}}, {"requests": {"nvidia.com/gpu": 0}}])
def test_no_whole_gpu_is_no_request_and_leaves_no_trace_for_the_scheduler(resources: Json) -> None:
    kept = {**next(iter(resources.values())), "cpu": "1"}
    value = pod({**container("main"), "resources": {next(iter(resources)): kept}})
    found = mutated(value)
    assert found["spec"]["containers"][0]["resources"] == {next(iter(resources)): {"cpu": "1"}}
    assert found["spec"]["containers"][0]["env"] == [VOID]
    assert "schedulerName" not in found["spec"]
    assert mutation.mutate(found, WHOLE) == Untouched()


def test_no_whole_gpu_beside_a_share_is_a_share() -> None:
    value = pod({**container("main"), "resources": {"limits": {"aliyun.com/gpu-mem": "3", "nvidia.com/gpu": "0"}}})
    assert first(value)["resources"]["limits"] == {"aliyun.com/gpu-mem": "3"}


def test_an_isolated_pod_that_asked_for_no_whole_gpu_loses_only_that() -> None:
    value = pod({**container("main"), "env": [VOID], "resources": {"limits": {"nvidia.com/gpu": "0"}}})
    assert first(value) == {**container("main"), "env": [VOID], "resources": {"limits": {}}}
