"""What admission writes into pods that ask for a share."""

import pytest

from gpushare.resource_config import ResourceConfig
from gpushare.units import MemoryUnit
from testing.reviews import ALL, PLAIN, RULES, VOID, container, from_annotation, mutated, pod, values, visible, warnings
from webhook import mutation
from webhook.mutation import Mutated
from webhook.rules import Rules

MIBS = Rules(resource_config=ResourceConfig(unit=MemoryUnit(1)))


def test_a_container_gets_all_variables_before_those_of_its_author() -> None:
    result = mutated(pod(container("main", "3", env=[{"name": "X", "value": "$(NVIDIA_VISIBLE_DEVICES)"}])))
    assert result["spec"]["containers"][0]["env"] == [
        visible("main"),
        from_annotation("GPUSHARE_MEMORY_MIB", "memory.gpushare.dev/main"),
        from_annotation("ALIYUN_COM_GPU_MEM_IDX", "index.gpushare.dev/main"),
        from_annotation("ALIYUN_COM_GPU_MEM_DEV", "capacity.gpushare.dev/main"),
        {"name": "ALIYUN_COM_GPU_MEM_CONTAINER", "value": "3"},
        {"name": "ALIYUN_COM_GPU_MEM_POD", "value": "3"},
        {"name": "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "value": "0=3072M"},
        {"name": "NVIDIA_DRIVER_CAPABILITIES", "value": "compute,utility"},
        {"name": "X", "value": "$(NVIDIA_VISIBLE_DEVICES)"},
    ]


def test_a_pod_gets_scheduler_runtime_class_and_label() -> None:
    result = mutated(pod(container("a", "3"), schedulerName="default-scheduler"))
    assert result["spec"]["schedulerName"] == "gpushare-scheduler"
    assert result["spec"]["runtimeClassName"] == "nvidia"
    assert result["metadata"]["labels"] == {"gpushare.dev/managed": "true"}
    assert "annotations" not in result["metadata"]


def test_what_the_author_chose_is_kept() -> None:
    result = mutated(pod(container("a", "3"), schedulerName="mine", runtimeClassName="other", labels={"app": "x"}))
    assert (result["spec"]["schedulerName"], result["spec"]["runtimeClassName"]) == ("mine", "other")
    assert result["metadata"]["labels"] == {"app": "x", "gpushare.dev/managed": "true"}


def test_scheduler_and_runtime_class_are_left_out_where_the_rules_say_so() -> None:
    result = mutated(pod(container("a", "3"), schedulerName="default-scheduler"), PLAIN)
    assert result["spec"]["schedulerName"] == "default-scheduler"
    assert "runtimeClassName" not in result["spec"]


@pytest.mark.parametrize(
    "name",
    [
        "NVIDIA_VISIBLE_DEVICES",
        "GPUSHARE_MEMORY_MIB",
        "ALIYUN_COM_GPU_MEM_IDX",
        "ALIYUN_COM_GPU_MEM_DEV",
        "ALIYUN_COM_GPU_MEM_CONTAINER",
        "ALIYUN_COM_GPU_MEM_POD",
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT",
    ],
)
def test_grants_are_not_the_authors_to_write(name: str) -> None:
    forged = [{"name": name, "value": "forged"}, {"name": "X", "value": "1"}, {"name": name, "value": "again"}]
    env = mutated(pod(container("a", "3", env=forged)))["spec"]["containers"][0]["env"]
    assert [entry.get("value") for entry in env if entry["name"] == name] not in (["forged"], ["again"])
    assert len([entry for entry in env if entry["name"] == name]) == 1
    assert env[-1] == {"name": "X", "value": "1"}


def test_driver_capabilities_are_the_authors_to_write() -> None:
    env = [{"name": "NVIDIA_DRIVER_CAPABILITIES", "value": "all"}]
    assert (
        values(mutated(pod(container("a", "3", env=env)))["spec"]["containers"][0])["NVIDIA_DRIVER_CAPABILITIES"]
        == "all"
    )


def test_requests_become_equal_to_limits() -> None:
    result = mutated(pod(container("a", "3")))
    assert result["spec"]["containers"][0]["resources"] == {
        "limits": {"aliyun.com/gpu-mem": "3"},
        "requests": {"aliyun.com/gpu-mem": "3"},
    }


def test_other_resources_are_kept() -> None:
    resources = {
        "limits": {"aliyun.com/gpu-mem": "3", "cpu": "2"},
        "requests": {"aliyun.com/gpu-mem": "3", "cpu": "1"},
        "claims": [],
    }
    assert mutated(pod(container("a", resources=resources)))["spec"]["containers"][0]["resources"] == resources


def test_the_per_gpu_form_is_multiplied_once() -> None:
    result = mutated(pod(container("a", "5"), annotations={"gpushare.dev/gpus": "4"}))
    first = result["spec"]["containers"][0]
    assert first["resources"]["limits"] == first["resources"]["requests"] == {"aliyun.com/gpu-mem": "20"}
    assert result["metadata"]["annotations"] == {"gpushare.dev/gpus": "4", "gpushare.dev/limits-are-totals": "true"}
    assert values(first)["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "0=5120M,1=5120M,2=5120M,3=5120M"
    assert values(first)["ALIYUN_COM_GPU_MEM_CONTAINER"] == "20"
    assert mutation.mutate(result, RULES) == mutation.Untouched()


def test_an_amount_that_the_api_server_shortened_is_understood() -> None:
    result = mutated(pod(container("a", "16k"), annotations={"gpushare.dev/gpus": "2"}), MIBS)
    assert result["spec"]["containers"][0]["resources"]["limits"] == {"aliyun.com/gpu-mem": "32000"}
    result["spec"]["containers"][0]["resources"] = {
        "limits": {"aliyun.com/gpu-mem": "32k"},
        "requests": {"aliyun.com/gpu-mem": "32k"},
    }
    assert mutation.mutate(result, MIBS) == mutation.Untouched()


def test_the_total_form_is_split_and_not_multiplied() -> None:
    first = mutated(pod(container("a", "6"), labels={"aliyun.com/gpu-count": "2"}))["spec"]["containers"][0]
    assert first["resources"]["limits"] == {"aliyun.com/gpu-mem": "6"}
    assert values(first)["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "0=3072M,1=3072M"
    assert values(first)["ALIYUN_COM_GPU_MEM_CONTAINER"] == "6"


def test_every_container_is_told_its_own_share_and_the_pods() -> None:
    result = mutated(pod(container("a", "3"), container("b", "4"), init=[container("i", "2")]))
    every = [*result["spec"]["initContainers"], *result["spec"]["containers"]]
    assert [values(one)["ALIYUN_COM_GPU_MEM_CONTAINER"] for one in every] == ["2", "3", "4"]
    assert {values(one)["ALIYUN_COM_GPU_MEM_POD"] for one in every} == {"9"}
    assert [one["env"][0] for one in every] == [visible("i"), visible("a"), visible("b")]


def test_a_unit_of_mebibytes_is_written_as_such() -> None:
    first = mutated(pod(container("a", "3")), Rules(resource_config=ResourceConfig(unit=MemoryUnit(256))))["spec"][
        "containers"
    ][0]
    assert values(first)["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "0=768M"


def test_containers_that_ask_for_nothing_see_no_gpu() -> None:
    sidecar = container("s", restartPolicy="Always", env=[ALL])
    result = mutated(pod(container("a", "3"), container("log", env=[{"name": "X", "value": "1"}, ALL]), init=[sidecar]))
    assert result["spec"]["initContainers"][0]["env"] == [VOID]
    assert result["spec"]["containers"][1]["env"] == [VOID, {"name": "X", "value": "1"}]


def test_a_container_of_another_plugin_is_left_to_that_plugin() -> None:
    other = container("n", env=[ALL], resources={"limits": {"nvidia.com/gpu": "1"}})
    assert mutated(pod(container("a", "3"), other))["spec"]["containers"][1] == {**other, "env": []}


def test_forged_annotations_are_stripped_and_named() -> None:
    forged = {
        "devices.gpushare.dev/a": "GPU-1",
        "ALIYUN_COM_GPU_MEM_IDX": "0",
        "gpushare.dev/allocation": "{}",
        "nano-gpu/container-a": "0",
        "scheduler.framework.gpushare.allocation": "{}",
        "keep": "me",
    }
    decision = mutation.mutate(pod(container("a", "3"), annotations=forged), RULES)
    assert isinstance(decision, Mutated)
    assert decision.pod["metadata"]["annotations"] == {"keep": "me"}
    assert decision.warnings == (
        "annotations removed, because only gpushare-controller may write them: ALIYUN_COM_GPU_MEM_IDX,"
        " devices.gpushare.dev/a, gpushare.dev/allocation, nano-gpu/container-a,"
        " scheduler.framework.gpushare.allocation",
    )


def test_the_author_is_told_whose_devices_were_replaced() -> None:
    result = warnings(pod(container("a", "3", env=[ALL]), container("b", env=[{**ALL, "value": "0" * 60}])))
    assert result == (
        "container a: NVIDIA_VISIBLE_DEVICES is set by gpushare to the GPUs that it is granted; 'all' was removed",
        "container b: NVIDIA_VISIBLE_DEVICES is set by gpushare to no GPU, because it asks for none;"
        " its value was removed",
    )


def test_the_author_is_told_what_privilege_means() -> None:
    privileged = {"securityContext": {"privileged": True}}
    result = warnings(pod(container("a", "3", **privileged), container("b", securityContext={"privileged": False})))
    assert result == ("container a is privileged: it can reach all GPUs of its node, not only those granted to it",)


def test_the_author_is_told_that_a_container_gets_only_one_plugins_gpus() -> None:
    resources = {"limits": {"aliyun.com/gpu-mem": "3", "nvidia.com/gpu": "1"}}
    assert warnings(pod(container("a", resources=resources))) == (
        "container a asks for aliyun.com/gpu-mem and for another plugin's GPUs (nvidia.com/gpu);"
        " it will see only those of the former",
    )


@pytest.mark.parametrize("length", [1, 30, 63, 300])
def test_warnings_stay_within_what_kubernetes_shows_whole(length: int) -> None:
    name = "c" * length
    forged = {f"devices.gpushare.dev/{name}{i}": "x" for i in range(5)}
    both = {"limits": {"aliyun.com/gpu-mem": "3", "nvidia.com/gpu": "1"}}
    privileged = container(name, env=[ALL], resources=both, securityContext={"privileged": True})
    lengths = [len(warning) for warning in warnings(pod(privileged, annotations=forged))]
    assert 0 < max(lengths) <= 256


def test_the_pod_that_was_sent_is_not_changed() -> None:
    sent = pod(container("a", "3", env=[ALL]), annotations={"devices.gpushare.dev/a": "x"})
    copy = pod(
        container("a", "3", env=[{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]),
        annotations={"devices.gpushare.dev/a": "x"},
    )
    mutated(sent)
    assert sent == copy


def test_a_pod_without_metadata_gets_its_label() -> None:
    assert mutated({"spec": {"containers": [container("a", 3)]}})["metadata"] == {
        "labels": {"gpushare.dev/managed": "true"}
    }
