from itertools import product

import pytest

from gpushare import names
from gpushare.kube import api as kube
from gpushare.kube.api import JsonObject
from gpushare_cli.doctor import checks_admission, checks_control_plane
from testing.cli import doctor_cluster as world
from testing.cli.doctor_cluster import Change, answers, edited, endpoints, missing, put, together, without_webhook
from testing.manifests import tree
from tests.unit.gpushare_cli import findings
from tests.unit.gpushare_cli.findings import Told

APPLY = "apply the overlay for your server's version again: kubectl apply -k manifests/overlays/OVERLAY"
MUTATING = "mutatingwebhookconfiguration/gpushare-webhook"
VALIDATING = "validatingwebhookconfiguration/gpushare-webhook"
FORBIDDEN = kube.ForbiddenError('services "https:gpushare-webhook:443" is forbidden')


def answer(path: str, said: str | kube.Reply | kube.KubeError) -> Change:
    return answers(names.WEBHOOK_SERVICE, path, said)


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

    return edited(f"{kind}WebhookConfiguration", "gpushare-webhook", edit)


def replicas(ready: int, addresses: int) -> Change:
    status = put("Deployment", names.WEBHOOK_SERVICE, "status", value={"readyReplicas": ready})
    return together(status, endpoints(names.WEBHOOK_SERVICE, addresses))


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
    "webhook-running": [replicas(0, 0), replicas(1, 1), replicas(2, 0), missing("Deployment", "gpushare-webhook")],
    "webhook-configured": [
        webhook("gpu.gpushare.dev", service={"namespace": "old", "name": "gpushare-webhook"}),
    ],
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
        *(
            missing(kind, name)
            for kind in ("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding")
            for name in names.POLICIES
        )
    ],
}


@pytest.mark.parametrize(("check", "changes"), CHANGES.items())
def test_each_change_has_its_line(check: str, changes: list[Change]) -> None:
    findings.compare(check, changes)


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
        f"error webhook-configured {kind} | it is missing, so no pod passes the webhook | {APPLY}"
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
