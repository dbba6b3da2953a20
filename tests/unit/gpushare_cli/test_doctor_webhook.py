from collections.abc import Callable

import pytest

from gpushare import names
from gpushare.kube import api as kube
from gpushare.kube.api import JsonObject
from gpushare_cli.doctor import checks_admission, checks_control_plane
from testing.cli import doctor_cluster as world
from testing.cli.doctor_cluster import NS, Change, DoctorKube
from testing.manifests import tree

APPLY = "apply the overlay for your server's version again: kubectl apply -k manifests/overlays/OVERLAY"
LOGS = f"kubectl -n {NS} logs deploy/gpushare-webhook"
PODS = f"kubectl -n {NS} get pods -l app.kubernetes.io/name=gpushare-webhook"
MUTATING = "mutatingwebhookconfiguration/gpushare-webhook"
VALIDATING = "validatingwebhookconfiguration/gpushare-webhook"
RENEW = f"look for 'certificates not checked': {LOGS}"
BY_HAND = f"check by kubectl -n {NS} port-forward svc/gpushare-webhook 8443:443"
RIGHTS = f"get rights for services/proxy in {NS}, or {BY_HAND}"
FORBIDDEN = kube.ForbiddenError('services "https:gpushare-webhook:443" is forbidden')


def answer(path: str, said: kube.Reply | kube.KubeError) -> Change:
    def change(api: DoctorKube) -> None:
        api.says(names.WEBHOOK_SERVICE, path, said)

    return change


def days(value: str) -> Change:
    return answer(
        "metrics",
        kube.Reply(status=200, text=f"# TYPE\n{checks_control_plane.CERTIFICATE_TTL} {86400 * float(value)}\n"),
    )


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


RUNNING = f"webhook-running deployment/{NS}/gpushare-webhook |"
NO_ONE = f"replicas are ready and its Service has 0 endpoints, so no one answers the API server | {PODS}; {LOGS}"
POLICIES = f"webhook-policies {MUTATING} |"
ANSWERS = f"webhook-answers service/{NS}/gpushare-webhook |"
CERTIFICATE = f"webhook-certificate secret/{NS}/gpushare-webhook-tls |"
UNKNOWN = f"{CERTIFICATE} not checked how long the certificate is good:"
ADMISSION = "webhook-admission pod/default/gpushare-doctor |"
REFUSED = f"error {ADMISSION} a new GPU pod (dry run) is refused:"
UNSURE = f"warning {ADMISSION} not checked whether a new GPU pod is completed:"
DENIED = 'admission webhook "gpu.gpushare.dev" denied the request'
UNCALLED = 'Internal error occurred: failed calling webhook "gpu.gpushare.dev": x509'
EVE = 'pods is forbidden: User "eve" cannot create resource "pods"'
UNREACHED = "error trying to reach service: dial tcp 10.0.0.1:8443: i/o timeout"
OLD_CONDITIONS = [{"name": "x", "expression": "r in ['aliyun.com/gpu-mem']"}]


def in_client(config: str, **fields: str) -> Change:
    return webhook(config, lambda each: each["clientConfig"].update(fields))


ROWS: list[tuple[Change, str]] = [
    (replicas(0, 0), f"error {RUNNING} 0 of 2 {NO_ONE}"),
    (replicas(1, 1), f"warning {RUNNING} 1 of 2 replicas are ready | {PODS}; {LOGS}"),
    (replicas(2, 0), f"error {RUNNING} 2 of 2 {NO_ONE}"),
    (
        remove("Deployment", "gpushare-webhook"),
        f"error {RUNNING} it is missing, so GPU pods are refused or are created incomplete | {APPLY}",
    ),
    (
        webhook("gpu.gpushare.dev", lambda each: each["clientConfig"]["service"].update(namespace="old")),
        f"error webhook-configured {MUTATING} | gpu.gpushare.dev calls old/gpushare-webhook, not {NS}/gpushare-webhook"
        f" | {APPLY}",
    ),
    *(
        (
            change,
            f"error webhook-ca {config} | the caBundle of {name}.gpushare.dev {problem}, so the API server cannot call"
            f" it | the webhook writes it at its next check; if it stays: kubectl -n {NS} rollout restart"
            " deployment/gpushare-webhook, and let no other tool write it",
        )
        for change, config, name, problem in (
            (
                webhook("binding.gpushare.dev", lambda each: each["clientConfig"].pop("caBundle"), "Validating"),
                *(VALIDATING, "binding", "is empty"),
            ),
            (in_client("gpu.gpushare.dev", caBundle="!"), MUTATING, "gpu", "is not base64"),
            (in_client("gpu.gpushare.dev", caBundle="Cg=="), MUTATING, "gpu", "has no PEM certificate"),
        )
    ),
    (
        webhook("gpu.gpushare.dev", lambda each: each.update(failurePolicy="Ignore")),
        f"warning {POLICIES} gpu.gpushare.dev has failurePolicy Ignore; Fail is shipped for Kubernetes 1.30 | {APPLY}",
    ),
    (
        webhook("gpu.gpushare.dev", lambda each: each.pop("matchConditions")),
        f"error {POLICIES} gpu.gpushare.dev has failurePolicy Fail and neither matchConditions nor an objectSelector:"
        " while the webhook is away, no pod at all can be created (servers before 1.30 need their own overlay) |"
        f" {APPLY}",
    ),
    (
        webhook("gpu.gpushare.dev", lambda each: each.update(matchConditions=OLD_CONDITIONS)),
        f"error {POLICIES} the matchConditions of gpu.gpushare.dev do not name nano-gpu/gpu-percent, so pods that ask"
        f" for it bypass the webhook | {APPLY}",
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
        f"error {ANSWERS} it is not ready: the certificate has expired | {LOGS}",
    ),
    (
        answer("readyz", kube.ServerFaultError(UNREACHED)),
        f"error {ANSWERS} the API server does not reach it: {UNREACHED} | let the control plane reach port 8443 of its"
        " pods: firewall, security group or NetworkPolicy",
    ),
    (answer("readyz", FORBIDDEN), f"warning {ANSWERS} not checked whether it answers: {FORBIDDEN} | {RIGHTS}"),
    (answer("metrics", FORBIDDEN), f"warning {UNKNOWN} {FORBIDDEN} | {RIGHTS}"),
    (
        answer("metrics", kube.Reply(status=404, text="Not Found")),
        f"warning {UNKNOWN} Not Found | the NetworkPolicy gpushare-webhook may keep the control plane out; {BY_HAND}",
    ),
    (days("6.5"), f"warning {CERTIFICATE} the webhook's certificate expires in 6.5 days and was not renewed | {RENEW}"),
    (days("-2.0"), f"error {CERTIFICATE} the webhook's certificate expired 2.0 days ago | {RENEW}"),
    (days("NaN"), f"error {CERTIFICATE} the webhook does not tell how long its certificate is good | {RENEW}"),
    (
        lambda api: setattr(api, "admit", lambda pod: pod),
        f"error {ADMISSION} a new GPU pod (dry run) comes back without the label gpushare.dev/managed and without"
        " NVIDIA_VISIBLE_DEVICES from the annotation of its binding | the webhook was not called; the other findings"
        f" may say why, else: {APPLY}",
    ),
    (refuse(kube.ServerFaultError(UNCALLED)), f"{REFUSED} {UNCALLED} | {LOGS}"),
    (refuse(kube.BadRequestError(DENIED)), f"{REFUSED} {DENIED} | {LOGS}"),
    (
        refuse(kube.ForbiddenError(EVE)),
        f"{UNSURE} {EVE} | get rights to create pods there, or create a GPU pod and look at it",
    ),
    (refuse(kube.UnreachableError("POST: timed out")), f"{UNSURE} POST: timed out | try again"),
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
        " pods that ask for it bypass the webhook | write ../../whole-gpus/ for ../../gpus/ and ../../servers/ in the"
        " overlay, as manifests/README.md says, then: kubectl apply -k manifests/overlays/OVERLAY"
    ]


def test_two_webhooks_name_the_resources_together() -> None:
    assert whole(webhook("gpu.gpushare.dev", lambda each: each.update(matchConditions=OLD_CONDITIONS))) == [
        f"error webhook-policies {MUTATING} | the matchConditions of whole.gpushare.dev and gpu.gpushare.dev do not"
        f" name nano-gpu/gpu-percent, so pods that ask for it bypass the webhook | {APPLY}"
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
        f"error webhook-configured {kind} | it is missing, so no pod passes the webhook | {APPLY}"
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
    assert checks_admission.SHIPPED[directory == "1.30"] == found
