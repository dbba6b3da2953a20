from typing import Any

import pytest

from gpushare import names
from gpushare.kube import api as kube
from gpushare_cli import scheduler_config
from gpushare_cli.scheduler_config import Options, ServerVersion
from testing.builders import make_pod
from testing.cli import doctor_cluster as world
from testing.cli.doctor_cluster import (
    NS,
    Change,
    answers,
    endpoints,
    missing,
    put,
    scheduler_file,
    seeded,
    setting,
    together,
)
from tests.unit.gpushare_cli import findings
from tests.unit.gpushare_cli.findings import Told

CONFIG = f"configmap/{NS}/gpushare-scheduler"
RESTART = f"kubectl -n {NS} rollout restart deployment/gpushare-scheduler"
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
        *(client(**limits) for limits in ({}, {"qps": 50, "burst": 100}, {"qps": 500}, {"qps": 20.5, "burst": 400})),
    ],
    "scheduler-version": [
        image(f"registry.k8s.io/kube-scheduler:v{version}.4@sha256:0123") for version in ("1.27", "1.31")
    ],
    "controller-running": [
        missing("Deployment", "gpushare-controller"),
        *(endpoints(names.CONTROLLER_SERVICE, count) for count in (0, 2)),
        missing("Pod", "gpushare-controller-1"),
    ],
    "controller-leads": [
        missing("Lease", names.LEASE),
        lease("holderIdentity", ""),
        lease("renewTime"),
        lease("renewTime", world.ago(minutes=3)),
    ],
    "controller-answers": [
        answers(
            names.CONTROLLER_SERVICE,
            "readyz",
            kube.Reply(status=503, text="the gpushare controller is still reading /api/v1/pods\n"),
        ),
        answers(names.CONTROLLER_SERVICE, "readyz", kube.ForbiddenError("services/proxy is forbidden")),
    ],
    "controller-ledger": [
        answers(names.CONTROLLER_SERVICE, "metrics", kube.ServerFaultError("i/o timeout")),
        answers(names.CONTROLLER_SERVICE, "metrics", "gpushare_ledger_differences 2.0\n"),
        answers(names.CONTROLLER_SERVICE, "metrics", "gpushare_ledger_differences many\nother 1\n"),
        answers(names.CONTROLLER_SERVICE, "metrics", "other 1\n"),
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
        f"ok scheduler-running configmap/{NS}/gpushare-config | GPU pods go to {shown}, whose file cannot be read"
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
