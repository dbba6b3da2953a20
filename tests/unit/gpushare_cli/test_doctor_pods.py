from dataclasses import replace
from typing import Any

import pytest

from gpushare import names
from testing.builders import make_allocation, make_container, make_grant, make_node, make_pod
from testing.cli import doctor_cluster as world
from testing.cli.doctor_cluster import Change, DoctorKube, put, seeded, together
from tests.unit.gpushare_cli import findings
from tests.unit.gpushare_cli.findings import Told


def waits(*minutes: float) -> Change:
    pods = [make_pod(name=f"w{number}", namespace="team") for number in range(len(minutes))]
    for pod, age in zip(pods, minutes, strict=True):
        pod["metadata"]["creationTimestamp"] = world.ago(minutes=age)
    return seeded(*pods)


def bound(name: str, **fields: Any) -> Change:
    return seeded(world.bound_pod(name, **fields))


def holds(name: str, gpu: int | str, gib: int, **fields: Any) -> Change:
    allocation = make_allocation(name, make_grant(gpu, gib=gib), node="node-b")
    return bound(name, node="node-b", held_by=allocation, **fields)


def rejected(*pods: str) -> Change:
    status = {"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": "Allocate failed"}
    return seeded(*(world.bound_pod(name) | {"status": status} for name in pods))


def ending(change: Change, name: str) -> Change:
    at = put("Pod", name, "metadata", "deletionTimestamp", value=world.ago(seconds=1), namespace="default")
    return together(change, at)


BROKEN = {names.ANNOTATION_ALLOCATION: "{"}
CHANGES: dict[str, list[Change]] = {
    "pods-pending": [waits(6, 2), waits(6, 60 * 3, 7), waits(60 * 24 * 9)],
    "pods-without-gpus": [bound("lost")],
    "pods-unreadable": [
        bound("odd", annotations=BROKEN),
        bound("odd", annotations={**BROKEN, "devices.gpushare.dev/main": "GPU-1", "memory.gpushare.dev/main": "1024"}),
    ],
    "pods-rejected": [rejected("r"), rejected(*(f"r{number:02}" for number in range(12)))],
    "over-committed": [
        together(holds("a", 0, 10), holds("b", 0, 10)),
        holds("a", "GPU-old", 10),
        world.twice(replace(make_grant(0, gib=1), compute_percent=60)),
    ],
}


@pytest.mark.parametrize(("check", "changes"), CHANGES.items())
def test_each_change_has_its_line(check: str, changes: list[Change]) -> None:
    findings.compare(check, changes)


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


def whole(node: str) -> DoctorKube:
    """A pod with a whole GPU, as NVIDIA's own plugin starts it, on a node that shares or on one that does not."""
    api = world.with_whole_gpus("production", "v1.30.2", "1.30")
    plain = make_node(name="node-plain")
    plain["status"] = {"allocatable": {names.GPU: "8"}, "conditions": [{"type": "Ready", "status": "True"}]}
    asks = make_container(resources={"limits": {names.GPU: 1}})
    pod = make_pod(asks, name="train", node=node, phase="Running")
    pod["metadata"]["creationTimestamp"] = world.ago(hours=1)
    seeded(plain, world.daemon_pod("nvidia-device-plugin-daemonset", node="node-plain"), pod)(api)
    return api


def test_a_pod_of_another_plugin_is_left_alone_on_its_node_only(told: Told) -> None:
    assert world.lines(whole("node-plain")) == []
    assert [line.split(" | ")[0] for line in world.lines(whole("node-a"))] == told()


def refuses(name: str, message: str) -> Change:
    waits = {"reason": "CreateContainerConfigError", "message": message}
    states = [{"name": "helper", "state": {"running": {}}}, {"name": "main", "state": {"waiting": waits}}]
    return put("Pod", name, "status", "containerStatuses", value=states, namespace="default")


def test_containers_that_the_plugin_does_not_start_are_told_once_for_a_node(told: Told) -> None:
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
    assert world.lines(api) == told()
