"""The ledger follows nodes and pods, in whatever order the watches tell of them."""

import random
from dataclasses import replace

import pytest

from controller.index import OtherPods
from controller.state import Reserved
from gpushare import names
from gpushare.cluster import node_ledger
from gpushare.cluster.pod_records import Bound, NonGpuPod
from gpushare.identity import NodeName, PodUid
from gpushare.kube.api import JsonObject
from gpushare.model.capacity import NOTHING, Ask, FreeHost, NodeCapacity
from gpushare.model.ledger import NodeLedger, RefusalReason, Refused
from gpushare.units import MemoryUnit, ResourceConfig
from gpushare.wire import allocations, pods as pods_wire
from testing.builders import make_allocation, make_container, make_grant, make_inventory, make_node, make_pod, make_ref
from testing.controller.bypassing import add_bypassed
from testing.controller.world import NODES, World, path_of, request_of, uid_of
from tests.unit.controller.conftest import node, pod

A, B = NodeName("node-a"), NodeName("node-b")


def place_by_hand(world: World, pod: JsonObject, gpu: int = 0, gib: int = 3, node: str = "node-a") -> None:
    """Bind a pod as another replica would."""

    def change(found: JsonObject) -> None:
        allocation = make_allocation("x", make_grant(gpu, gib=gib, container="c0"), node=node)
        found["metadata"]["annotations"] = {names.ANNOTATION_ALLOCATION: allocations.encode(allocation)}
        found["spec"]["nodeName"] = node

    world.edit_pod(pod, change)


def refusal(world: World, node: str = "node-a") -> Refused:
    ledger = world.snapshot().ledgers[NodeName(node)]
    assert isinstance(ledger, Refused)
    return ledger


def test_a_bound_pod_holds_its_memory_until_its_containers_have_ended(world: World) -> None:
    pod = world.add_pod(3)
    place_by_hand(world, pod)
    world.see()
    assert world.used() == {"GPU-0": 3}
    world.edit_pod(pod, lambda found: found["metadata"].update(deletionTimestamp="2026-01-01T00:00:00Z"))
    world.see()
    assert world.used() == {"GPU-0": 3}
    freed = world.state.index.freed
    world.finish(pod)
    world.see()
    assert world.used() == {}
    assert world.state.index.freed > freed


def test_a_list_replaces_what_was_known_and_a_pod_that_is_gone_lets_others_try_again(world: World) -> None:
    freed, gone, stays = world.state.index.freed, world.add_pod(3), world.add_pod(4)
    for each in (gone, stays):
        place_by_hand(world, each)
    world.see()
    world.api.vanish(path_of(gone))
    world.api.vanish(f"{NODES}/node-b")
    world.list_all()
    assert (world.used(), list(world.snapshot().ledgers)) == ({"GPU-0": 3}, ["node-a"])
    before, freed = freed, world.state.index.freed
    world.api.vanish(path_of(stays))
    world.see()
    assert before < freed < world.state.index.freed


def test_pods_stay_counted_while_their_node_has_no_inventory(world: World) -> None:
    place_by_hand(world, world.add_pod(3))
    world.see()
    world.api.edit(f"{NODES}/node-a", lambda node: node["metadata"].pop("annotations"))
    world.see()
    assert refusal(world).message == "node-a has no GPU inventory: no gpushare device plugin has reported GPUs there"
    world.api.vanish(f"{NODES}/node-a")
    world.see()
    world.add_node("node-a", 4)
    world.see()
    assert world.used() == {"GPU-0": 3}
    assert [gpu.memory_mib for gpu in world.ledger().inventory.gpus] == [4 * 1024]


def test_an_inventory_that_cannot_be_read_or_has_another_unit_is_the_refusal(world: World) -> None:
    broken = {names.ANNOTATION_INVENTORY: "{}"}
    world.api.edit(f"{NODES}/node-a", lambda node: node["metadata"].update(annotations=broken))
    world.see()
    where = "node-a has an inventory that cannot be read: annotation gpushare.dev/inventory of node node-a"
    why = f"{where}: version: expected a whole number, 0 or more, found nothing"
    assert refusal(world) == Refused(RefusalReason.NO_INVENTORY, why, permanent=True)
    world.api.seed(NODES, make_node(make_inventory(10, node="node-c", unit=MemoryUnit(256))))
    world.see()
    why = "node-c counts aliyun.com/gpu-mem in 256MiB, the controller in GiB; give both the same memory unit"
    assert refusal(world, "node-c") == Refused(RefusalReason.UNIT_MISMATCH, why, permanent=True)


def test_a_node_with_a_pod_that_cannot_be_read_takes_no_new_pods(world: World) -> None:
    pod = add_bypassed(world, 3, name="odd", annotations={names.ANNOTATION_ALLOCATION: "[]"})
    world.see()
    assert refusal(world) == Refused(
        RefusalReason.INSUFFICIENT_GPU_MEMORY,
        "node-a takes no new pods, because what team/odd holds there cannot be read:"
        " annotation gpushare.dev/allocation: expected an object, found a list;"
        " and annotation devices.gpushare.dev/c0: expected UUIDs of different GPUs, found None;"
        " delete that pod, or install the version of gpushare that bound it",
    )
    assert world.bind(world.add_pod(3)).error == refusal(world).message
    assert world.audit() == []
    assert [ref.uid for ref in world.snapshot().problems] == [uid_of(pod)]
    world.finish(pod)
    world.see()
    assert (world.used(), world.snapshot().problems) == ({}, {})


def test_memory_whose_allocation_cannot_be_read_is_not_given_twice(world: World) -> None:
    """As after a roll-back to a version that cannot read what its successor wrote."""
    newer = {names.ANNOTATION_ALLOCATION: '{"version":3,"minReader":3}'}
    for gib in (9, 9):
        world.edit_pod(world.add_bound(gib), lambda found: found["metadata"]["annotations"].update(newer))
    world.see()
    assert world.used() == {"GPU-0": 9, "GPU-1": 9}
    assert world.bind(world.add_pod(3)).error == "needs 3 GiB on one GPU; free per GPU on node-a: 1, 1 GiB"
    assert {problem.counted for problem in world.snapshot().problems.values()} == {True}
    assert world.audit() == []


def test_the_check_of_the_ledger_finds_what_differs_and_nothing_else(world: World) -> None:
    def with_pod(gpu: int) -> node_ledger.Ledgers:
        return {**world.truth(), A: world.ledger().with_allocation(make_allocation("p", make_grant(gpu)))}

    truth = world.truth()
    expected = {A: truth[A], NodeName("node-c"): truth[A]}
    disagree = f"node node-a: disagree about {make_ref('p')}"
    expects = [disagree, "node node-b: not expected", "node node-c: missing"]
    assert node_ledger.differences(expected, with_pod(0)) == expects
    assert node_ledger.differences(with_pod(0), with_pod(1)) == [disagree]
    other = {**truth, A: replace(truth[A], inventory=make_inventory(1))}
    assert node_ledger.differences(truth, other) == ["node node-a: other GPUs"]
    full, odd = Refused(RefusalReason.INSUFFICIENT_GPU_MEMORY, "one"), Refused(RefusalReason.UNIT_MISMATCH, "two")
    assert node_ledger.differences({A: full}, {A: replace(full, message="other pod")}) == []
    assert node_ledger.differences({A: full}, {A: odd}) == [
        "node node-a: refuses for UnitMismatch, expected InsufficientGpuMemory"
    ]
    for gib in (3, 4, 5):
        world.add_bound(gib)
    assert (node_ledger.differences(world.truth(), world.snapshot().ledgers), world.audit()) == ([], [])


@pytest.mark.parametrize("changed", ["nothing", "labels", "grant", "cpu"])
def test_a_pod_that_is_bound_otherwise_than_chosen_counts_as_it_is(world: World, changed: str) -> None:
    pod = world.add_pod(3)
    request = request_of(pod)
    assert isinstance(world.state.reserve(request, A, now=0), Reserved)

    def change(found: JsonObject) -> None:
        if changed == "labels":
            found["metadata"]["labels"] = {"app": "other"}
        if changed == "cpu":
            found["spec"]["containers"][0]["resources"]["requests"] = {"cpu": "2"}

    world.edit_pod(pod, change)
    place_by_hand(world, pod, gpu=1 if changed == "grant" else 0)
    world.see()
    counted = world.ledger().allocations[uid_of(pod)]
    assert counted == world.held_by(pod)
    assert counted.labels == pods_wire.labels(world.api.get(path_of(pod)))
    index = world.state.index
    before = world.capacities()
    index.rebuild({A}, frees=False)
    assert world.capacities() == before


def test_two_tries_at_once_share_one_reservation(world: World) -> None:
    pod = world.add_pod(3)
    request = request_of(pod)
    first, second = (world.state.reserve(request, A, now=0) for _ in range(2))
    assert first == second
    assert isinstance(first, Reserved)
    world.state.undo(first)
    assert world.used() == {"GPU-0": 3}
    world.state.undo(first)
    assert world.used() == {}


def test_the_end_of_a_binding_leaves_what_is_patched_into_its_pod_on_the_same_node(world: World) -> None:
    """Another scheduler was first, so the pod is on the node without GPUs."""
    pod = world.add_pod(3)
    request = request_of(pod)
    bound = world.state.reserve(request, A, now=0)
    world.edit_pod(pod, lambda found: found["spec"].update(nodeName=A))
    world.see()
    patched = world.state.reserve(request, A, now=0, bypassed=True)
    assert isinstance(bound, Reserved)
    assert isinstance(patched, Reserved)
    world.state.undo(bound)
    assert world.used() == {"GPU-0": 3}
    world.state.undo(patched)
    assert world.used() == {}


HAS = FreeHost(8000, 32768)
PODS = "/api/v1/namespaces/team/pods"


@pytest.fixture
def hosts() -> World:
    """Two nodes with a host, of which the second has no GPU."""
    world = World()
    world.api.seed(NODES, node("node-a", 10, 10, cpu=8))
    world.api.seed(NODES, node("node-b"))
    world.list_all()
    return world


def left(world: World, name: NodeName = A) -> FreeHost | None:
    return world.capacities()[name].host


def test_a_host_has_what_it_gives_now_less_what_pods_have_now(hosts: World) -> None:
    hosts.api.edit(f"{NODES}/node-b", lambda found: found["status"].pop("allocatable"))
    hosts.api.seed(PODS, pod("odd", on="node-a", cpu="fast"))  # an amount that is none counts as nothing
    one = hosts.api.seed(PODS, pod("one", on="node-a"))
    hosts.see()
    assert (left(hosts), left(hosts, B)) == (FreeHost(7000, 31744), None)
    resized = {"requests": {"cpu": "3", "memory": "1Gi"}}
    hosts.edit_pod(one, lambda found: found["spec"]["containers"][0].update(resources=resized))
    hosts.see()
    assert left(hosts) == FreeHost(5000, 31744)
    hosts.api.edit(f"{NODES}/node-a", lambda found: found["status"]["allocatable"].update(cpu="6"))
    hosts.see()
    assert left(hosts) == FreeHost(3000, 31744)


def test_pods_with_gpus_count_from_the_choice_on_and_once(hosts: World) -> None:
    made = hosts.api.seed(PODS, pod("gpus", gib=3))
    hosts.see()
    reserved = hosts.state.reserve(request_of(made), A, now=hosts.clock.at)
    assert isinstance(reserved, Reserved)
    assert left(hosts) == FreeHost(7000, 31744)
    hosts.state.undo(reserved)
    assert left(hosts) == HAS
    late = hosts.api.seed(PODS, pod("late", on="node-a", gib=3))
    hosts.see()
    assert isinstance(hosts.state.reserve(request_of(late), A, now=0, bypassed=True), Reserved)
    assert left(hosts) == FreeHost(7000, 31744)


def test_each_pod_comes_once(hosts: World) -> None:
    """After how many the cluster is looked at again; those without GPUs come to their nodes."""
    shares, plain = hosts.api.seed(PODS, pod("shares", gib=3)), hosts.api.seed(PODS, pod("plain"))
    hosts.see()
    assert hosts.state.index.came == 1
    assert hosts.bind(shares).error == ""
    hosts.edit_pod(plain, lambda found: found["spec"].update(nodeName="node-b"))
    hosts.see()
    assert hosts.state.index.came == 2
    for each in (shares, plain):
        hosts.finish(each)
    hosts.see()
    hosts.list_all()
    assert hosts.state.index.came == 2


@pytest.mark.parametrize("seed", range(5))
def test_the_rooms_are_those_of_the_objects_whatever_happened(hosts: World, seed: int) -> None:
    chance = random.Random(seed)
    made: list[JsonObject] = []
    for step in range(120):
        match chance.randrange(6):
            case 0 | 1:
                on = chance.choice(["node-a", "node-b", "node-c"])
                made.append(hosts.api.seed(PODS, pod(f"guest-{step}", on=on, cpu=chance.choice(["1", "500m"]))))
            case 2:
                bound = hosts.api.seed(PODS, pod(f"pod-{step}", gib=1))
                hosts.see()
                if not hosts.bind(bound).error:
                    made.append(bound)
                hosts.see()  # a choice outlives a pod that goes before it was seen on its node
            case 3 if made:
                hosts.finish(chance.choice(made))
            case 4 if made:
                gone = made.pop(chance.randrange(len(made)))
                hosts.api.vanish(f"{PODS}/{gone['metadata']['name']}")
            case 5:
                hosts.see() if chance.random() < 0.7 else hosts.list_all()
    hosts.see()
    expected = _rooms(hosts)
    assert hosts.capacities() == expected
    hosts.start_controller()
    hosts.list_all()
    assert hosts.capacities() == expected


def _rooms(world: World) -> dict[NodeName, NodeCapacity]:
    """From nothing but the objects."""
    ledgers = world.truth()
    result = {}
    for found in world.api.objects(NODES):
        name = NodeName(found["metadata"]["name"])
        there = [each for each in world.api.objects("/api/v1/pods") if each["spec"].get("nodeName") == name]
        taken = [pods_wire.host_requests(each) for each in there if each["status"]["phase"] != "Succeeded"]
        has = pods_wire.allocatable(found)
        assert has is not None
        rest, ledger = has.left_by(taken), ledgers.get(name)
        assert ledger is None or isinstance(ledger, NodeLedger)
        result[name] = NodeCapacity(model="", gpus=(), host=rest) if ledger is None else NodeCapacity.of(ledger, rest)
    return result


def test_of_many_pods_little_is_kept() -> None:
    """Of 50,000 pods a few MiB: a number, and an amount that equal pods share."""
    hosts = OtherPods()
    takes = FreeHost(500, 512)
    hosts.replace(NonGpuPod(PodUid(f"uid-{i}"), NodeName(f"node-{i % 50}"), takes) for i in range(500))
    kept = [entry for there in hosts._on_node.values() for entry in there.items()]
    assert len(kept) == 500
    assert all(type(key) is int and value is takes for key, value in kept)
    hosts.put(NonGpuPod(PodUid("uid-0"), NodeName("node-0"), NOTHING))
    assert hosts.counts() == {takes: 499}
    hosts.replace([])
    assert not hosts._on_node
    for left in (takes, NOTHING):
        hosts.put(NonGpuPod(PodUid("uid"), NodeName("node"), left))
    assert not hosts._on_node


@pytest.mark.parametrize(
    ("limits", "annotations"),
    [
        ({names.GPU_MEM: 3}, {}),
        ({names.GPU_MEM: 3, names.GPU_CORE: 20}, {}),
        ({names.GPU_MEM: 3}, {names.ANNOTATION_GPUS: "2"}),
        ({names.GPU_MEM: 3}, {names.ANNOTATION_MODEL: "T4,!A100"}),
        ({names.GPU_MEM: 3}, {names.ANNOTATION_MIG: "never"}),
        ({names.GPU_PERCENT: 25}, {}),
        ({names.GPU: 2}, {}),
    ],
)
def test_a_pod_asks_for_the_same_when_it_is_bound(limits: dict[str, int], annotations: dict[str, str]) -> None:
    world, config = World(), ResourceConfig(whole_gpus=True)
    world.start_controller(config)
    world.api.seed(NODES, node("node-a", 10, 10, 10))
    amounts = {"requests": {"cpu": "1", "memory": "1Gi"}, "limits": limits}
    made = make_pod(make_container(resources=amounts), namespace="team", annotations={"some": "note", **annotations})
    bound = world.api.seed(PODS, made)
    world.list_all()
    assert world.bind(bound).error == ""
    world.see()
    record = world.state.index.pods[uid_of(bound)]
    assert isinstance(record, Bound)
    assert record.ask == Ask.of_pod(request_of(bound, config))
    assert world.state.index.demand().asks == {record.ask: 1}
