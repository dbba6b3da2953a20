"""Why a pod goes to one node and to one of its GPUs, and what the next node lacks: the words."""

from dataclasses import replace

import pytest

from controller.cluster_table import ClusterTable
from controller.outlooks import Outlooks
from controller.state import ClusterState
from controller.watches import NodeSink, PodSink
from gpushare import names
from gpushare.model.capacity import Ask, FreeGpu
from gpushare.placement.lacks import FewerPods, Fragments, Free, Kept, Lack, MoreUse, Nothing, Remainder
from gpushare.runtime.clock import SystemClock
from gpushare.units import ResourceConfig
from gpushare_cli import reading, world
from gpushare_cli.explain import choice as choices
from gpushare_cli.reading import Settings
from gpushare_cli.world import World
from testing.builders import Json, make_container, make_grant, make_inventory, make_node, make_pod
from testing.cli.explaining import explain, kube_of
from testing.cli.podding import bound, mutated
from testing.cli.simulating import lines
from tests.unit.gpushare_cli.findings import Told

NO_OTHER = "it fits on no other node"


def node(name: str, *gib: int, model: str = "Tesla T4", cpu: str = "") -> Json:
    inventory = make_inventory(*gib, node=name)
    value = make_node(replace(inventory, gpus=tuple(replace(gpu, model=model) for gpu in inventory.gpus)))
    if cpu:
        value["status"]["allocatable"] |= {"cpu": cpu, "memory": "64Gi"}
    return value


def waiting(gib: int, policy: str = "binpack", cpu: str = "") -> Json:
    pod = mutated(make_pod(make_container(gpu_mem=gib), annotations={names.ANNOTATION_POLICY: policy}))
    if cpu:
        pod["spec"]["containers"][0]["resources"]["requests"] = {"cpu": cpu}
    return pod


def holds(gib: int, of: str, gpu: int = 0, **annotations: str) -> Json:
    return bound(f"{of}-{gpu}", make_grant(gpu, gib=gib), node=of, annotations=annotations)


def choice(*objects: Json) -> list[str]:
    """The lines that tell it, of the first pod; none if nothing is told."""
    lines = explain(*objects).out.splitlines()
    began = [i for i, line in enumerate(lines) if line.startswith("CHOICE:")]
    return [line[12:] for line in lines[began[0] : began[0] + 2]] if began else []


def test_the_fullest_node_and_gpu_are_said_to_be_that(told: Told) -> None:
    assert choice(waiting(3), node("a", 15, 15, 2), node("b", 15), holds(12, "a")) == told()


def test_a_node_that_keeps_the_pod_away_is_not_said_to_lack_room() -> None:
    tainted = node("b", 15)
    tainted["spec"] = {"taints": [{"key": "team", "value": "a", "effect": "NoSchedule"}]}
    assert choice(waiting(3), node("a", 15), tainted)[1] == NO_OTHER


def test_so_are_the_emptiest(told: Told) -> None:
    assert choice(waiting(3, "spread"), node("a", 15, 15), node("b", 15), holds(6, "b")) == told()
    assert choice(waiting(3, "spread"), node("a", 15, 15), holds(6, "a")) == told()


def test_the_policy_of_a_namespace_counts_for_its_pods_that_name_none() -> None:
    pod = mutated(make_pod(make_container(gpu_mem=3)))
    nodes = node("a", 15, 15), node("b", 15), holds(6, "b")
    assert choice(pod, *nodes)[0].startswith("b, GPU 0: 9 of 15 GiB are free")
    labels = {names.LABEL_POLICY: "spread"}
    team = {"kind": "Namespace", "metadata": {"name": "default", "labels": labels}}
    assert choice(pod, *nodes, team)[0].startswith("a, GPU 0: 15 of 15 GiB are free")
    labels[names.LABEL_POLICY] = "fast"
    assert choice(pod, *nodes, team)[0].startswith("b, GPU 0: 9 of 15 GiB are free")


def test_a_remainder_that_few_pods_ask_for_counts_against_a_node() -> None:
    usual = [holds(8, "z", gpu) for gpu in range(8)]
    full = [holds(10, "a"), holds(8, "b")]
    assert choice(waiting(5, "dense"), node("a", 16), node("b", 16), node("z", *[16] * 8), *usual, *full)[1] == (
        "b is next: it would leave 3 GiB of a GPU, which few pods here ask for"
    )
    told = choice(waiting(7, "dense"), node("b", 16), node("z", *[16] * 8), *usual, holds(8, "b"))
    assert told[0] == "b, GPU 0: 8 of 16 GiB are free, and 1 GiB stay free, which few pods here ask for"


def test_cpu_of_the_host_counts_as_room_for_pods_with_gpus(told: Told) -> None:
    """The next node has as much of GPUs free, but its CPU is what usual pods need beside theirs."""
    usual = []
    for gpu in range(4):
        pod = holds(16, "z", gpu)
        pod["spec"]["containers"][0]["resources"]["requests"] = {"cpu": "16"}
        usual.append(pod)
    nodes = node("rich", 16, 16, cpu="64"), node("poor", 16, 16, cpu="8"), node("z", *[16] * 4, cpu="64")
    assert choice(waiting(16, "dense", cpu="1"), *nodes, *usual) == told()


def test_a_node_without_cpu_for_it_is_no_choice_and_says_so(told: Told) -> None:
    plain = make_pod(make_container(), name="plain", node="a")
    plain["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "6", "memory": "63Gi"}}
    pod = waiting(4, cpu="4")
    pod["spec"]["containers"][0]["resources"]["requests"]["memory"] = "2Gi"
    found = explain(pod, node("a", 15, cpu="8"), node("b", 15, cpu="32"), plain)
    assert found.err == ""
    assert lines(*told()) in found.out
    assert choice(pod, node("a", 15, cpu="8"), node("b", 15, cpu="32"), plain)[1] == NO_OTHER


def test_what_a_kubelet_has_not_told_is_not_evaluated(told: Told) -> None:
    assert explain(waiting(4, cpu="4"), node("a", 15), node("b", 15, cpu="2")).err == lines(*told())
    pod = waiting(4)
    pod["spec"]["containers"][0]["resources"]["requests"] = {"cpu": "1", "ephemeral-storage": "1Gi"}
    assert explain(pod, node("b", 15, cpu="2")).err == lines(*told())


def test_a_pod_on_a_node_is_explained_by_the_cluster_as_it_is_now(told: Told) -> None:
    pod = bound("pod", make_grant(0, gib=3), node="a", annotations={names.ANNOTATION_POLICY: "binpack"})
    nodes = node("a", 15, 15), node("b", 15)
    assert choice(pod, *nodes) == told()
    assert choice(pod, *nodes, holds(10, "a")) == told()


def test_what_the_pod_itself_has_requested_does_not_count_against_it() -> None:
    """The node as a whole is full with it."""
    full = node("a", 15, 15)
    full["status"]["allocatable"] |= {names.GPU_MEM: "25"}
    pod = bound("pod", make_grant(0, gib=3), node="a", annotations={names.ANNOTATION_POLICY: "binpack"})
    assert choice(pod, full, holds(12, "a"), holds(10, "a", 1))[0].endswith("; the fullest of 2 with room there")


def test_a_gpu_that_would_not_be_chosen_now_is_not_called_the_best() -> None:
    told = choice(bound("pod", make_grant(1, gib=3), node="a"), node("a", 15, 15), holds(10, "a"))
    assert told[0] == "as the cluster is now, without this pod: a, GPU 1: 15 of 15 GiB are free, and 12 GiB stay free"


def test_equal_nodes_are_told_apart_by_name() -> None:
    nodes = node("a", 15), node("b", 15)
    assert choice(waiting(3), *nodes)[1] == "b is next: the policy finds both equal, and a comes first by name"
    assert choice(bound("pod", make_grant(0, gib=3), node="b"), *nodes)[1] == "a is next: the policy finds both equal"


def test_of_many_gpus_some_are_named() -> None:
    pod = mutated(make_pod(make_container(gpu_mem=3), annotations={names.ANNOTATION_GPUS: "6"}))
    [text, _] = choice(pod, node("a", *[15] * 8), holds(3, "a", 7))
    assert text.count("15 of 15 GiB are free, and 12 GiB stay free") == 4
    assert text.endswith("; and 2 more")
    assert "main: 3 GiB on each of 6 GPUs\n" in explain(pod, node("a")).out


@pytest.mark.parametrize(
    "pod",
    [
        bound("pod", make_grant(0), node="a", annotations={names.ANNOTATION_LATE: "true"}),
        bound("pod", make_grant(0), node="a", annotations={names.ANNOTATION_ALLOCATION: None, names.ALIYUN_IDX: "0"}),
        bound("pod", make_grant(0), node="gone"),
        waiting(16),
    ],
)
def test_nothing_is_said_where_gpushare_chose_no_node(pod: Json) -> None:
    assert choice(pod, node("a", 15)) == []


GIB = 1024


def test_each_lack_has_its_words(told: Told) -> None:
    lacks: list[Lack] = [
        Nothing(),
        Free((3 * GIB, 15_000), (1000, 15 * GIB)),
        Remainder(FreeGpu(15 * GIB, 2 * GIB)),
        MoreUse(),
        Kept("T4"),
        FewerPods(Ask(gpus=2, whole=True, cpu_milli=90_500, host_mib=300 * GIB), 1, 0),
        FewerPods(Ask(gpus=1, whole=True), 2.25, 1.5),
        FewerPods(Ask(gpus=2, memory_percent=50), 1, 0.5),
        Fragments(0.25, -0.1),
    ]
    assert [choices.of_lack(lack, "a", "b", "it") for lack in lacks] == told()


def test_each_gpu_has_its_words(told: Told) -> None:
    cases = (15 * GIB, 0, False), (3 * GIB, 0, False), (5 * GIB, 2 * GIB, False), (5 * GIB, 100, True)
    assert [
        choices.of_gpu(FreeGpu(15 * GIB, before), FreeGpu(15 * GIB, after), few_ask=few) for before, after, few in cases
    ] == told()


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
    cluster = reading.everything(kube_of([*NODES, *PODS]))
    return world.of(cluster, Settings(memory_unit=CONFIG.unit))


def test_the_controller_and_explain_know_the_same() -> None:
    state = ClusterState(resource_config=CONFIG)
    NodeSink(state.index).replace([known for each in NODES if (known := NodeSink(state.index).read(each))])
    PodSink(state.index).replace([record for pod in PODS if (record := PodSink(state.index).read(pod))])
    outlooks = Outlooks(state.index, ClusterTable(state, SystemClock()), SystemClock())
    assert outlooks.tick()
    found = of_command_line()
    assert outlooks.outlook == replace(found.outlook, epoch=1)
    assert len(outlooks.outlook.kinds) > 2
    state.index.mark_changed(found.nodes)
    assert {each.name: each.left for each in state.index.take_changed()} == {
        name: each.host for name, each in found.nodes.items()
    }
