from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import yaml

from gpushare import names
from gpushare.kube import api as kube
from gpushare_cli import scheduler_config
from gpushare_cli.scheduler_config import Options, ServerVersion
from testing.builders import make_pod
from testing.cli import doctor_cluster as world
from testing.cli.doctor_cluster import NS, Change, DoctorKube, missing, setting
from tests.unit.gpushare_cli import findings
from tests.unit.gpushare_cli.findings import Told

CONFIG = f"configmap/{NS}/gpushare-scheduler"
RESTART = f"kubectl -n {NS} rollout restart deployment/gpushare-scheduler"
OTHERS = scheduler_config.for_others(Options(server=ServerVersion(1, 30)), 9)


def ready(count: int, *, waiting: int = 0) -> Change:
    def change(api: DoctorKube) -> None:
        world.edit(api, "Deployment", names.SCHEDULER, lambda each: each.update(status={"readyReplicas": count}))
        for number in range(waiting):
            pod = make_pod(name=f"w{number}")
            pod["spec"]["schedulerName"] = names.SCHEDULER
            pod["metadata"]["creationTimestamp"] = world.ago(minutes=1)
            world.seed(api, pod)

    return change


def text(value: str | dict[str, str]) -> Change:
    data = {"scheduler.yaml": value} if isinstance(value, str) else value
    return lambda api: world.edit(api, "ConfigMap", names.SCHEDULER, lambda each: each.update(data=data))


def config(change: Callable[[Any], object]) -> Change:
    def edit(item: Any) -> None:
        value = yaml.safe_load(item["data"]["scheduler.yaml"])
        change(value)
        item["data"]["scheduler.yaml"] = yaml.safe_dump(value)

    return lambda api: world.edit(api, "ConfigMap", names.SCHEDULER, edit)


def extender(**fields: object) -> Change:
    def change(value: Any) -> None:
        ours = value["extenders"][0]
        ours |= fields
        for key in [key for key, field in fields.items() if field is None]:
            del ours[key]

    return config(change)


def update(value: Any, **fields: object) -> None:
    value.update(fields)


def put_first(value: Any, entry: scheduler_config.Entry) -> None:
    value["extenders"].insert(0, entry)


def image(name: str) -> Change:
    def change(item: Any) -> None:
        item["spec"]["template"]["spec"]["containers"][0]["image"] = name

    return lambda api: world.edit(api, "Deployment", names.SCHEDULER, change)


def endpoints(count: int) -> Change:
    subsets = [{"addresses": [{"ip": "10.0.0.1"}] * count}] if count else []
    return lambda api: world.edit(api, "Endpoints", "gpushare-controller", lambda each: each.update(subsets=subsets))


def lease(**spec: object) -> Change:
    return lambda api: world.edit(api, "Lease", names.LEASE, lambda each: each["spec"].update(spec))


def answer(path: str, said: kube.Reply | kube.KubeError) -> Change:
    return lambda api: api.says(names.CONTROLLER_SERVICE, path, said)


def metrics(page: str) -> Change:
    return answer("metrics", kube.Reply(status=200, text=page))


CHANGES: dict[str, list[Change]] = {
    "scheduler-running": [missing("Deployment", names.SCHEDULER), ready(0, waiting=3), ready(1)],
    "scheduler-leads": [missing("Lease", names.SCHEDULER)],
    "scheduler-config": [
        missing("ConfigMap", names.SCHEDULER),
        text({"config.yaml": "a"}),
        text("a: [1\nb: 2"),
        text("later"),
        text("a: 1\n---\nb: 2\n"),
        config(lambda value: value.update(profiles=[{"schedulerName": "default-scheduler"}])),
        config(lambda value: value.pop("profiles")),
        config(lambda value: value.pop("extenders")),
        *(extender(**{f"{verb}Verb": None}) for verb in ("filter", "prioritize", "preempt", "bind")),
        extender(bindVerb="bindings"),
        extender(nodeCacheCapable=None),
        extender(managedResources=[{"name": "aliyun.com/gpu-mem"}]),
        extender(ignorable=True),
        *(config(partial(put_first, entry={**OTHERS, f"{verb}Verb": verb})) for verb in ("filter", "preempt", "bind")),
        config(lambda value: value.pop("percentageOfNodesToScore")),
        extender(weight=1),
        *(
            config(partial(update, clientConnection=limits))
            for limits in ({}, {"qps": 50, "burst": 100}, {"qps": 500}, {"qps": 20.5, "burst": 400})
        ),
    ],
    "scheduler-version": [
        image(f"registry.k8s.io/kube-scheduler:v{version}.4@sha256:0123") for version in ("1.27", "1.31")
    ],
    "controller-running": [
        missing("Deployment", "gpushare-controller"),
        endpoints(0),
        endpoints(2),
        missing("Pod", "gpushare-controller-1"),
    ],
    "controller-leads": [
        missing("Lease", names.LEASE),
        lease(holderIdentity=""),
        lease(renewTime=None),
        lease(renewTime=world.ago(minutes=3)),
    ],
    "controller-answers": [
        answer("readyz", kube.Reply(status=503, text="the gpushare controller is still reading /api/v1/pods\n")),
        answer("readyz", kube.ForbiddenError("services/proxy is forbidden")),
    ],
    "controller-ledger": [
        answer("metrics", kube.ServerFaultError("i/o timeout")),
        metrics("gpushare_ledger_differences 2.0\n"),
        metrics("gpushare_ledger_differences many\nother 1\n"),
        metrics("other 1\n"),
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
        config(lambda value: value["extenders"].append(OTHERS)),
        config(partial(put_first, entry=OTHERS)),
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
    lease(renewTime=renewed)(api)
    assert world.lines(api) == []
