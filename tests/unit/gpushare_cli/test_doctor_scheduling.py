"""Whether GPU pods are placed as they should be, and what has become of them, line by line."""

from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from gpushare import names
from gpushare.kube import api as kube
from gpushare_cli import scheduler_config
from gpushare_cli.scheduler_config import Options, ServerVersion
from testing.builders import make_allocation, make_container, make_grant, make_node, make_pod
from testing.cli import doctor_cluster as world
from testing.cli.doctor_cluster import NS, Change, endpoints, missing, put, scheduler_file, seeded, setting, together
from tests.unit.gpushare_cli import findings
from tests.unit.gpushare_cli.findings import Told

CONFIG = f"configmap/{NS}/gpushare-scheduler"
CONTAINER = ("spec", "template", "spec", "containers", 0)
OTHERS = scheduler_config.for_others(Options(server=ServerVersion(1, 30)), 9)


def ready(count: int, *, waiting: int = 0) -> Change:
    pods = [make_pod(name=f"w{number}") for number in range(waiting)]
    for pod in pods:
        pod["spec"]["schedulerName"] = names.SCHEDULER
        pod["metadata"]["creationTimestamp"] = world.ago(minutes=1)
    return together(put("Deployment", names.SCHEDULER, "status", value={"readyReplicas": count}), seeded(*pods))


def file(text: str, key: str = "scheduler.yaml") -> Change:
    return put("ConfigMap", names.SCHEDULER, "data", value={key: text})


def extender(**fields: object) -> Change:
    def change(value: Any) -> None:
        ours = value["extenders"][0] | fields
        value["extenders"][0] = {key: field for key, field in ours.items() if field is not None}

    return scheduler_file(change)


def others_first(**fields: str) -> Change:
    return scheduler_file(lambda value: value["extenders"].insert(0, {**OTHERS, **fields}))


def client(**limits: float) -> Change:
    return scheduler_file(lambda value: value.update(clientConnection=limits))


def image(name: str) -> Change:
    return put("Deployment", names.SCHEDULER, *CONTAINER, "image", value=name)


def lease(field: str, value: object = None) -> Change:
    return put("Lease", names.LEASE, "spec", field, value=value)


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


controller = partial(world.answers, names.CONTROLLER_SERVICE)
BROKEN = {names.ANNOTATION_ALLOCATION: "{"}
CHANGES: dict[str, list[Change]] = {
    "scheduler-running": [missing("Deployment", names.SCHEDULER), ready(0, waiting=3), ready(1)],
    "scheduler-leads": [missing("Lease", names.SCHEDULER)],
    "scheduler-config": [
        missing("ConfigMap", names.SCHEDULER),
        file("a", "config.yaml"),
        file("a: [1\nb: 2"),
        file("later"),
        file("a: 1\n---\nb: 2\n"),
        scheduler_file(lambda value: value.update(profiles=[{"schedulerName": "default-scheduler"}])),
        scheduler_file(lambda value: value.pop("profiles")),
        scheduler_file(lambda value: value.pop("extenders")),
        *(extender(**{f"{verb}Verb": None}) for verb in ("filter", "prioritize", "preempt", "bind")),
        extender(bindVerb="bindings"),
        extender(nodeCacheCapable=None),
        extender(managedResources=[{"name": "aliyun.com/gpu-mem"}]),
        extender(ignorable=True),
        *(others_first(**{f"{verb}Verb": verb}) for verb in ("filter", "preempt", "bind")),
        scheduler_file(lambda value: value.pop("percentageOfNodesToScore")),
        extender(weight=1),
        scheduler_file(lambda value: value["extenders"].append({"urlPrefix": "http://other", "filterVerb": "filter"})),
        *(client(**limits) for limits in ({}, {"qps": 50, "burst": 100}, {"qps": 500}, {"qps": 20.5, "burst": 400})),
    ],
    "scheduler-version": [
        image(f"registry.k8s.io/kube-scheduler:v{version}.4@sha256:0123") for version in ("1.27", "1.31")
    ],
    "controller-running": [
        missing("Deployment", "gpushare-controller"),
        *(endpoints(names.CONTROLLER_SERVICE, count) for count in (0, 2)),
        together(
            endpoints(names.CONTROLLER_SERVICE, 0),
            put("Pod", "gpushare-controller-0", "metadata", "labels", names.LABEL_LEADER, value="true"),
        ),
        put("Deployment", names.CONTROLLER, "status", value={"readyReplicas": 1}),
    ],
    "controller-leads": [
        missing("Lease", names.LEASE),
        lease("holderIdentity", ""),
        lease("renewTime"),
        lease("renewTime", world.ago(minutes=3)),
    ],
    "controller-answers": [
        controller("readyz", kube.Reply(status=503, text="the gpushare controller is still reading /api/v1/pods\n")),
        controller("readyz", kube.ForbiddenError("services/proxy is forbidden")),
    ],
    "controller-ledger": [
        controller("metrics", kube.ServerFaultError("i/o timeout")),
        controller("metrics", "gpushare_ledger_differences 2.0\n"),
        controller("metrics", "gpushare_ledger_differences many\nother 1\n"),
        controller("metrics", "other 1\n"),
    ],
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
        image("registry.example/kube-scheduler:v1.29.1"),
        image("registry.example/kube-scheduler:ours"),
        image("registry.example/kube-scheduler@sha256:0123"),
        extender(managedResources=None),  # asked about every pod
        extender(weight=76),
        scheduler_file(lambda value: value["extenders"].append(OTHERS)),
        others_first(),
        extender(urlPrefix="http://10.96.0.7:12345/gpushare-scheduler/"),
        extender(urlPrefix="http://10.96.0.7:12345/scheduler"),
        waits(4.9),
        bound("young", created=world.ago(minutes=2)),
        bound("aliyun", annotations={names.ALIYUN_IDX: "1"}),
        bound("done", phase="Succeeded"),
        ending(bound("lost"), "lost"),
        ending(rejected("r"), "r"),
        holds("a", 0, 15),
    ],
)
def test_what_works_as_well_is_not_found(change: Change) -> None:
    assert world.after(change) == []


def test_whole_gpus_are_asked_about_where_they_are_served(told: Told) -> None:
    api = world.healthy()
    setting(WHOLE_GPUS="true")(api)
    [line] = [line for line in world.lines(api) if " scheduler-config " in line]
    assert [line] == told()


@pytest.mark.parametrize(("name", "shown"), [("", "default-scheduler"), ("volcano", "volcano")])
def test_another_scheduler_is_pointed_at(name: str, shown: str) -> None:
    api = world.healthy()
    setting(SCHEDULER_NAME=name)(api)
    for kind in ("Deployment", "ConfigMap", "Lease"):
        missing(kind, names.SCHEDULER)(api)
    found = world.diagnosis(api)
    assert list(world.formatted(found)) == [
        f"info scheduler-running configmap/{NS}/gpushare-config | GPU pods go to {shown}, whose file cannot be read"
        " through the API server | compare it with: gpushare scheduler-config --server-version 1.30"
        f" --scheduler-name '{name}'"
    ]
    skipped = {result.check.id: result.skipped for result in found.results if result.skipped}
    assert skipped == dict.fromkeys(
        ("scheduler-leads", "scheduler-config", "scheduler-version"), "GPU pods go to another scheduler"
    )


@pytest.mark.parametrize("renewed", [world.ago(seconds=44), world.ago(seconds=-600)])
def test_clocks_may_differ_somewhat(renewed: str) -> None:
    """The time is the API server's; the holder stamps by its own."""
    api = world.healthy()
    lease("renewTime", renewed)(api)
    assert world.lines(api) == []


def whole(node: str) -> world.DoctorKube:
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
