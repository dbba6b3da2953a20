"""What tools, applications and configurations of Aliyun gpushare rely on.

Point 5, GPUs that its ConfigMap calls unhealthy, is tested beside the wire and the watch; point 6, what inspect prints,
beside the command.
"""

import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import orjson
import pytest

from deviceplugin import resources
from gpushare.identity import NodeName
from gpushare.model.gpu import NodeInventory
from gpushare.units import GIB
from testing.builders import make_gpu
from testing.controller.world import World
from tests.unit.compat.cluster import SEEDS, cluster, create, environment, make_pod, run

MEM = "aliyun.com/gpu-mem"


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
    assert len(resources.devices(inventory, [resources.MEMORY])[MEM].healthy) == 2 * units


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
