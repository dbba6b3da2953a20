"""What users, tools and pods of Aliyun gpushare, ACK and nano-gpu rely on: webhook, extender and API server in memory.

The kubelet's part is what Kubernetes documents: variables come from the pod's own annotations, and `$(NAME)` from
variables before them. Point 5, GPUs that Aliyun's ConfigMap calls unhealthy, is tested beside the wire and the watch;
point 6, what inspect prints, beside the command.
"""

import itertools
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import orjson
import pytest
import yaml

from deviceplugin import resources
from gpushare.identity import NodeName
from gpushare.kube.api import JsonObject
from gpushare.model.gpu import NodeInventory
from gpushare.units import GIB, ResourceConfig
from testing import granted, reviews
from testing.builders import make_gpu
from testing.controller.world import World, path_of

Json = dict[str, Any]
SEEDS = Path(__file__).parents[2] / "seeds"
RESOURCE_CONFIG = ResourceConfig(whole_gpus=True)
RULES = reviews.rules(resource_config=RESOURCE_CONFIG)
_NUMBERS = itertools.count()


def seed(name: str) -> Json:
    """A manifest of a user's guide as its author wrote it."""
    found: Json = yaml.safe_load((SEEDS / name).read_text(encoding="utf-8"))
    return found


def pod_of(manifest: Json) -> Json:
    template = manifest["spec"].get("template", manifest)
    return {"metadata": {**template.get("metadata", {})}, "spec": template["spec"]}


def make_pod(
    *limits: Mapping[str, object], labels: Mapping[str, str] | None = None, annotations: Mapping[str, str] | None = None
) -> Json:
    """A pod with a container c0, c1, ... for each of these limits."""
    containers = [
        {"name": f"c{i}", "image": "cuda", **({"resources": {"limits": dict(each)}} if each else {})}
        for i, each in enumerate(limits)
    ]
    return {
        "metadata": {"labels": dict(labels or {}), "annotations": dict(annotations or {})},
        "spec": {"containers": containers},
    }


def cluster(*nodes: tuple[int, ...]) -> World:
    """Nodes node-a, node-b, ... whose GPUs have so many GiB, and a controller that has read them."""
    world = World()
    world.start_controller(RESOURCE_CONFIG)
    for name, gib in zip("abcdefgh", nodes, strict=False):
        world.add_node(f"node-{name}", *gib)
    world.list_all()
    return world


def run(world: World, pod: Json, *nodes: str) -> JsonObject:
    """Create a pod, and do with it what kube-scheduler does; the pod as the API server has it then."""
    created = create(world, pod)
    fits = world.post("filter", {"Pod": created, "NodeNames": list(nodes or ["node-a"])})["NodeNames"]
    assert fits, "it fits nowhere"
    answer = world.bind(created, fits[0])
    assert not answer.error, answer
    world.see()
    return world.api.read(path_of(created))


def create(world: World, pod: Json) -> JsonObject:
    """The pod, waiting for a node."""
    intended = reviews.mutated(pod, RULES)
    metadata = {**intended["metadata"], "name": intended["metadata"].get("name") or f"pod-{next(_NUMBERS)}"}
    created = world.api.seed("/api/v1/namespaces/team/pods", {**intended, "metadata": metadata})
    world.see()
    return created


def environment(pod: JsonObject, container: str = "c0") -> Mapping[str, str]:
    """What a container's own variables are when its kubelet starts it."""
    [spec] = [each for each in pod["spec"]["containers"] if each["name"] == container]
    return granted.resolved(spec, pod["metadata"]["annotations"])


def of_version_1(annotations: Mapping[str, str]) -> dict[str, str]:
    prefix = "ALIYUN_COM_GPU_MEM_"
    return {key.removeprefix(prefix): value for key, value in annotations.items() if key.startswith(prefix)}


@pytest.mark.parametrize(
    ("gib", "gpu", "size"),
    [((7,), "0", "10"), ((9,), "0", "10"), ((15,), "1", "20"), ((4, 3), "0", "10")],
    ids=["small", "full", "only the second GPU", "two containers"],
)
def test_point_1_every_pod_on_one_gpu_has_the_annotations_of_version_1(
    gib: tuple[int, ...], gpu: str, size: str
) -> None:
    """Assigned from the beginning: the choice is final with the Binding, so nothing flips it later."""
    pod = run(cluster((10, 20)), make_pod(*[{MEM: amount} for amount in gib], {}))
    found = of_version_1(pod["metadata"]["annotations"])
    assumed = found.pop("ASSUME_TIME")
    assert found == {"IDX": gpu, "DEV": size, "POD": str(sum(gib)), "ASSIGNED": "true"}
    assert len(assumed) == 19, "nanoseconds"


def test_point_2_the_variables_have_the_same_names_and_units_and_the_size_is_of_the_real_gpu() -> None:
    """15 GiB fit the second GPU only; the former plugin would say 10, the size of the first."""
    variables = environment(run(cluster((10, 20)), make_pod({MEM: 15}, {MEM: 2})))
    assert of_version_1(variables) == {"IDX": "1", "POD": "17", "CONTAINER": "15", "DEV": "20"}
    assert variables["NVIDIA_VISIBLE_DEVICES"] == "GPU-1"


@pytest.mark.parametrize(
    ("model", "mib", "units"),
    [("T4", 15109, 14), ("V100-16G", 16160, 15), ("V100-16G", 16384, 16), ("A30", 24258, 23), ("H200", 143771, 140)],
)
def test_point_3_the_node_shows_whole_gib_of_each_gpu(model: str, mib: int, units: int) -> None:
    inventory = NodeInventory(node=NodeName("node-a"), gpus=(make_gpu(0, mib=mib), make_gpu(1, mib=mib)), unit=GIB)
    assert len(resources.devices(inventory, resources.MEMORY).healthy) == 2 * units


def ask(world: World, path: str, body: object) -> Any:
    response = world.client().post(path, orjson.dumps(body))
    assert response.status == 200, "kube-scheduler drops the body of any other"
    return orjson.loads(response.body)


@pytest.mark.parametrize("whole_nodes", [False, True], ids=["NodeNames", "Nodes"])
def test_point_4_configurations_of_the_former_scheduler_go_on_working(whole_nodes: bool) -> None:
    """The extender of seed 002's policy, with its paths, asked with whole nodes or with their names."""
    [extender] = json.loads((SEEDS / "policy.cfg").read_text(encoding="utf-8"))["extenders"]
    prefix = urlsplit(extender["urlPrefix"]).path
    world = cluster((10,), (2,))
    pod = create(world, make_pod({MEM: 3}))
    nodes = world.api.objects("/api/v1/nodes")
    asked = {"Nodes": {"items": nodes}} if whole_nodes else {"NodeNames": ["node-a", "node-b"]}
    found = ask(world, f"{prefix}/{extender['filterVerb']}", {"Pod": pod, **asked})
    fitting = [node["metadata"]["name"] for node in found["Nodes"]["items"]] if whole_nodes else found["NodeNames"]
    assert (fitting, list(found["FailedAndUnresolvableNodes"]), found["Error"]) == (["node-a"], ["node-b"], "")

    meta = pod["metadata"]
    binding = {"PodName": meta["name"], "PodNamespace": "team", "PodUID": meta["uid"], "Node": "node-a"}
    assert ask(world, f"{prefix}/{extender['bindVerb']}", binding) == {"Error": ""}
    for path in ("inspect", "inspect/node-a"):
        inspected = orjson.loads(world.client().get(f"{prefix}/{path}").body)["nodes"][0]
        assert (inspected["name"], inspected["totalGPU"], inspected["usedGPU"]) == ("node-a", 10, 3)
        assert inspected["devs"][0].keys() >= {"id", "totalGPU", "usedGPU", "pods"}


MEM, PERCENT = "aliyun.com/gpu-mem", "nano-gpu/gpu-percent"
ACK = "scheduler.framework.gpushare.allocation"


def running(limits: Json, annotations: Mapping[str, str], **fields: object) -> Json:
    """A pod of the former system: no one has changed its variables."""
    pod = make_pod(limits, annotations=annotations)
    pod["metadata"] |= {"name": "old", **fields}
    pod["spec"]["nodeName"] = "node-a"
    return {**pod, "status": {"phase": "Running"}}


FORMER = {
    "Aliyun": (running({MEM: 6}, {"ALIYUN_COM_GPU_MEM_IDX": "1", "ALIYUN_COM_GPU_MEM_POD": "6"}), {"GPU-1": 6}),
    "Aliyun, an annotation that its tenant changed": (
        running({MEM: 6}, {"ALIYUN_COM_GPU_MEM_IDX": "1", "ALIYUN_COM_GPU_MEM_POD": "1"}),
        {"GPU-1": 6},
    ),
    "ACK, two GPUs": (running({MEM: 8}, {ACK: '{"0":{"0":4,"1":4}}'}), {"GPU-0": 4, "GPU-1": 4}),
    "nano-gpu": (running({PERCENT: 50}, {"nano-gpu/assume": "true", "nano-gpu/container-c0": "1"}), {"GPU-1": 5}),
}


@pytest.mark.parametrize("name", FORMER)
def test_point_7_running_pods_of_the_former_system_are_counted(name: str) -> None:
    pod, held = FORMER[name]
    world = cluster((10, 10))
    world.api.seed("/api/v1/namespaces/team/pods", pod)
    world.see()
    assert world.used() == held
    assert world.ledger() == world.truth()[NodeName("node-a")]

    free = {f"GPU-{i}": 10 - held.get(f"GPU-{i}", 0) for i in range(2)}
    for gib in free.values():
        run(world, make_pod({MEM: gib}))
    assert world.used() == {"GPU-0": 10, "GPU-1": 10}
    too_much = world.post("filter", {"Pod": create(world, make_pod({MEM: 1})), "NodeNames": ["node-a"]})
    assert too_much["FailedNodes"] == {"node-a": "needs 1 GiB on one GPU; free per GPU on node-a: 0, 0 GiB"}


def test_point_7_a_former_pod_that_has_ended_gives_its_memory_back() -> None:
    pod, _ = FORMER["Aliyun"]
    world = cluster((10, 10))
    seeded = world.api.seed("/api/v1/namespaces/team/pods", pod)
    world.see()
    world.finish(seeded)
    world.see()
    assert not world.used()


# The way back. The functions count as the former systems do: from annotations and labels of running pods alone.


def counted_by_aliyun(pods: Iterable[JsonObject]) -> dict[str, int]:
    """Units on each GPU: what a pod's annotation says that it has, on the one GPU that another one names."""
    result: dict[str, int] = {}
    for pod in pods:
        annotations = pod["metadata"]["annotations"]
        if "ALIYUN_COM_GPU_MEM_IDX" in annotations and annotations["ALIYUN_COM_GPU_MEM_ASSIGNED"] == "true":
            index = annotations["ALIYUN_COM_GPU_MEM_IDX"]
            result[index] = result.get(index, 0) + int(annotations["ALIYUN_COM_GPU_MEM_POD"])
    return result


def counted_by_ack(pods: Iterable[JsonObject]) -> dict[str, int]:
    """The same, and pods on several GPUs by what each container has on each."""
    pods = list(pods)
    result = counted_by_aliyun(pods)
    for pod in pods:
        for shares in json.loads(pod["metadata"]["annotations"].get(ACK, "{}")).values():
            for index, units in shares.items():
                result[index] = result.get(index, 0) + units
    return result


def counted_by_nano(pods: Iterable[JsonObject]) -> dict[str, int]:
    """Per cent of each GPU, of pods with the label."""
    result: dict[str, int] = {}
    for pod in pods:
        if pod["metadata"]["labels"].get("nano-gpu/assume") != "true":
            continue
        for container in pod["spec"]["containers"]:
            index = pod["metadata"]["annotations"][f"nano-gpu/container-{container['name']}"]
            if index != "-1":
                percent = int(container["resources"]["limits"][PERCENT])
                result[index] = result.get(index, 0) + percent
    return result


def world_with(*pods: Json) -> tuple[World, list[JsonObject]]:
    world = cluster((10, 10))
    return world, [run(world, pod) for pod in pods]


def test_point_7_the_former_schedulers_count_pods_of_this_system() -> None:
    world, pods = world_with(make_pod({MEM: 6}), make_pod({MEM: 3}, {MEM: 1}), make_pod({MEM: 9}))
    assert {f"GPU-{index}": units for index, units in counted_by_aliyun(pods).items()} == world.used()
    world, pods = world_with(
        make_pod({MEM: 8}, labels={"aliyun.com/gpu-count": "2"}),
        make_pod({MEM: 2}, annotations={"gpushare.dev/gpus": "2"}),
        make_pod({}, {MEM: 4}, {MEM: 3}),
    )
    assert {f"GPU-{index}": units for index, units in counted_by_ack(pods).items()} == world.used()
    world, pods = world_with(make_pod({PERCENT: 30}, {}), make_pod({PERCENT: 60}, {PERCENT: 50}))
    counted = {f"GPU-{index}": percent for index, percent in counted_by_nano(pods).items()}
    assert counted == dict(world.ledger().used_percent)


@pytest.mark.parametrize(
    ("count", "total", "gpus", "each"), [("2", 8, 2, 4096), ("4", 8, 4, 2048), ("1", 7, 1, 7168), ("0", 7, 1, 7168)]
)
def test_point_8_with_acks_label_the_amount_is_the_total(count: str, total: int, gpus: int, each: int) -> None:
    pod = run(cluster((10, 10, 10, 10)), make_pod({MEM: total}, labels={"aliyun.com/gpu-count": count}))
    [entry] = json.loads(pod["metadata"]["annotations"]["gpushare.dev/allocation"])["containers"]
    assert (len(entry["gpus"]), entry["memoryMiB"]) == (gpus, each)
    variables = environment(pod)
    assert variables["ALIYUN_COM_GPU_MEM_CONTAINER"] == str(total)
    assert len(variables["NVIDIA_VISIBLE_DEVICES"].split(",")) == gpus


def test_point_9_a_nano_pod_has_nano_gpus_annotations_and_its_label_and_no_other_has() -> None:
    """The number of each container's GPU, -1 for one without; different containers may be on different GPUs."""
    pod = run(cluster((10, 10)), make_pod({PERCENT: 60}, {}, {PERCENT: "50"}))
    annotations = pod["metadata"]["annotations"]
    assert {key: value for key, value in annotations.items() if key.startswith("nano-gpu/")} == {
        "nano-gpu/assume": "true",
        "nano-gpu/container-c0": annotations["index.gpushare.dev/c0"],
        "nano-gpu/container-c1": "-1",
        "nano-gpu/container-c2": annotations["index.gpushare.dev/c2"],
    }
    assert annotations["index.gpushare.dev/c0"] != annotations["index.gpushare.dev/c2"]
    assert pod["metadata"]["labels"]["nano-gpu/assume"] == "true"
    assert environment(pod)["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "60"
    pod = run(cluster((10, 10)), make_pod({MEM: 3}))
    assert not [key for key in (*pod["metadata"]["annotations"], *pod["metadata"]["labels"]) if "nano" in key]


def test_point_9_nano_gpus_paths_are_served_and_scores_are_between_0_and_10() -> None:
    """Its own were far outside of what kube-scheduler takes."""
    extender = json.loads((SEEDS / "nano-extender.json").read_text(encoding="utf-8"))
    prefix = "/" + urlsplit(extender["urlPrefix"]).path.rpartition("/")[2]
    world = cluster((10, 10), (40,), (2,), (10,))
    run(world, make_pod({PERCENT: 90}), "node-d")
    pod = create(world, make_pod({PERCENT: 20}))
    body = orjson.dumps({"Pod": pod, "NodeNames": ["node-a", "node-b", "node-c", "node-d"]})
    filtered = orjson.loads(world.client().post(f"{prefix}/{extender['filterVerb']}", body).body)
    assert filtered["NodeNames"] == ["node-a", "node-b", "node-c"]
    scored = orjson.loads(world.client().post(f"{prefix}/{extender['prioritizeVerb']}", body).body)
    assert {entry["Host"] for entry in scored} == {"node-a", "node-b", "node-c"}  # node-d has 0, as it is full
    assert all(0 < entry["Score"] <= 10 for entry in scored)
    meta = pod["metadata"]
    binding = {"PodName": meta["name"], "PodNamespace": "team", "PodUID": meta["uid"], "Node": "node-c"}
    bound = world.client().post(f"{prefix}/{extender['bindVerb']}", orjson.dumps(binding))
    assert orjson.loads(bound.body) == {"Error": ""}


def test_point_10_the_replicas_of_the_stateful_set_share_a_gpu() -> None:
    manifest = seed("binpack-1.yaml")
    world = cluster((15, 15))
    for _ in range(manifest["spec"]["replicas"]):
        run(world, pod_of(manifest))
    assert world.used() == {"GPU-0": 9}


@pytest.mark.parametrize(("name", "gib"), [("gpu-share-pod1", 3), ("gpu-share-pod2", 5)])
def test_point_10_a_pod_that_says_all_sees_its_own_gpu_and_its_author_is_warned(name: str, gib: int) -> None:
    """The note on the pod is for the Warning event, which also authors see who did not create the pod themselves."""
    pod = pod_of(seed(f"{name}.yaml"))
    decision = reviews.admitted(pod, RULES)
    assert decision.warnings == (
        f"container {name}: NVIDIA_VISIBLE_DEVICES is set by gpushare to the GPUs that it is granted;"
        " 'all' was removed",
    )
    assert decision.pod["metadata"]["annotations"] == {"gpushare.dev/overridden": name}
    world = cluster((16,))
    bound = run(world, pod)
    assert environment(bound, name)["NVIDIA_VISIBLE_DEVICES"] == "GPU-0"
    assert world.used() == {"GPU-0": gib}


def test_point_10_a_fifth_of_one_gpu() -> None:
    bound = run(cluster((10,)), pod_of(seed("gpu-pod-percent.yaml")))
    [entry] = json.loads(bound["metadata"]["annotations"]["gpushare.dev/allocation"])["containers"]
    assert (entry["gpus"], entry["memoryMiB"], entry["computePercent"]) == (["GPU-0"], 2048, 20)
    variables = environment(bound, "cuda-container")
    assert variables["GPUSHARE_MEMORY_MIB"] == "2048"
    assert variables["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "0=2048M"


@pytest.mark.parametrize("name", ["gpu-pod-vectoradd", "gpu-pod-whole"])
def test_point_10_a_whole_gpu_is_one_that_no_one_else_is_on(name: str) -> None:
    world = cluster((10, 10))
    run(world, pod_of(seed("gpu-share-pod1.yaml")))
    bound = run(world, pod_of(seed(f"{name}.yaml")))
    assert environment(bound, "cuda-container")["NVIDIA_VISIBLE_DEVICES"] == "GPU-1"
    assert world.ledger().whole == {"GPU-1"}
