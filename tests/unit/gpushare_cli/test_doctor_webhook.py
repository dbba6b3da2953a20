"""What is wrong with the webhook, line by line."""

from collections.abc import Callable

import pytest

from gpushare import names
from gpushare.kube import api as kube
from gpushare.kube.api import JsonObject
from gpushare_cli.doctor import checks_webhook
from testing.cli import doctor_cluster as world
from testing.cli.doctor_cluster import NS, Change, DoctorKube
from testing.manifests import tree

APPLY = "apply the overlay for your server's version again: kubectl apply -k manifests/overlays/OVERLAY"
LOGS = f"kubectl -n {NS} logs deploy/gpushare-webhook"
PODS = f"kubectl -n {NS} get pods -l app.kubernetes.io/name=gpushare-webhook"
MUTATING = "mutatingwebhookconfiguration/gpushare-webhook"
VALIDATING = "validatingwebhookconfiguration/gpushare-webhook"
RENEW = f"look for 'certificates not checked': {LOGS}"
RIGHTS = (
    f"get rights for services/proxy in {NS}, or check by kubectl -n {NS} port-forward svc/gpushare-webhook 8443:443"
)
FORBIDDEN = kube.ForbiddenError('services "https:gpushare-webhook:443" is forbidden')


def answer(path: str, said: kube.Reply | kube.KubeError) -> Change:
    def change(api: DoctorKube) -> None:
        api.says(names.WEBHOOK_SERVICE, path, said)

    return change


def days(value: str) -> Change:
    return answer("metrics", kube.Reply(status=200, text=f"# TYPE\n{checks_webhook.LEFT} {86400 * float(value)}\n"))


def webhook(name: str, change: Callable[[JsonObject], object], kind: str = "Mutating") -> Change:
    def edit(config: JsonObject) -> None:
        for each in config["webhooks"]:
            if each["name"] == name:
                change(each)

    return lambda api: world.edit(api, f"{kind}WebhookConfiguration", "gpushare-webhook", edit)


def replicas(ready: int, addresses: int) -> Change:
    def change(api: DoctorKube) -> None:
        world.edit(api, "Deployment", "gpushare-webhook", lambda each: each.update(status={"readyReplicas": ready}))
        subsets = [{"addresses": [{"ip": "10.0.0.1"}] * addresses}] if addresses else []
        world.edit(api, "Endpoints", "gpushare-webhook", lambda each: each.update(subsets=subsets))

    return change


def refuse(error: kube.KubeError) -> Change:
    def admit(pod: JsonObject) -> JsonObject:
        raise error

    return lambda api: setattr(api, "admit", admit)


def remove(kind: str, name: str) -> Change:
    return lambda api: world.vanish(api, kind, name)


ROWS: list[tuple[Change, str]] = [
    (
        replicas(0, 0),
        f"error webhook-running deployment/{NS}/gpushare-webhook | 0 of 2 replicas are ready and its Service has 0"
        f" endpoints, so no one answers the API server | {PODS}; {LOGS}",
    ),
    (
        replicas(1, 1),
        f"warning webhook-running deployment/{NS}/gpushare-webhook | 1 of 2 replicas are ready | {PODS}; {LOGS}",
    ),
    (
        replicas(2, 0),
        f"error webhook-running deployment/{NS}/gpushare-webhook | 2 of 2 replicas are ready and its Service has 0"
        f" endpoints, so no one answers the API server | {PODS}; {LOGS}",
    ),
    (
        remove("Deployment", "gpushare-webhook"),
        f"error webhook-running deployment/{NS}/gpushare-webhook | it is missing, so GPU pods are refused or are"
        f" created incomplete | {APPLY}",
    ),
    (
        webhook("gpu.gpushare.dev", lambda each: each["clientConfig"]["service"].update(namespace="old")),
        f"error webhook-configured {MUTATING} | gpu.gpushare.dev calls old/gpushare-webhook, not {NS}/gpushare-webhook"
        f" | {APPLY}",
    ),
    (
        webhook("binding.gpushare.dev", lambda each: each["clientConfig"].pop("caBundle"), "Validating"),
        f"error webhook-ca {VALIDATING} | the caBundle of binding.gpushare.dev is empty, so the API server cannot call"
        f" it | the webhook writes it at its next check; if it stays: kubectl -n {NS} rollout restart"
        " deployment/gpushare-webhook, and let no other tool write it",
    ),
    (
        webhook("gpu.gpushare.dev", lambda each: each["clientConfig"].update(caBundle="!")),
        f"error webhook-ca {MUTATING} | the caBundle of gpu.gpushare.dev is not base64, so the API server cannot call"
        f" it | the webhook writes it at its next check; if it stays: kubectl -n {NS} rollout restart"
        " deployment/gpushare-webhook, and let no other tool write it",
    ),
    (
        webhook("gpu.gpushare.dev", lambda each: each["clientConfig"].update(caBundle="Cg==")),
        f"error webhook-ca {MUTATING} | the caBundle of gpu.gpushare.dev has no PEM certificate, so the API server"
        f" cannot call it | the webhook writes it at its next check; if it stays: kubectl -n {NS} rollout restart"
        " deployment/gpushare-webhook, and let no other tool write it",
    ),
    (
        webhook("gpu.gpushare.dev", lambda each: each.update(failurePolicy="Ignore")),
        f"warning webhook-policies {MUTATING} | gpu.gpushare.dev has failurePolicy Ignore; Fail is shipped for"
        f" Kubernetes 1.30 | {APPLY}",
    ),
    (
        webhook("gpu.gpushare.dev", lambda each: each.pop("matchConditions")),
        f"error webhook-policies {MUTATING} | gpu.gpushare.dev has failurePolicy Fail and neither matchConditions nor"
        " an objectSelector: while the webhook is away, no pod at all can be created (servers before 1.30 need their"
        f" own overlay) | {APPLY}",
    ),
    (
        webhook(
            "gpu.gpushare.dev",
            lambda each: each.update(matchConditions=[{"name": "x", "expression": "r in ['aliyun.com/gpu-mem']"}]),
        ),
        f"error webhook-policies {MUTATING} | the matchConditions of gpu.gpushare.dev do not name"
        f" nano-gpu/gpu-percent, so pods that ask for it slip by | {APPLY}",
    ),
    (
        lambda api: world.edit(
            api, "ValidatingWebhookConfiguration", "gpushare-webhook", lambda config: config["webhooks"].pop()
        ),
        "warning webhook-policies webhook/gpushare-webhook | request.gpushare.dev is not configured, but is shipped"
        f" for Kubernetes 1.30 | {APPLY}",
    ),
    (
        answer("readyz", kube.Reply(status=503, text="the certificate has expired\n")),
        f"error webhook-answers service/{NS}/gpushare-webhook | it is not ready: the certificate has expired | {LOGS}",
    ),
    (
        answer("readyz", kube.ServerFaultError("error trying to reach service: dial tcp 10.0.0.1:8443: i/o timeout")),
        f"error webhook-answers service/{NS}/gpushare-webhook | the API server does not reach it: error trying to reach"
        " service: dial tcp 10.0.0.1:8443: i/o timeout | let the control plane reach port 8443 of its pods: firewall,"
        " security group or NetworkPolicy",
    ),
    (
        answer("readyz", FORBIDDEN),
        f"warning webhook-answers service/{NS}/gpushare-webhook | not checked whether it answers: {FORBIDDEN} |"
        f" {RIGHTS}",
    ),
    (
        answer("metrics", FORBIDDEN),
        f"warning webhook-certificate secret/{NS}/gpushare-webhook-tls | not checked how long the certificate is good:"
        f" {FORBIDDEN} | {RIGHTS}",
    ),
    (
        answer("metrics", kube.Reply(status=404, text="Not Found")),
        f"warning webhook-certificate secret/{NS}/gpushare-webhook-tls | not checked how long the certificate is good:"
        " Not Found | try again",
    ),
    (
        days("6.5"),
        f"warning webhook-certificate secret/{NS}/gpushare-webhook-tls | the webhook's certificate expires in 6.5 days"
        f" and was not renewed | {RENEW}",
    ),
    (
        days("-2.0"),
        f"error webhook-certificate secret/{NS}/gpushare-webhook-tls | the webhook's certificate expired 2.0 days ago"
        f" | {RENEW}",
    ),
    (
        days("NaN"),
        f"error webhook-certificate secret/{NS}/gpushare-webhook-tls | the webhook does not tell how long its"
        f" certificate is good | {RENEW}",
    ),
    (
        lambda api: setattr(api, "admit", lambda pod: pod),
        "error webhook-admission pod/default/gpushare-doctor | a new GPU pod (dry run) comes back without the label"
        " gpushare.dev/managed and without NVIDIA_VISIBLE_DEVICES from the annotation of its binding | the webhook was"
        f" not called; the other findings may say why, else: {APPLY}",
    ),
    (
        refuse(kube.ServerFaultError('Internal error occurred: failed calling webhook "gpu.gpushare.dev": x509')),
        "error webhook-admission pod/default/gpushare-doctor | a new GPU pod (dry run) is refused: Internal error"
        " occurred:"
        f' failed calling webhook "gpu.gpushare.dev": x509 | {LOGS}',
    ),
    (
        refuse(kube.BadRequestError('admission webhook "gpu.gpushare.dev" denied the request')),
        "error webhook-admission pod/default/gpushare-doctor | a new GPU pod (dry run) is refused: admission webhook"
        f' "gpu.gpushare.dev" denied the request | {LOGS}',
    ),
    (
        refuse(kube.ForbiddenError('pods is forbidden: User "eve" cannot create resource "pods"')),
        "warning webhook-admission pod/default/gpushare-doctor | not checked whether a new GPU pod is completed: pods"
        " is"
        ' forbidden: User "eve" cannot create resource "pods" | get rights to create pods there, or create a GPU pod'
        " and"
        " look at it",
    ),
    (
        refuse(kube.UnreachableError("POST /api/v1/namespaces/default/pods: timed out")),
        "warning webhook-admission pod/default/gpushare-doctor | not checked whether a new GPU pod is completed: POST"
        " /api/v1/namespaces/default/pods: timed out | try again",
    ),
    *(
        (remove(kind, name), f"warning server-policies {kind.lower()}/{name} | it is missing: {consequence} | {APPLY}")
        for kind in ("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding")
        for name, consequence in (
            (names.ISOLATION_POLICY, "while the webhook is away, a pod with the RuntimeClass nvidia may see every GPU"),
            (names.AMOUNTS_POLICY, "while the webhook is away, amounts that overflow fit every node"),
            (names.CDI_POLICY, "annotations of cdi.k8s.io may choose devices past the scheduler"),
            (names.RUNTIME_CLASS_POLICY, "RuntimeClasses of NVIDIA cannot be refused to pods"),
            (names.NODES_POLICY, "a device plugin may change every Node"),
        )
    ),
]


@pytest.mark.parametrize(("change", "line"), ROWS)
def test_each_has_its_line(change: Change, line: str) -> None:
    assert world.after(change) == [line]


def whole(change: Change) -> list[str]:
    api = world.with_whole_gpus("production", "v1.30.2", "1.30")
    change(api)
    return world.lines(api)


def test_whole_gpus_need_a_webhook_that_names_them() -> None:
    def without(config: JsonObject) -> None:
        config["webhooks"] = [each for each in config["webhooks"] if each["name"] != "whole.gpushare.dev"]

    assert whole(lambda api: world.edit(api, "MutatingWebhookConfiguration", "gpushare-webhook", without)) == [
        f"error webhook-policies {MUTATING} | the matchConditions of gpu.gpushare.dev do not name nvidia.com/gpu, so"
        " pods that ask for it slip by | write ../../whole-gpus/ for ../../gpus/ and ../../servers/ in the overlay, as"
        " manifests/README.md says, then: kubectl apply -k manifests/overlays/OVERLAY"
    ]


def test_two_webhooks_name_the_resources_together() -> None:
    other = [{"name": "x", "expression": "r in ['aliyun.com/gpu-mem']"}]
    assert whole(webhook("gpu.gpushare.dev", lambda each: each.update(matchConditions=other))) == [
        f"error webhook-policies {MUTATING} | the matchConditions of whole.gpushare.dev and gpu.gpushare.dev do not"
        f" name nano-gpu/gpu-percent, so pods that ask for it slip by | {APPLY}"
    ]
    assert (
        whole(webhook("gpu.gpushare.dev", lambda each: each.update(matchConditions=[], objectSelector={"a": "b"})))
        == []
    )


def test_the_webhook_of_whole_gpus_must_not_be_skipped_either() -> None:
    assert whole(webhook("whole.gpushare.dev", lambda each: each.update(failurePolicy="Ignore"))) == [
        f"warning webhook-policies {MUTATING} | whole.gpushare.dev has failurePolicy Ignore; Fail is shipped for"
        f" Kubernetes 1.30 | {APPLY}"
    ]


def test_without_configurations_no_policy_is_looked_for() -> None:
    api = world.healthy()
    world.vanish(api, "MutatingWebhookConfiguration", "gpushare-webhook")
    world.vanish(api, "ValidatingWebhookConfiguration", "gpushare-webhook")
    found = world.diagnosis(api)
    assert list(world.formatted(found)) == [
        f"error webhook-configured {kind} | it is missing, so no pod comes past the webhook | {APPLY}"
        for kind in (MUTATING, VALIDATING)
    ]
    [policies] = [result for result in found.results if result.check.id == "webhook-policies"]
    assert policies.skipped == "there are no webhooks"


def test_the_files_for_new_servers_on_an_old_one_are_noticed() -> None:
    """Servers before 1.27 drop matchConditions without a word."""
    api = world.healthy("production", "v1.25.3")
    for kind in ("Mutating", "Validating"):
        for each in ("gpu", "isolation", "binding", "request"):
            webhook(f"{each}.gpushare.dev", lambda found: found.pop("matchConditions"), kind)(api)
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
    assert checks_webhook.SHIPPED[directory == "1.30"] == found
