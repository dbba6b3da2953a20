"""What tools, applications and configurations of Aliyun gpushare rely on."""

import json
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import orjson
import pytest

from deviceplugin import resources
from deviceplugin.node import Publisher
from gpushare.identity import NodeName
from gpushare.model.gpu import NodeInventory
from gpushare.runtime.clock import SystemClock
from gpushare.units import GIB
from gpushare.wire import unhealthy
from gpushare_cli import holders, inspect_command
from testing.builders import make_gpu, make_node
from testing.controller.world import World
from testing.deviceplugin.running import feed_with
from testing.fakes.kube import FakeKube
from tests.unit.compat.cluster import SEEDS, cluster, create, environment, make_pod, run
from tests.unit.gpushare_cli import clusters
from tests.unit.gpushare_cli.clusters import ack_pod, aliyun_node, aliyun_pod

GOLDEN = Path(clusters.__file__).parent / "golden"
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
def test_point_3_the_node_shows_whole_gib_of_each_gpu_and_their_number(model: str, mib: int, units: int) -> None:
    gpus = (make_gpu(0, mib=mib), make_gpu(1, mib=mib))
    inventory = NodeInventory(node=NodeName("node-a"), gpus=gpus, unit=GIB)
    offered = resources.devices(inventory, [resources.MEMORY])
    assert len(offered[MEM].healthy) == 2 * units
    assert published(inventory)["aliyun.com/gpu-count"] == "2"


def published(inventory: NodeInventory) -> dict[str, str]:
    """The amounts on the Node."""
    api = FakeKube()
    api.seed("/api/v1/nodes", make_node(name="node-a"))
    feed, stop = feed_with(inventory), threading.Event()
    publisher = Publisher(api=api, feed=feed, clock=SystemClock(), node=NodeName("node-a"), recheck_s=300)
    thread = threading.Thread(target=publisher.run, args=(stop,))
    thread.start()
    try:
        assert publisher.published.wait()
    finally:
        stop.set()
        feed.wake()
        thread.join()
    status = api.read("/api/v1/nodes/node-a")["status"]
    assert status["capacity"] == status["allocatable"]
    found: dict[str, str] = status["capacity"]
    return found


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


@pytest.mark.parametrize(
    ("value", "left"),
    [("1", {0, 2}), ("0,2", {1}), (" 1 , 2 ", {0}), ("", {0, 1, 2}), (",", {0, 1, 2}), ("x,1", {0, 2})],
)
def test_point_5_gpus_that_the_config_map_calls_unhealthy_are_not_used(value: str, left: set[int]) -> None:
    """What is no number used to mean GPU 0."""
    world = cluster((10, 10, 10))
    config_map = {"metadata": {"name": "unhealthy-gpu-node-a"}, "data": {"gpus": value}}
    marked = unhealthy.parse(config_map)
    assert marked is not None
    world.state.index.set_unhealthy(marked.node, marked.gpus)
    for _ in left:
        run(world, make_pod({MEM: 8}))
    assert set(world.used()) == {f"GPU-{index}" for index in left}
    refused = world.post("filter", {"Pod": create(world, make_pod({MEM: 8})), "NodeNames": ["node-a"]})
    assert not refused["NodeNames"]


def test_point_6_inspect_prints_the_same_bytes() -> None:
    """On one GPU, on several, and for a pod of which no one knows where it is."""
    single = [aliyun_pod("binpack-1-0", gpu=0, mem=6), aliyun_pod("jupyter-1", gpu=1, mem=3, namespace="team-a")]
    several, waiting = ack_pod("multi-1", '{"0":{"0":4,"1":4}}', mem=8), clusters.pod("waiting", mem=5)
    nodes = [aliyun_node()]
    assert inspect_command.summary(holders.build(nodes, single)) == golden("summary")
    assert inspect_command.summary(holders.build(nodes, [*single, waiting])) == golden("summary-pending")
    assert inspect_command.detail(holders.build(nodes, [*single, several])) == golden("detail")


def golden(name: str) -> str:
    return (GOLDEN / f"{name}.txt").read_text(encoding="utf-8")
