from typing import Any

import pytest

from gpushare import names
from gpushare.kube.api import JsonObject
from testing.builders import make_allocation, make_container, make_grant, make_node, make_pod
from testing.cli import doctor_cluster as world
from testing.cli.doctor_cluster import Change, DoctorKube


def waits(*minutes: float) -> Change:
    def change(api: DoctorKube) -> None:
        for number, age in enumerate(minutes):
            pod = make_pod(name=f"w{number}", namespace="team")
            pod["metadata"]["creationTimestamp"] = world.ago(minutes=age)
            world.seed(api, pod)

    return change


def bound(name: str, **fields: Any) -> Change:
    return lambda api: world.seed(api, world.bound_pod(name, **fields))


def holds(name: str, gpu: int | str, gib: int, **fields: Any) -> Change:
    allocation = make_allocation(name, make_grant(gpu, gib=gib), node="node-b")
    return bound(name, node="node-b", held_by=allocation, **fields)


def rejected(*pods: str) -> Change:
    def change(api: DoctorKube) -> None:
        for name in pods:
            pod = world.bound_pod(name, phase="Failed")
            pod["status"] |= {"reason": "UnexpectedAdmissionError", "message": "Allocate failed"}
            world.seed(api, pod)

    return change


def ending(change: Change, name: str) -> Change:
    def both(api: DoctorKube) -> None:
        change(api)

        def ask(pod: JsonObject) -> None:
            pod["metadata"]["deletionTimestamp"] = world.ago(seconds=1)

        world.edit(api, "Pod", name, ask, "default")

    return both


BROKEN = {names.ANNOTATION_ALLOCATION: "{"}
ROWS: list[tuple[Change, str]] = [
    (
        waits(6, 2),
        "warning pods-pending pod/team/w0 | a GPU pod waits for more than 5 minutes, this one for 6 minutes | gpushare"
        " explain -n team w0",
    ),
    (
        waits(6, 60 * 3, 7),
        "warning pods-pending pod/team/w1 | 3 GPU pods wait for more than 5 minutes, the oldest for 3 hours | gpushare"
        " explain -n team w1",
    ),
    (
        waits(60 * 24 * 9),
        "warning pods-pending pod/team/w0 | a GPU pod waits for more than 5 minutes, this one for 9 days | gpushare"
        " explain -n team w0",
    ),
    (
        bound("lost"),
        "error pods-without-gpus pod/default/lost | it is on node node-a without GPUs for 60 minutes: another"
        " scheduler or a preset node brought it there | its Events say why it got none: kubectl -n"
        " default describe pod lost; delete it, and create it without spec.nodeName",
    ),
    (
        bound("odd", annotations=BROKEN),
        "error pods-unreadable pod/default/odd | what it holds cannot be read, so node-a takes no GPU pods: annotation"
        " gpushare.dev/allocation: not JSON (unexpected end of data: line 1 column 2 (char 1)); and"
        " annotation devices.gpushare.dev/main: expected UUIDs of different GPUs, found None | kubectl -n default"
        " delete pod odd, or install the version of gpushare that bound it",
    ),
    (
        bound("odd", annotations={**BROKEN, "devices.gpushare.dev/main": "GPU-1", "memory.gpushare.dev/main": "1024"}),
        "warning pods-unreadable pod/default/odd | what it holds cannot be read, so it is counted by its other"
        " annotations: annotation gpushare.dev/allocation: not JSON (unexpected end of data: line 1 column 2 (char 1))"
        " | kubectl -n default delete pod odd, or install the version of gpushare that bound it",
    ),
    (
        rejected("r"),
        "warning pods-rejected node/node-a | 1 pod of namespace default failed there with UnexpectedAdmissionError,"
        " having come while no device plugin was registered | kubectl -n default delete pod r",
    ),
    (
        rejected(*(f"r{number:02}" for number in range(12))),
        "warning pods-rejected node/node-a | 12 pods of namespace default failed there with UnexpectedAdmissionError,"
        " having come while no device plugin was registered | kubectl -n default delete pod r00 r01 r02 r03 r04 r05"
        " r06 r07 r08 r09 ...",
    ),
    (
        world.together(holds("a", 0, 10), holds("b", 0, 10)),
        "error over-committed node/node-b | GPU 0 (GPU-0) has 15 GiB, and pods hold 5 GiB more | see who holds it:"
        " kubectl inspect gpushare -d node-b; delete one of them",
    ),
    (
        holds("a", "GPU-old", 10),
        "error over-committed node/node-b | GPU GPU-old, which it no longer has, has 0 GiB, and pods hold 10"
        " GiB more | see who holds it: kubectl inspect gpushare -d node-b; delete one of them",
    ),
]


@pytest.mark.parametrize(("change", "line"), ROWS)
def test_each_has_its_line(change: Change, line: str) -> None:
    assert world.after(change) == [line]


@pytest.mark.parametrize(
    "change",
    [
        waits(4.9),
        bound("young", created=world.ago(minutes=2)),
        bound("aliyun", annotations={names.ALIYUN_IDX: "1"}),
        bound("done", phase="Succeeded"),
        ending(bound("lost"), "lost"),
        ending(rejected("r"), "r"),
        holds("a", 0, 15),
    ],
)
def test_what_is_as_it_should_be_is_not_found(change: Change) -> None:
    assert world.after(change) == []


def test_pods_of_a_factor_that_was_lowered_are_a_warning() -> None:
    api = world.healthy()
    for name in "ab":
        held = make_allocation(name, make_grant(0, gib=10, extra_mib=8 * 1024), node="node-b")
        world.seed(api, world.bound_pod(name, node="node-b", held_by=held))
    assert world.lines(api) == [
        "warning oversubscription node/node-b | GPU 0 holds more than may be granted since the factor was lowered, so"
        " pods may run out of memory within what they were granted | wait until pods there end, or evict those of a"
        " GPU: gpushare drain node-b/0"
    ]


def test_compute_can_be_granted_twice_as_well() -> None:
    api = world.healthy()
    for name in "ab":
        grant = make_grant(0, gib=1)
        shares = type(grant)(container=grant.container, gpus=grant.gpus, memory_mib=1024, compute_percent=60)
        held = make_allocation(name, shares, node="node-b")
        world.seed(api, world.bound_pod(name, node="node-b", held_by=held))
    assert world.lines(api) == [
        "error over-committed node/node-b | pods hold 120 per cent of the compute of GPU GPU-0 | see who holds it:"
        " kubectl inspect gpushare -d node-b; delete one of them"
    ]


def whole(node: str) -> DoctorKube:
    """A pod with a whole GPU, as NVIDIA's own plugin starts it, on a node that shares or on one that does not."""
    api = world.with_whole_gpus("production", "v1.30.2", "1.30")
    plain = make_node(name="node-plain")
    plain["status"] = {"allocatable": {names.GPU: "8"}, "conditions": [{"type": "Ready", "status": "True"}]}
    world.seed(api, plain)
    world.seed(api, world.daemon_pod("nvidia-device-plugin-daemonset", node="node-plain"))
    asks = make_container(resources={"limits": {names.GPU: 1}})
    world.seed(api, make_pod(asks, name="train", node=node, phase="Running"))
    world.edit(api, "Pod", "train", lambda pod: pod["metadata"].update(creationTimestamp=world.ago(hours=1)), "default")
    return api


def test_a_pod_of_another_plugin_is_left_alone_on_its_node_only() -> None:
    assert world.lines(whole("node-plain")) == []
    assert [line.split(" | ")[0] for line in world.lines(whole("node-a"))] == [
        "error pods-without-gpus pod/default/train"
    ]


def refuses(name: str, message: str, container: str = "main") -> Change:
    def change(api: DoctorKube) -> None:
        waits = {"reason": "CreateContainerConfigError", "message": message}
        states = [{"name": "helper", "state": {"running": {}}}, {"name": container, "state": {"waiting": waits}}]
        world.edit(api, "Pod", name, lambda pod: pod["status"].update(containerStatuses=states), "default")

    return change


def test_containers_that_the_plugin_does_not_start_are_told_once_for_a_node() -> None:
    said = (
        "device plugin PreStartContainer rpc failed with err: rpc error: code = FailedPrecondition desc = pod p: X; Y"
    )
    api = world.healthy()
    for name, gpu, age in (("second", 1, 20), ("first", 0, 30), ("new", 2, 1)):
        holds(name, gpu, 1, created=world.ago(minutes=age))(api)
        refuses(name, said if name == "first" else said.replace("X", "Z"))(api)
    ending(bound("leaves", node="node-a", held_by=make_allocation("leaves", make_grant(1))), "leaves")(api)
    refuses("leaves", said)(api)
    holds("other", 3, 1)(api)
    refuses("other", 'configmap "settings" not found')(api)
    assert world.lines(api) == [
        "warning pods-refused node/node-b | its device plugin starts no container of 2 pods; of default/first it says:"
        " pod p: X; Y | what it says tells what to do; docs/troubleshoot.md; gpushare explain -n default first"
    ]
