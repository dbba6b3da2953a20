"""Why a pod goes to one node and to one of its GPUs, and what the next node lacks: the words."""

from dataclasses import replace

import pytest

from controller.cluster_table import ClusterTable
from controller.outlooks import Outlooks
from controller.state import ClusterState
from controller.watches import NodeSink, PodSink
from gpushare import names
from gpushare.identity import NodeName
from gpushare.model.capacity import Ask, FreeGpu, FreeHost, NodeCapacity
from gpushare.model.gpu import Limit
from gpushare.model.request import ANY_GPU, Choice, Policy
from gpushare.placement import outlook
from gpushare.placement.costs import Change, costs_of
from gpushare.placement.outlook import Outlook
from gpushare.placement.policies import POLICIES
from gpushare.runtime.clock import SystemClock
from gpushare.units import ResourceConfig
from gpushare_cli import reading, usage, world
from gpushare_cli.explain import place as choices
from gpushare_cli.reading import Settings
from gpushare_cli.world import Option
from testing.builders import Json, make_container, make_grant, make_inventory, make_node, make_pod
from testing.cli.explaining import explain, kube_of
from testing.cli.podding import bound, mutated
from testing.placing import after
from tests.unit.gpushare_cli import findings
from tests.unit.gpushare_cli.findings import Told


def node(name: str, *gib: int, model: str = "Tesla T4", cpu: str = "") -> Json:
    inventory = make_inventory(*gib, node=name)
    value = make_node(replace(inventory, gpus=tuple(replace(gpu, model=model) for gpu in inventory.gpus)))
    if cpu:
        value["status"]["allocatable"] |= {"cpu": cpu, "memory": "64Gi"}
    return value


def waiting(gib: int, policy: str = "binpack", cpu: str = "") -> Json:
    pod = mutated(make_pod(make_container(gpu_mem=gib), annotations={names.ANNOTATION_POLICY: policy}))
    return needing(pod, cpu=cpu) if cpu else pod


def holds(gib: int, of: str, gpu: int = 0, **annotations: str) -> Json:
    return bound(f"{of}-{gpu}", make_grant(gpu, gib=gib), node=of, annotations=annotations)


def needing(pod: Json, **requests: str) -> Json:
    pod["spec"]["containers"][0]["resources"].setdefault("requests", {}).update(requests)
    return pod


def plain(name: str, on: str, cpu: str, memory: str = "2Gi") -> Json:
    return needing(make_pod(make_container(resources={}), name=name, node=on), cpu=cpu, memory=memory)


def namespace(policy: str) -> Json:
    return {"kind": "Namespace", "metadata": {"name": "default", "labels": {names.LABEL_POLICY: policy}}}


BINPACK = {names.ANNOTATION_POLICY: "binpack"}
FREE = mutated(make_pod(make_container(gpu_mem=3)))
TAINTED = node("b", 15)
TAINTED["spec"] = {"taints": [{"key": "team", "value": "a", "effect": "NoSchedule"}]}
SUM = node("a", 15, 15)
SUM["status"]["allocatable"] |= {names.GPU_MEM: "25"}
Z = node("z", *[16] * 8)
USUAL = [holds(8, "z", gpu) for gpu in range(8)]
PAIR = node("a", 15, 15), node("b", 15)
EQUAL = node("a", 15), node("b", 15)
HERE = bound("pod", make_grant(0, gib=3), node="a", annotations=BINPACK)
HOSTS = node("a", 15, cpu="8"), node("b", 15, cpu="32"), plain("plain", "a", "6", "63Gi")
SIX = mutated(make_pod(make_container(gpu_mem=3), annotations={names.ANNOTATION_GPUS: "6"}))
CASES: dict[str, list[Json]] = {
    "the fullest node and GPU are said to be that": [
        *(waiting(3), node("a", 15, 15, 2), node("b", 15), holds(12, "a"))
    ],
    "a node that keeps the pod away is not said to lack room": [waiting(3), node("a", 15), TAINTED],
    "the emptiest node is said to be that": [waiting(3, "spread"), *PAIR, holds(6, "b")],
    "so is the emptiest GPU": [waiting(3, "spread"), node("a", 15, 15), holds(6, "a")],
    "the policy of the cluster counts": [FREE, *PAIR, holds(6, "b")],
    "that of a namespace counts for its pods that name none": [FREE, *PAIR, holds(6, "b"), namespace("spread")],
    "one that does not exist counts for none": [FREE, *PAIR, holds(6, "b"), namespace("fast")],
    "a remainder that few pods ask for counts against a node": [
        *(waiting(5, "dense"), node("a", 16), node("b", 16), Z, *USUAL, holds(10, "a"), holds(8, "b"))
    ],
    "and is told of the chosen one": [waiting(7, "dense"), node("b", 16), Z, *USUAL, holds(8, "b")],
    # The next node has as much of GPUs free, but its CPU is what usual pods need beside theirs.
    "CPU of the host counts as room for pods with GPUs": [
        waiting(16, "dense", cpu="1"),
        *(node("rich", 16, 16, cpu="64"), node("poor", 16, 16, cpu="8"), node("z", *[16] * 4, cpu="64")),
        *(needing(holds(16, "z", gpu), cpu="16") for gpu in range(4)),
    ],
    "a node without CPU for it is no choice, and says so": [needing(waiting(4, cpu="4"), memory="2Gi"), *HOSTS],
    "what a kubelet has not told is not evaluated": [waiting(4, cpu="4"), node("a", 15), node("b", 15, cpu="2")],
    "nor what is neither GPUs nor CPU nor memory": [
        *(needing(waiting(4), **{"cpu": "1", "ephemeral-storage": "1Gi"}), node("b", 15, cpu="2"))
    ],
    "a pod on a node is explained by the cluster as it is now": [HERE, *PAIR],
    "where it is the best": [HERE, *PAIR, holds(10, "a")],
    # The node as a whole is full with it.
    "what the pod itself has requested does not count against it": [HERE, SUM, holds(12, "a"), holds(10, "a", 1)],
    "a GPU that would not be chosen now is not called the best": [
        *(bound("pod", make_grant(1, gib=3), node="a"), node("a", 15, 15), holds(10, "a"))
    ],
    "equal nodes are told apart by name": [waiting(3), *EQUAL],
    "but not of a pod that is on one": [bound("pod", make_grant(0, gib=3), node="b"), *EQUAL],
    "of many GPUs some are named": [SIX, node("a", *[15] * 8), holds(3, "a", 7)],
    "nothing is said of a choice that came late": [
        *(bound("pod", make_grant(0), node="a", annotations={names.ANNOTATION_LATE: "true"}), node("a", 15))
    ],
    "nor of Aliyun's": [
        bound("pod", make_grant(0), node="a", annotations={names.ANNOTATION_ALLOCATION: None, names.ALIYUN_IDX: "0"}),
        node("a", 15),
    ],
    "nor of a node that is gone": [bound("pod", make_grant(0), node="gone"), node("a", 15)],
    "nor of a pod that fits nowhere": [waiting(16), node("a", 15)],
}


@pytest.mark.parametrize("case", CASES)
def test_why_a_pod_goes_where_it_goes_is_told(case: str) -> None:
    assert explain(*CASES[case]).lines == findings.golden("explain", case)


GIB = 1024
A, B = NodeName("a"), NodeName("b")


def numbers(*free: int, model: str = "T4", cpu: int | None = None) -> NodeCapacity:
    """A node of GPUs of 1 GiB."""
    gpus = tuple(sorted(FreeGpu(GIB, mib) for mib in free))
    return NodeCapacity(model, gpus, None if cpu is None else FreeHost(cpu, 10**6))


def share(mib: int, cpu: int = 0, models: Choice = ANY_GPU.models) -> Ask:
    return Ask(gpus=1, memory_mib=mib, cpu_milli=cpu, models=models)


def change(ask: Ask, before: NodeCapacity, free: int | None = None) -> Change:
    """What becomes of a node whose GPU with so much free memory, the first if none is named, gets a pod."""
    gpu = next(gpu for gpu in before.gpus if free in {None, gpu.free_mib})
    return Change(before, after(before, ask, (gpu,)))


HALVES = outlook.of_cluster([share(512)] * 9, [numbers(1024)] * 3, [numbers(1024)] * 3)
V100, T4 = numbers(1024, 1024, model="V100"), numbers(1024, 1024)
FOR_T4 = [share(1024, models=Choice(wanted=("T4",)))] * 8
SCARCE = outlook.of_cluster([*FOR_T4, share(1024), share(1024)], [V100, T4], [V100, T4])
PAIRS = outlook.of_cluster([Ask(gpus=2, whole=True)] * 5, [T4, T4], [T4, T4])
# CPU that other pods need beside their GPUs, also where the model is another one that is wanted as much.
RICH, POOR = numbers(1024, cpu=40_000), numbers(1024, cpu=8_000, model="V100")
EMPTY = [RICH, replace(POOR, host=RICH.host)]
BUSY = outlook.of_cluster([share(1024, cpu=20_000)] * 5, EMPTY, [RICH, POOR])
BUSY_HALVES = outlook.of_cluster(
    [Ask(gpus=1, memory_percent=50, cpu_milli=12_500, host_mib=512)] * 5, EMPTY, [RICH, POOR]
)
# The policy, what the pod asks for, the node that lacks something, the better one, and what is known of the cluster.
LACKS: list[tuple[Policy, Ask, NodeCapacity, NodeCapacity, Outlook]] = [
    *((policy, share(256), numbers(512, 1024), numbers(512, 1024), HALVES) for policy in Policy),
    (Policy.BINPACK, share(256), numbers(1024, 1024), numbers(512, 1024), HALVES),
    (Policy.SPREAD, share(256), numbers(512, 1024), numbers(1024, 1024), HALVES),
    (Policy.DENSE, share(400), numbers(512), numbers(400), HALVES),
    # A quarter is all that others could use of what is free here; of the empty GPU it is three thirds.
    (Policy.DENSE, share(300), numbers(1024), numbers(300), HALVES),
    (Policy.DENSE, share(1024), T4, V100, SCARCE),
    (Policy.DENSE, share(1024), T4, numbers(1024), PAIRS),
    (Policy.DENSE, share(1024, cpu=1_000), RICH, POOR, BUSY),
    (Policy.DENSE, share(1024, cpu=1_000), RICH, POOR, BUSY_HALVES),
    (Policy.FGD, share(512), numbers(768), numbers(512), HALVES),
]


def test_what_the_next_node_lacks_is_told_in_the_terms_of_the_policy(told: Told) -> None:
    sentences = []
    for policy, ask, there, here, known in LACKS:
        changes = change(ask, there), change(ask, here)
        found = costs_of(changes, POLICIES[policy](known))
        worse, better = (Option(*each, ()) for each in zip(found, (A, B), changes, strict=True))
        assert worse.cost >= better.cost
        sentences.append(choices.lack(policy, known, worse, better, "it"))
    assert sentences == told()


def test_what_pods_ask_for_has_words() -> None:
    asked = (
        Ask(gpus=2, whole=True, cpu_milli=90_500, host_mib=300 * GIB),
        Ask(gpus=1, whole=True),
        Ask(gpus=2, memory_percent=50),
    )
    words = ["2 whole GPUs, 90.5 CPU and 300 GiB of memory", "1 whole GPU", "50 % of each of 2 GPUs"]
    assert [choices.asking(ask) for ask in asked] == words


def test_little_is_asked_for_of_a_remainder_that_few_pods_fill() -> None:
    gpus = FreeGpu(GIB, 64), FreeGpu(GIB, 512), FreeGpu(GIB, 0), FreeGpu(4 * GIB, 64)
    # Nothing is left of the third one, and nothing is known of GPUs as large as the last one.
    assert [choices.little_asked_for(gpu, HALVES) for gpu in gpus] == [True, False, False, False]


def test_only_the_gpus_that_the_pod_gets_count_as_remainders() -> None:
    assert change(share(256), numbers(512, 512, 300), free=512).remainders == (FreeGpu(GIB, 256),)


def test_each_gpu_has_its_words(told: Told) -> None:
    cases = (15 * GIB, 0, False), (3 * GIB, 0, False), (5 * GIB, 2 * GIB, False), (5 * GIB, 100, True)
    assert [
        choices.of_gpu(FreeGpu(15 * GIB, before), FreeGpu(15 * GIB, after), few_ask=few) for before, after, few in cases
    ] == told()


CONFIG = ResourceConfig()


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
    plain("one", "a", "3"),
    plain("two", "cpu", "500m"),
]


def test_the_controller_and_explain_know_the_same() -> None:
    state = ClusterState(resource_config=CONFIG)
    NodeSink(state.index).replace([known for each in NODES if (known := NodeSink(state.index).read(each))])
    PodSink(state.index).replace([record for pod in PODS if (record := PodSink(state.index).read(pod))])
    outlooks = Outlooks(state.index, ClusterTable(state, SystemClock()), SystemClock())
    assert outlooks.tick()
    found = world.of(reading.everything(kube_of([*NODES, *PODS])), Settings(memory_unit=CONFIG.unit))
    assert outlooks.outlook == replace(found.outlook, epoch=1)
    assert len(outlooks.outlook.kinds) > 2
    state.index.mark_changed(found.nodes)
    assert {each.name: each.left for each in state.index.take_changed()} == {
        name: each.host for name, each in found.nodes.items()
    }


def test_every_policy_and_every_limit_has_its_words() -> None:
    assert set(choices.WORDS) == set(Policy)
    assert {*usage.LIMITED_BY, Limit.ADVISORY} == set(Limit)
