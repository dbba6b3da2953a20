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
from testing.cli.doctor_cluster import NS, Change, DoctorKube

DEPLOYMENT = f"deployment/{NS}/gpushare-scheduler"
CONFIG = f"configmap/{NS}/gpushare-scheduler"
PODS = f"kubectl -n {NS} get pods -l app.kubernetes.io/name=gpushare-scheduler"
LOGS = f"kubectl -n {NS} logs deploy/gpushare-scheduler"
RESTART = f"kubectl -n {NS} rollout restart deployment/gpushare-scheduler"
WRITE = (
    "write what this prints into its key scheduler.yaml: gpushare scheduler-config --server-version 1.30; then:"
    f" {RESTART}"
)
SKEW = (
    "it may be one minor version older, and not newer | set newTag: v1.30.0 for registry.k8s.io/kube-scheduler in the"
    " overlay, and apply it"
)
APPLY = "apply the overlay for your server's version again: kubectl apply -k manifests/overlays/OVERLAY"


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


LOST: list[tuple[Change, str]] = [
    (
        lambda api: world.vanish(api, "Deployment", names.SCHEDULER),
        f"error scheduler-running {DEPLOYMENT} | it is missing, so no one schedules GPU pods | {APPLY}",
    ),
    (
        ready(0, waiting=3),
        f"error scheduler-running {DEPLOYMENT} | 0 of 2 replicas are ready, so no one schedules GPU pods; 3 GPU pods"
        f" wait for it | {PODS}; {LOGS}",
    ),
    (ready(1), f"warning scheduler-running {DEPLOYMENT} | 1 of 2 replicas are ready | {PODS}; {LOGS}"),
    (
        lambda api: world.vanish(api, "Lease", names.SCHEDULER),
        f"error scheduler-leads lease/{NS}/gpushare-scheduler | there is no such Lease, so no one schedules GPU pods"
        f" | kubectl -n {NS} logs -l app.kubernetes.io/name=gpushare-scheduler --prefix --tail=100",
    ),
    (
        lambda api: world.vanish(api, "ConfigMap", names.SCHEDULER),
        f"error scheduler-config {CONFIG} | it is missing, and the scheduler does not start without it | {APPLY}",
    ),
    *(
        (
            image(f"registry.k8s.io/kube-scheduler:v{version}.4@sha256:0123"),
            f"warning scheduler-version {DEPLOYMENT} | kube-scheduler {version} runs against a server 1.30; {SKEW}",
        )
        for version in ("1.27", "1.31")
    ),
]


@pytest.mark.parametrize(("change", "line"), LOST)
def test_each_has_its_line(change: Change, line: str) -> None:
    assert world.after(change) == [line]


NO_PROFILE = "no profile has the schedulerName gpushare-scheduler that GPU pods have"
URL = "http://gpushare-controller.gpushare-system.svc:12345/gpushare-scheduler"
OTHER_VERB = "it must have no other verb, or pods without GPUs depend on the controller"
WAITS = "more requests than that to the API server wait in kube-scheduler, and with them the pods"


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (text({"config.yaml": "a"}), "it has no key scheduler.yaml"),
        (text("a: [1\nb: 2"), "scheduler.yaml: not YAML at line 2, column 2; check indentation and brackets"),
        (text("later"), "scheduler.yaml: expected an object, found a string"),
        (text("a: 1\n---\nb: 2\n"), "scheduler.yaml: 2 documents, where kube-scheduler reads one"),
        (
            config(lambda value: value.update(profiles=[{"schedulerName": "default-scheduler"}])),
            f"{NO_PROFILE}; there is default-scheduler",
        ),
        (config(lambda value: value.pop("profiles")), NO_PROFILE),
        (
            config(lambda value: value.pop("extenders")),
            f"no extender has the urlPrefix {URL}, so no one asks the controller",
        ),
        *(
            (extender(**{f"{verb}Verb": None}), f"{verb}Verb of the extender is missing, not {verb}")
            for verb in ("filter", "prioritize", "preempt", "bind")
        ),
        (extender(bindVerb="bindings"), "bindVerb of the extender is bindings, not bind"),
        (
            extender(nodeCacheCapable=None),
            "nodeCacheCapable of the extender is not true, so that whole nodes would be sent for every pod",
        ),
        (
            extender(managedResources=[{"name": "aliyun.com/gpu-mem"}]),
            "managedResources of the extender lacks nano-gpu/gpu-percent: pods that ask for it get no GPU",
        ),
        (
            extender(ignorable=True),
            "ignorable of the extender is true: without the controller, pods would be bound without GPUs",
        ),
        *(
            (
                config(partial(put_first, entry={**OTHERS, f"{verb}Verb": verb})),
                f"{verb}Verb of the extender with {names.OTHERS_VERB} is {verb}: {OTHER_VERB}",
            )
            for verb in ("filter", "preempt", "bind")
        ),
    ],
)
def test_what_keeps_the_scheduler_from_gpus_is_an_error(change: Change, problem: str) -> None:
    assert world.after(change) == [f"error scheduler-config {CONFIG} | {problem} | {WRITE}"]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (
            config(lambda value: value.pop("percentageOfNodesToScore")),
            "percentageOfNodesToScore is None, not 100: in a large cluster it may stop looking before it comes to a"
            " node whose GPUs fit",
        ),
        (
            extender(weight=1),
            "weight of the extender is 1: below 26 kube-scheduler's own scores decide where GPU pods go, not the"
            " policy, and GPUs are filled less",
        ),
        *(
            (
                config(partial(update, clientConnection=limits)),
                f"clientConnection has qps {qps} and burst {burst}: {WAITS}",
            )
            for limits, qps, burst in (
                ({}, 50, 100),
                ({"qps": 50, "burst": 100}, 50, 100),
                ({"qps": 500}, 500, 100),
                ({"qps": 20.5, "burst": 400}, 20, 400),
            )
        ),
    ],
)
def test_what_makes_it_worse_is_a_warning(change: Change, problem: str) -> None:
    assert world.after(change) == [f"warning scheduler-config {CONFIG} | {problem} | {WRITE}"]


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


def test_whole_gpus_are_asked_about_where_they_are_served() -> None:
    api = world.healthy()
    world.edit(api, "ConfigMap", "gpushare-config", lambda each: each["data"].update(GPUSHARE_WHOLE_GPUS="true"))
    [line] = [line for line in world.lines(api) if " scheduler-config " in line]
    assert line == (
        f"error scheduler-config {CONFIG} | managedResources of the extender lacks nvidia.com/gpu: pods that ask for"
        " it get no GPU | write what this prints into its key scheduler.yaml: gpushare scheduler-config"
        f" --server-version 1.30 --whole-gpus; then: {RESTART}"
    )


@pytest.mark.parametrize(("name", "shown"), [("", "default-scheduler"), ("volcano", "volcano")])
def test_another_scheduler_is_pointed_at(name: str, shown: str) -> None:
    api = world.healthy()
    world.edit(api, "ConfigMap", "gpushare-config", lambda each: each["data"].update(GPUSHARE_SCHEDULER_NAME=name))
    for kind in ("Deployment", "ConfigMap", "Lease"):
        world.vanish(api, kind, names.SCHEDULER)
    found = world.diagnosis(api)
    assert list(world.formatted(found)) == [
        f"ok scheduler-running configmap/{NS}/gpushare-config | GPU pods go to {shown}, whose configuration cannot be"
        " read through the API server | compare its file with: gpushare scheduler-config --server-version 1.30"
        f" --scheduler-name '{name}'"
    ]
    skipped = {result.check.id: result.skipped for result in found.results if result.skipped}
    assert skipped == dict.fromkeys(
        ("scheduler-leads", "scheduler-config", "scheduler-version"), "GPU pods go to another scheduler"
    )


RUNNING = f"controller-running deployment/{NS}/gpushare-controller |"
LEADS = f"error controller-leads lease/{NS}/gpushare-controller |"
LEADER_PODS = f"kubectl -n {NS} get pods -l app.kubernetes.io/name=gpushare-controller"
LEADER_LOGS = f"kubectl -n {NS} logs -l app.kubernetes.io/name=gpushare-controller --prefix --tail=100"
NO_LEADER = f"so no controller leads and no GPU pod is placed | {LEADER_LOGS}"
SERVICE = f"service/{NS}/gpushare-controller |"
FORBIDDEN = kube.ForbiddenError("services/proxy is forbidden")
BY_HAND = f"check by kubectl -n {NS} port-forward svc/gpushare-controller 12345"


def endpoints(count: int) -> Change:
    subsets = [{"addresses": [{"ip": "10.0.0.1"}] * count}] if count else []
    return lambda api: world.edit(api, "Endpoints", "gpushare-controller", lambda each: each.update(subsets=subsets))


def lease(**spec: object) -> Change:
    return lambda api: world.edit(api, "Lease", names.LEASE, lambda each: each["spec"].update(spec))


def answer(path: str, said: kube.Reply | kube.KubeError) -> Change:
    def change(api: DoctorKube) -> None:
        api.says(names.CONTROLLER_SERVICE, path, said)

    return change


ROWS: list[tuple[Change, str]] = [
    (
        lambda api: world.vanish(api, "Deployment", "gpushare-controller"),
        f"error {RUNNING} it is missing, so no GPU pod is placed | {APPLY}",
    ),
    (
        endpoints(0),
        f"error {RUNNING} its Service has no endpoint, because no replica leads: no GPU pod is placed | {LEADER_PODS};"
        f" {LEADER_LOGS}",
    ),
    (
        endpoints(2),
        f"error {RUNNING} 2 replicas report ready, but only one may lead; normal for some seconds while the lead"
        f" changes | ask again; if it stays: {LEADER_PODS}; {LEADER_LOGS}",
    ),
    (
        lambda api: world.vanish(api, "Pod", "gpushare-controller-1"),
        f"warning {RUNNING} 1 of 2 replicas run, so no one may be there to take over | {LEADER_PODS}",
    ),
    (lambda api: world.vanish(api, "Lease", names.LEASE), f"{LEADS} there is no such Lease, {NO_LEADER}"),
    (lease(holderIdentity=""), f"{LEADS} no one holds it, {NO_LEADER}"),
    (lease(renewTime=None), f"{LEADS} no one holds it, {NO_LEADER}"),
    (
        lease(renewTime=world.ago(minutes=3)),
        f"{LEADS} gpushare-controller-0_ab12 has not renewed it for 180 s, and it lasts 15 s, {NO_LEADER}",
    ),
    (
        answer("readyz", kube.Reply(status=503, text="the gpushare controller is still reading /api/v1/pods\n")),
        f"error controller-answers {SERVICE} it is not ready: the gpushare controller is still reading /api/v1/pods"
        f" | ask again in a minute; if it stays: kubectl -n {NS} logs deploy/gpushare-controller",
    ),
    (
        answer("readyz", FORBIDDEN),
        f"warning controller-answers {SERVICE} not checked whether it answers: services/proxy is forbidden | get"
        f" rights for services/proxy in {NS}, or {BY_HAND}",
    ),
    (
        answer("metrics", kube.ServerFaultError("i/o timeout")),
        f"warning controller-ledger {SERVICE} not checked its ledger: i/o timeout | the NetworkPolicy"
        f" gpushare-controller may keep the control plane out; {BY_HAND}",
    ),
    (
        answer("metrics", kube.Reply(status=200, text="gpushare_ledger_differences 2.0\n")),
        f"error controller-ledger {SERVICE} its ledgers of 2 nodes differ from what the pods tell | keep its log for a"
        f" report, then: kubectl -n {NS} rollout restart deployment/gpushare-controller",
    ),
    *(
        (
            answer("metrics", kube.Reply(status=200, text=page)),
            f"warning controller-ledger {SERVICE} it has no metric gpushare_ledger_differences | check whether all"
            " components have the same version of the image",
        )
        for page in ("gpushare_ledger_differences many\nother 1\n", "other 1\n")
    ),
]


@pytest.mark.parametrize(("change", "line"), ROWS)
def test_each_of_the_controller_has_its_line(change: Change, line: str) -> None:
    assert world.after(change) == [line]


@pytest.mark.parametrize("renewed", [world.ago(seconds=44), world.ago(seconds=-600)])
def test_clocks_may_differ_somewhat(renewed: str) -> None:
    """The time is the API server's; the holder stamps by its own."""
    api = world.healthy()
    lease(renewTime=renewed)(api)
    assert world.lines(api) == []
