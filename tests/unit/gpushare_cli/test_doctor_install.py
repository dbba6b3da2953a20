"""Whether the installation and its webhook are as they should be, line by line."""

from functools import partial
from itertools import product
from pathlib import Path

import pytest

import controller.main
from gpushare import names
from gpushare.kube import api as kube
from gpushare.kube.api import JsonObject
from gpushare_cli.doctor import checks_admission, checks_control_plane, objects, snapshot
from testing import reviews
from testing.cli import doctor_cluster as world
from testing.cli.doctor_cluster import Change, answers, missing, put, seeded, setting, together, without_webhook
from testing.manifests import tree
from tests.unit.gpushare_cli import findings
from tests.unit.gpushare_cli.findings import Told
from webhook.metrics import Metrics


def namespace(name: str, **labels: str) -> Change:
    return seeded({"kind": "Namespace", "metadata": {"name": name, "labels": labels}})


NO_CLASS = missing("RuntimeClass", "nvidia")
MUTATING = "mutatingwebhookconfiguration/gpushare-webhook"
VALIDATING = "validatingwebhookconfiguration/gpushare-webhook"
answer = partial(answers, names.WEBHOOK_SERVICE)
FORBIDDEN = kube.ForbiddenError('services "https:gpushare-webhook:443" is forbidden')


def days(value: str) -> Change:
    return answer("metrics", f"# TYPE\n{checks_control_plane.CERTIFICATE_TTL} {86400 * float(value)}\n")


def webhook(name: str, kind: str = "Mutating", **fields: object) -> Change:
    """Fields of a webhook, or of its clientConfig, are others; None for those that are gone."""

    def edit(config: JsonObject) -> None:
        [found] = [each for each in config["webhooks"] if each["name"] == name]
        for key, value in fields.items():
            parent = found["clientConfig"] if key in found["clientConfig"] else found
            parent[key] = value
            if value is None:
                del parent[key]

    return world.edited(f"{kind}WebhookConfiguration", "gpushare-webhook", edit)


def replicas(ready: int, addresses: int) -> Change:
    status = put("Deployment", names.WEBHOOK_SERVICE, "status", value={"readyReplicas": ready})
    return together(status, world.endpoints(names.WEBHOOK_SERVICE, addresses))


def refuse(error: kube.KubeError) -> Change:
    def admit(pod: JsonObject) -> JsonObject:
        raise error

    return lambda api: setattr(api, "admit", admit)


POLICIES = f"webhook-policies {MUTATING} |"
DENIED = 'admission webhook "gpu.gpushare.dev" denied the request'
UNCALLED = 'Internal error occurred: failed calling webhook "gpu.gpushare.dev": x509'
EVE = 'pods is forbidden: User "eve" cannot create resource "pods"'
UNREACHED = "error trying to reach service: dial tcp 10.0.0.1:8443: i/o timeout"
OLD_CONDITIONS = [{"name": "x", "expression": "r in ['aliyun.com/gpu-mem']"}]

CHANGES: dict[str, list[Change]] = {
    "settings": [missing("ConfigMap", "gpushare-config"), setting(MEMORY_UNIT="GB"), setting(WHOLE_GPUS="maybe")],
    "runtime-class": [NO_CLASS, together(NO_CLASS, setting(RUNTIME_CLASS_MODE="always"))],
    "namespace-labels": [put("Namespace", name, "metadata", "labels") for name in ("kube-system", world.NS)],
    "isolation-exceptions": [
        namespace("monitoring", **{"gpushare.dev/isolation": "disabled"}),
        namespace("gpu-operator", **{"kubernetes.io/metadata.name": "gpu-operator"}),
    ],
    "namespace-limits": [
        namespace("team-a", **{f"gpushare.dev/{key}": value})
        for key, value in (("limit", "true"), ("gpu-policy", "Spread"), ("watchdog", "Evict"), ("watchdog", "evict"))
    ],
    "webhook-running": [replicas(0, 0), replicas(1, 1), replicas(2, 0), missing("Deployment", "gpushare-webhook")],
    "webhook-configured": [webhook("gpu.gpushare.dev", service={"namespace": "old", "name": "gpushare-webhook"})],
    "webhook-ca": [
        webhook("binding.gpushare.dev", "Validating", caBundle=None),
        webhook("gpu.gpushare.dev", caBundle="!"),
        webhook("gpu.gpushare.dev", caBundle="Cg=="),
    ],
    "webhook-policies": [
        webhook("gpu.gpushare.dev", failurePolicy="Ignore"),
        webhook("gpu.gpushare.dev", matchConditions=None),
        webhook("gpu.gpushare.dev", matchConditions=OLD_CONDITIONS),
        put("ValidatingWebhookConfiguration", "gpushare-webhook", "webhooks", -1),
    ],
    "webhook-answers": [
        answer("readyz", kube.Reply(status=503, text="the certificate has expired\n")),
        answer("readyz", kube.ServerFaultError(UNREACHED)),
        answer("readyz", FORBIDDEN),
    ],
    "webhook-certificate": [
        answer("metrics", FORBIDDEN),
        answer("metrics", kube.Reply(status=404, text="Not Found")),
        days("6.5"),
        days("-2.0"),
        days("NaN"),
    ],
    "webhook-admission": [
        lambda api: setattr(api, "admit", lambda pod: pod),
        refuse(kube.ServerFaultError(UNCALLED)),
        refuse(kube.BadRequestError(DENIED)),
        refuse(kube.ForbiddenError(EVE)),
        refuse(kube.UnreachableError("POST: timed out")),
    ],
    "server-policies": [
        missing(kind, name)
        for kind in ("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding")
        for name in names.POLICIES
    ],
}


@pytest.mark.parametrize(("check", "changes"), CHANGES.items())
def test_each_change_has_its_line(check: str, changes: list[Change]) -> None:
    findings.compare(check, changes)


@pytest.mark.parametrize("mode", ["never", "if-exists"])
def test_a_runtime_class_is_not_missed_where_nothing_needs_it(mode: str) -> None:
    api = world.healthy()
    together(NO_CLASS, setting(RUNTIME_CLASS_MODE=mode))(api)
    env = [{"name": "GPUSHARE_GPU_SOURCE", "value": "simulated:/etc/gpushare/profile.yaml"}]
    if mode == "if-exists":
        put("DaemonSet", world.PLUGIN, "spec", "template", "spec", "containers", 0, "env", value=env)(api)
    assert world.lines(api) == []


def test_without_an_installation_there_is_one_line_and_nothing_else_is_looked_at(told: Told) -> None:
    api = world.DoctorKube()
    found = world.diagnosis(api, "elsewhere")
    assert list(world.formatted(found)) == told()
    assert {result.skipped for result in found.results[1:]} == {"gpushare is not installed"}


def test_a_server_that_is_too_old_is_named(told: Told) -> None:
    assert world.lines(world.healthy("production-1.20", "v1.19.3"))[0] == told()[0]


@pytest.mark.parametrize(
    ("overlay", "version", "server"),
    [
        ("production", "v1.30.2", "1.30"),
        ("production", "v1.36.0+k3s1", "1.30"),
        ("production-1.25", "v1.27.3", "1.25"),
        ("production-1.23", "v1.24.17", "1.23"),
        ("production-1.20", "v1.20.15", "1.20"),
    ],
)
def test_an_installation_as_the_manifests_make_it_has_no_finding_with_whole_gpus_or_without(
    overlay: str, version: str, server: str
) -> None:
    assert world.lines(world.healthy(overlay, version)) == []
    assert world.lines(world.with_whole_gpus(overlay, version, server)) == []


def test_the_webhook_completes_the_trial_pod_and_that_is_noticed() -> None:
    decision = reviews.admitted(snapshot.trial_pod())
    assert checks_admission.missing(decision.pod) == []
    assert decision.warnings == ()


def test_the_webhook_tells_the_time_left_under_the_expected_name() -> None:
    page = Metrics(lambda: 61.25, lambda: 0.0).exposition().decode()
    assert objects.metric(page, checks_control_plane.CERTIFICATE_TTL) == 61.25


def test_the_controller_tells_the_differences_under_the_expected_name() -> None:
    source = Path(controller.main.__file__).read_text(encoding="utf-8")
    assert f'"{checks_control_plane.DIFFERENCES}"' in source


def whole(change: Change) -> list[str]:
    api = world.with_whole_gpus("production", "v1.30.2", "1.30")
    change(api)
    return world.lines(api)


def test_whole_gpus_need_a_webhook_that_names_them(told: Told) -> None:
    assert whole(without_webhook("whole.gpushare.dev")) == told()


def test_two_webhooks_name_the_resources_together(told: Told) -> None:
    assert whole(webhook("gpu.gpushare.dev", matchConditions=OLD_CONDITIONS)) == told()
    assert whole(webhook("gpu.gpushare.dev", matchConditions=[], objectSelector={"a": "b"})) == []


def test_the_webhook_of_whole_gpus_must_not_be_skipped_either(told: Told) -> None:
    assert whole(webhook("whole.gpushare.dev", failurePolicy="Ignore")) == told()


def test_without_configurations_no_policy_is_looked_for() -> None:
    api = world.healthy()
    world.vanish(api, "MutatingWebhookConfiguration", "gpushare-webhook")
    world.vanish(api, "ValidatingWebhookConfiguration", "gpushare-webhook")
    found = world.diagnosis(api)
    assert list(world.formatted(found)) == [
        f"error webhook-configured {kind} | it is missing, so no pod passes the webhook | {objects.APPLY}"
        for kind in (MUTATING, VALIDATING)
    ]
    [policies] = [result for result in found.results if result.check.id == "webhook-policies"]
    assert policies.skipped == "there are no webhooks"


def test_the_files_for_new_servers_on_an_old_one_are_noticed() -> None:
    """Servers before 1.27 drop matchConditions without a word."""
    api = world.healthy("production", "v1.25.3")
    for kind, each in (*product(["Mutating"], ["gpu", "isolation"]), *product(["Validating"], ["binding", "request"])):
        webhook(f"{each}.gpushare.dev", kind, matchConditions=None)(api)
    stops = [line for line in world.lines(api) if "no pod at all can be created" in line]
    assert [line.split()[2] for line in stops] == [MUTATING, VALIDATING, VALIDATING]


@pytest.mark.parametrize("directory", tree.SERVERS)
def test_the_policies_that_are_expected_are_those_that_are_shipped(directory: str) -> None:
    found = {
        each["name"]: each["failurePolicy"]
        for item in tree.listed(f"servers/{directory}")
        if item["kind"].endswith("WebhookConfiguration")
        for each in item["webhooks"]
    }
    assert checks_admission.SHIPPED[directory == "1.30"] == found
