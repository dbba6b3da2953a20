"""What `explain` knows of the cluster is what the controller knows of it, so that both find the same node best."""

from dataclasses import replace

from controller.outlooks import Outlooks
from controller.state import ClusterState
from controller.watches import NodeSink, PodSink
from gpushare import names
from gpushare.cluster import node_records, pod_records
from gpushare.resource_config import ResourceConfig
from gpushare.runtime.clock import SystemClock
from gpushare_cli import gather, nodefacts, world
from gpushare_cli.world import World
from testing.builders import Json, make_container, make_pod
from testing.cli.explaining import kube_of
from tests.unit.gpushare_cli.test_explain_choice import holds, node, waiting

CONFIG = ResourceConfig()


def plain(name: str, cpu: str, on: str) -> Json:
    pod = make_pod(make_container(), name=name, node=on)
    pod["spec"]["containers"][0]["resources"] = {"requests": {"cpu": cpu, "memory": "2Gi"}}
    return pod


NODES = [
    node("a", 16, 16, cpu="16"),
    node("b", *[16] * 8, model="Tesla V100", cpu="64"),
    node("c", 16),
    node("cpu", cpu="8"),
]
PODS = [
    *(holds(16, "b", gpu, **{names.ANNOTATION_MODEL: "V100"}) for gpu in range(3)),
    holds(5, "a"),
    waiting(7, cpu="2"),
    plain("one", "3", "a"),
    plain("two", "500m", "cpu"),
]


def of_command_line() -> World:
    cluster = gather.everything(kube_of([*NODES, *PODS]))
    known = [(node_records.read(each), nodefacts.node_facts(each)) for each in cluster.nodes]
    pods = ((pod, pod_records.read(pod, CONFIG)) for pod in cluster.pods)
    return world.build(known, pods, CONFIG.unit, cluster.guests)


def test_the_controller_and_explain_know_the_same() -> None:
    state = ClusterState(resource_config=CONFIG)
    NodeSink(state).replace([known for each in NODES if (known := NodeSink(state).read(each))])
    PodSink(state).replace([record for pod in PODS if (record := PodSink(state).read(pod))])
    outlooks = Outlooks(state.cache, lambda *_: None, SystemClock())
    assert outlooks.tick()
    found = of_command_line()
    assert outlooks.outlook == replace(world.outlook(found), epoch=1)
    assert len(outlooks.outlook.kinds) > 2
    rooms = state.cache.cluster_index.node_rooms.rooms()
    assert {name: each.host for name, each in found.nodes.items()} == {name: room.host for name, room in rooms.items()}
