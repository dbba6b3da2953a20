"""What no pod has requested of a node's CPU and memory is known for every node."""

import random
from typing import Any

import pytest

from controller.hosts import Hosts
from controller.state import Reserved
from gpushare import names
from gpushare.cluster import pod_records
from gpushare.cluster.records import NOTHING, Bound, Guest
from gpushare.identity import NodeName, PodUid
from gpushare.kube.api import JsonObject
from gpushare.model.ledger import NodeLedger
from gpushare.model.room import HostRoom, NodeRoom
from gpushare.resource_config import ResourceConfig
from gpushare.wire import asks, host, requests
from testing.builders import make_container, make_inventory, make_node, make_pod
from testing.controller.world import NODES, World, uid_of

A, B = NodeName("node-a"), NodeName("node-b")
HAS = HostRoom(8000, 16384)
PODS = "/api/v1/namespaces/team/pods"


def node(name: str, *gib: int, cpu: str = "8") -> JsonObject:
    made = make_node(make_inventory(*gib, node=name)) if gib else make_node(name=name)
    made["status"]["allocatable"] |= {"cpu": cpu, "memory": "16Gi"}
    return made


def pod(name: str, on: str | None = None, *, cpu: str = "1", gib: int | None = None) -> JsonObject:
    amounts: dict[str, Any] = {"requests": {"cpu": cpu, "memory": "1Gi"}}
    if gib:
        amounts["limits"] = {names.GPU_MEM: gib}
    return make_pod(make_container(resources=amounts), name=name, namespace="team", node=on, phase="Running")


@pytest.fixture
def hosts() -> World:
    """Two nodes with a host, of which the second has no GPU."""
    world = World()
    world.api.seed(NODES, node("node-a", 10, 10))
    world.api.seed(NODES, node("node-b"))
    world.list_all()
    return world


def left(world: World, name: NodeName = A) -> HostRoom | None:
    world.state.cache.cluster_index.settle()
    room = world.state.cache.cluster_index.node_rooms.room(name)
    assert room is not None
    return room.host


def test_a_node_that_does_not_say_what_it_gives_is_not_known(world: World) -> None:
    assert left(world) is None


def test_a_node_that_gives_less_has_less(hosts: World) -> None:
    hosts.api.edit(f"{NODES}/node-a", lambda found: found["status"]["allocatable"].update(cpu="6"))
    hosts.see()
    assert left(hosts) == HostRoom(6000, 16384)


def test_a_pod_that_was_resized_counts_with_what_it_has_now(hosts: World) -> None:
    one = hosts.api.seed(PODS, pod("one", "node-a"))
    hosts.see()
    resized = {"requests": {"cpu": "3", "memory": "1Gi"}}
    hosts.edit_pod(one, lambda found: found["spec"]["containers"][0].update(resources=resized))
    hosts.see()
    assert left(hosts) == HostRoom(5000, 15360)


def test_pods_with_gpus_count_from_the_choice_on_and_once(hosts: World) -> None:
    made = hosts.api.seed(PODS, pod("gpus", gib=3))
    hosts.see()
    request = requests.of_pod(made, ResourceConfig())
    assert request is not None
    reserved = hosts.state.reserve(request, A, now=hosts.clock.at)
    assert isinstance(reserved, Reserved)
    assert left(hosts) == HostRoom(7000, 15360)
    hosts.state.undo(reserved)
    assert left(hosts) == HAS
    assert hosts.bind(made).error == ""
    assert left(hosts) == HostRoom(7000, 15360)
    hosts.see()
    assert left(hosts) == HostRoom(7000, 15360)
    hosts.finish(made)
    hosts.see()
    assert left(hosts) == HAS


def test_pods_of_a_node_that_comes_later_count_until_it_goes(hosts: World) -> None:
    hosts.api.seed(PODS, pod("one", "node-c"))
    hosts.see()
    hosts.api.seed(NODES, node("node-c"))
    hosts.see()
    assert left(hosts, NodeName("node-c")) == HostRoom(7000, 15360)
    hosts.api.vanish(f"{NODES}/node-c")
    hosts.see()
    hosts.state.cache.cluster_index.settle()
    assert hosts.state.cache.cluster_index.node_rooms.room(NodeName("node-c")) is None


def test_an_amount_that_is_none_counts_as_nothing(hosts: World) -> None:
    hosts.api.seed(PODS, pod("odd", "node-a", cpu="fast"))
    hosts.api.seed(PODS, pod("good", "node-a"))
    hosts.see()
    assert left(hosts) == HostRoom(7000, 15360)


@pytest.mark.parametrize("seed", range(5))
def test_the_rooms_are_those_of_the_objects_whatever_happened(hosts: World, seed: int) -> None:
    chance = random.Random(seed)
    made: list[JsonObject] = []
    for step in range(120):
        match chance.randrange(6):
            case 0 | 1:
                on = chance.choice(["node-a", "node-b", "node-c"])
                made.append(hosts.api.seed(PODS, pod(f"guest-{step}", on, cpu=chance.choice(["1", "500m"]))))
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
    hosts.state.cache.cluster_index.settle()
    expected = _rooms(hosts)
    assert hosts.state.cache.cluster_index.node_rooms.rooms() == expected
    hosts.start_controller()
    hosts.list_all()
    assert hosts.state.cache.cluster_index.node_rooms.rooms() == expected


def _rooms(world: World) -> dict[NodeName, NodeRoom]:
    """From nothing but the objects."""
    ledgers = world.truth()
    result = {}
    for found in world.api.objects(NODES):
        name = NodeName(found["metadata"]["name"])
        there = [each for each in world.api.objects("/api/v1/pods") if each["spec"].get("nodeName") == name]
        taken = [host.requested(each) for each in there if each["status"]["phase"] == "Running"]
        has = host.allocatable(found)
        assert has is not None
        rest, ledger = host.left(has, taken), ledgers.get(name)
        assert ledger is None or isinstance(ledger, NodeLedger)
        result[name] = NodeRoom(model="", gpus=(), host=rest) if ledger is None else NodeRoom.of(ledger, rest)
    return result


def test_nodes_with_equal_rooms_share_a_number_that_is_never_used_again(world: World) -> None:
    index = world.state.cache.cluster_index
    ids = index.node_rooms.ids
    assert ids[A] == ids[B]
    before = ids[A]
    for name in ("node-a", "node-b"):
        assert world.bind(world.add_pod(3), name).error == ""
    index.settle()
    assert ids[A] == ids[B] != before
    assert set(index.node_rooms.by_id) == {ids[A]}


def test_of_many_pods_little_is_kept() -> None:
    """Of 50,000 pods a few MiB: a number, and an amount that equal pods share."""
    hosts = Hosts()
    takes = HostRoom(500, 512)
    hosts.replace_guests(Guest(PodUid(f"uid-{i}"), NodeName(f"node-{i % 50}"), takes) for i in range(500))
    kept = [entry for there in hosts._guests.values() for entry in there.items()]
    assert len(kept) == 500
    assert all(type(key) is int and value is takes for key, value in kept)
    hosts.replace_guests([])
    assert not hosts._guests
    assert not hosts._taken


def test_equal_amounts_of_pods_are_one_object() -> None:
    one, two = (pod_records.guest(pod(name, "node-a")) for name in ("one", "two"))
    assert one is not None
    assert two is not None
    assert one.takes is two.takes
    assert one.takes != NOTHING


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
    world = World()
    config = ResourceConfig(whole_gpus=True)
    world.start_controller(config)
    world.api.seed(NODES, node("node-a", 10, 10, 10))
    amounts = {"requests": {"cpu": "1", "memory": "1Gi"}, "limits": limits}
    made = make_pod(make_container(resources=amounts), namespace="team", annotations=annotations)
    made["metadata"]["annotations"] = dict(annotations)
    bound = world.api.seed(PODS, made)
    world.list_all()
    request = requests.of_pod(bound, config)
    assert request is not None
    assert world.bind(bound).error == ""
    world.see()
    record = world.state.cache.cluster_index.pods[uid_of(bound)]
    assert isinstance(record, Bound)
    assert record.ask == asks.of_request(request)
    assert world.state.cache.cluster_index.asks == {record.ask: 1}
