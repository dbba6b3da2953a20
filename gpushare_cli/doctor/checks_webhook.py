"""Whether new pods come past the webhook, and what happens if it is away. Pure."""

import base64
import binascii
import math
from collections.abc import Iterator, Mapping
from typing import Any, Final

from gpushare import names
from gpushare.kube import api as kube
from gpushare.kube.api import JsonObject
from gpushare.wire import fields
from gpushare_cli.doctor import finding, objects, own, trial
from gpushare_cli.doctor.checks_install import FIRST_WITH_CONDITIONS
from gpushare_cli.doctor.cluster import Cluster
from gpushare_cli.doctor.finding import Finding
from gpushare_cli.doctor.snapshot import NothingToCheckError, Unread, known

LEFT: Final = "gpushare_webhook_certificate_ttl_seconds"
_FEW_DAYS: Final = 7  # a leaf is renewed 30 days before its end, so somebody has had time
_APPLY_WHOLE: Final = (
    "write ../../whole-gpus/ for ../../gpus/ and ../../servers/ in the overlay, as manifests/README.md says, then:"
    " kubectl apply -k manifests/overlays/OVERLAY"
)
_PEM: Final = b"-----BEGIN CERTIFICATE-----"
GPU: Final = "gpu.gpushare.dev"
WHOLE: Final = "whole.gpushare.dev"
LIMIT: Final = "limit.gpushare.dev"
ISOLATION: Final = "isolation.gpushare.dev"
BINDING: Final = "binding.gpushare.dev"
REQUEST: Final = "request.gpushare.dev"
STATUS: Final = "status.gpushare.dev"
SHIPPED: Final[Mapping[bool, Mapping[str, str]]] = {
    True: {GPU: "Fail", LIMIT: "Fail", ISOLATION: "Ignore", BINDING: "Fail", REQUEST: "Fail"},
    False: {GPU: "Ignore", LIMIT: "Ignore", BINDING: "Fail", STATUS: "Ignore"},
}
"""Whether the server knows matchConditions -> webhook -> what happens while it does not answer."""


def configured(cluster: Cluster) -> Iterator[Finding]:
    """Both configurations exist and call the installation's webhook."""
    for kind, config in _configurations(cluster):
        where = f"{kind}/{names.MUTATING_WEBHOOK}"
        if config is None:
            yield finding.error(where, "it is missing, so no pod comes past the webhook", own.APPLY)
            continue
        for webhook in fields.objects(config, "webhooks", kind):
            service = fields.mapping(fields.mapping(webhook, "clientConfig", "webhook"), "service", "clientConfig")
            called = f"{service.get('namespace')}/{service.get('name')}"
            if called != f"{cluster.namespace}/{names.WEBHOOK}":
                yield finding.error(
                    where, f"{webhook.get('name')} calls {called}, not {cluster.namespace}/{names.WEBHOOK}", own.APPLY
                )


def authority(cluster: Cluster) -> Iterator[Finding]:
    """The API server was told which certificates to trust."""
    restart = cluster.kubectl(f"rollout restart deployment/{names.WEBHOOK}")
    for kind, config in _configurations(cluster):
        for webhook in fields.objects(config or {}, "webhooks", kind):
            bundle = fields.text(fields.mapping(webhook, "clientConfig", "webhook"), "caBundle", "clientConfig")
            problem = _bundle_problem(bundle)
            if problem:
                yield finding.error(
                    f"{kind}/{names.MUTATING_WEBHOOK}",
                    f"the caBundle of {webhook.get('name')} {problem}, so the API server cannot call it",
                    f"the webhook writes it at its next check; if it stays: {restart}, and let no other tool write it",
                )


def policies(cluster: Cluster) -> Iterator[Finding]:
    """While the webhook is away, exactly the pods that need it wait, as this server's version allows."""
    shipped = SHIPPED[cluster.snapshot.server >= FIRST_WITH_CONDITIONS]
    found = {
        str(webhook.get("name")): (kind, webhook)
        for kind, config in _configurations(cluster)
        for webhook in fields.objects(config or {}, "webhooks", kind)
    }
    if not found:
        raise NothingToCheckError("there are no webhooks")
    for name in sorted(shipped.keys() - found.keys() - {ISOLATION}):  # of which another check says if it is needed
        yield finding.warning(
            f"webhook/{names.MUTATING_WEBHOOK}",
            f"{name} is not configured, but is shipped for Kubernetes {cluster.snapshot.server}",
            own.APPLY,
        )
    for name, (kind, webhook) in found.items():
        wanted = "Fail" if name == WHOLE else shipped.get(name, "")
        yield from _policy(cluster, f"{kind}/{names.MUTATING_WEBHOOK}", name, webhook, wanted)
    yield from _conditions(cluster, {name: webhook for name, (_, webhook) in found.items()})


def running(cluster: Cluster) -> Iterator[Finding]:
    """Replicas are ready, and the Service knows them."""
    where = f"deployment/{cluster.namespace}/{names.WEBHOOK}"
    deployment = known(cluster.snapshot.webhook_deployment)
    if deployment is None:
        yield finding.error(where, "it is missing, so GPU pods are refused or are created incomplete", own.APPLY)
        return
    ready, wanted = objects.replicas(deployment)
    reached = objects.endpoints(known(cluster.snapshot.webhook_endpoints))
    look = cluster.kubectl(f"get pods -l {own.LABEL_APP}={names.WEBHOOK}")
    logs = cluster.kubectl(f"logs deploy/{names.WEBHOOK}")
    if not ready or not reached:
        yield finding.error(
            where,
            f"{ready} of {wanted} replicas are ready and its Service has {reached} endpoints, so no one answers the"
            " API server",
            f"{look}; {logs}",
        )
    elif ready < wanted:
        yield finding.warning(where, f"{ready} of {wanted} replicas are ready", f"{look}; {logs}")


def answers(cluster: Cluster) -> Iterator[Finding]:
    """It answers through its Service, and says that it can work."""
    objects.needs_endpoint(cluster.snapshot.webhook_endpoints)
    where, answer = f"service/{cluster.namespace}/{names.WEBHOOK}", cluster.snapshot.webhook_ready
    if not isinstance(answer, Unread):
        if not answer.is_good:
            yield finding.error(
                where, f"it is not ready: {answer.brief}", cluster.kubectl(f"logs deploy/{names.WEBHOOK}")
            )
    elif isinstance(answer.error, kube.ServerFaultError):
        yield finding.error(
            where,
            f"the API server does not reach it: {answer.error}",
            "let the control plane reach port 8443 of its pods: firewall, security group or NetworkPolicy",
        )
    else:
        yield _not_checked(cluster, where, "whether it answers", answer)


def certificate(cluster: Cluster) -> Iterator[Finding]:
    """The served certificate is good for days."""
    objects.needs_endpoint(cluster.snapshot.webhook_endpoints)
    where, page = f"secret/{cluster.namespace}/{names.WEBHOOK_SECRET}", cluster.snapshot.webhook_metrics
    if isinstance(page, Unread):
        yield _not_checked(cluster, where, "how long the certificate is good", page)
        return
    seconds = objects.metric(page.text, LEFT)
    logs = f"look for 'certificates not checked': {cluster.kubectl(f'logs deploy/{names.WEBHOOK}')}"
    if seconds is None or math.isnan(seconds):
        yield finding.error(where, "the webhook does not tell how long its certificate is good", logs)
        return
    days = seconds / 86400
    if days <= 0:
        yield finding.error(where, f"the webhook's certificate expired {-days:.1f} days ago", logs)
    elif days < _FEW_DAYS:
        yield finding.warning(where, f"the webhook's certificate expires in {days:.1f} days and was not renewed", logs)


def admission(cluster: Cluster) -> Iterator[Finding]:
    """A new pod that asks for one unit comes back as the webhook makes it."""
    where, admitted = f"pod/{own.TRIAL_NAMESPACE}/gpushare-doctor", cluster.snapshot.admitted
    if not isinstance(admitted, Unread):
        lacking = trial.missing(admitted)
        if lacking:
            yield finding.error(
                where,
                f"a new GPU pod (dry run) comes back without {' and without '.join(lacking)}",
                f"the webhook was not called; the other findings may say why, else: {own.APPLY}",
            )
    elif isinstance(admitted.error, kube.ServerFaultError | kube.BadRequestError):
        yield finding.error(
            where,
            f"a new GPU pod (dry run) is refused: {admitted.error}",
            f"{cluster.kubectl(f'logs deploy/{names.WEBHOOK}')}",
        )
    else:
        yield _not_checked(cluster, where, "whether a new GPU pod is completed", admitted)


_WITHOUT: Final[Mapping[str, str]] = {
    names.ISOLATION_POLICY: "while the webhook is away, a pod with the RuntimeClass nvidia may see every GPU",
    names.AMOUNTS_POLICY: "while the webhook is away, amounts that overflow fit every node",
    names.CDI_POLICY: "annotations of cdi.k8s.io may choose devices past the scheduler",
    names.RUNTIME_CLASS_POLICY: "RuntimeClasses of NVIDIA cannot be refused to pods",
    names.NODES_POLICY: "a device plugin may change every Node",
}


def server_policies(cluster: Cluster) -> Iterator[Finding]:
    """The API server itself refuses what would open a way past the webhook."""
    if cluster.snapshot.server < FIRST_WITH_CONDITIONS:
        raise NothingToCheckError("this server has no such policies")
    parts = {
        "validatingadmissionpolicy": known(cluster.snapshot.policies),
        "validatingadmissionpolicybinding": known(cluster.snapshot.policy_bindings),
    }
    for kind, items in parts.items():
        present = {each["metadata"]["name"] for each in items}
        for name, consequence in _WITHOUT.items():
            if name not in present:
                yield finding.warning(f"{kind}/{name}", f"it is missing: {consequence}", own.APPLY)


def _configurations(cluster: Cluster) -> Iterator[tuple[str, JsonObject | None]]:
    yield "mutatingwebhookconfiguration", known(cluster.snapshot.mutating)
    yield "validatingwebhookconfiguration", known(cluster.snapshot.validating)


def _bundle_problem(bundle: str) -> str:
    if not bundle:
        return "is empty"
    try:
        text = base64.b64decode(bundle, validate=True)
    except binascii.Error:
        return "is not base64"
    return "" if _PEM in text else "has no PEM certificate"


def _policy(cluster: Cluster, where: str, name: str, webhook: Mapping[str, Any], shipped: str) -> Iterator[Finding]:
    policy = webhook.get("failurePolicy", "Fail")
    conditions = fields.objects(webhook, "matchConditions", "webhook")
    is_narrow = bool(conditions) or bool(fields.mapping(webhook, "objectSelector", "webhook"))
    if policy == "Fail" and not is_narrow:
        yield finding.error(
            where,
            f"{name} has failurePolicy Fail and neither matchConditions nor an objectSelector: while the webhook is"
            f" away, no pod at all can be created (servers before {FIRST_WITH_CONDITIONS} need their own overlay)",
            own.APPLY,
        )
    elif shipped and policy != shipped:
        yield finding.warning(
            where,
            f"{name} has failurePolicy {policy}; {shipped} is shipped for Kubernetes {cluster.snapshot.server}",
            own.APPLY,
        )


def _conditions(cluster: Cluster, found: Mapping[str, Mapping[str, Any]]) -> Iterator[Finding]:
    """What conditions lack: of the webhooks that GPU pods need together, and of the one for all others."""
    wanted = cluster.settings.resource_config.resources
    # Whole GPUs have a webhook of their own. The one for all other pods passes for them as well, which harms nothing.
    others = [each for each in wanted if each != names.GPU]
    for group, resources in (((WHOLE, GPU), wanted), ((LIMIT,), others), ((ISOLATION,), others)):
        present = [name for name in group if name in found]
        texts = [_expressions(found[name]) for name in present]
        if not all(texts):
            continue  # one without conditions is called for every pod
        unnamed = [resource for resource in resources if not any(resource in text for text in texts)]
        if present and unnamed:
            yield finding.error(
                f"mutatingwebhookconfiguration/{names.MUTATING_WEBHOOK}",
                f"the matchConditions of {' and '.join(present)} do not name {', '.join(unnamed)}, so pods that ask for"
                " it slip by",
                _APPLY_WHOLE if names.GPU in unnamed else own.APPLY,
            )


def _expressions(webhook: Mapping[str, Any]) -> str:
    conditions = fields.objects(webhook, "matchConditions", "webhook")
    return " ".join(fields.text(each, "expression", "matchConditions") for each in conditions)


def _not_checked(cluster: Cluster, where: str, what: str, unread: Unread) -> Finding:
    return finding.warning(where, f"not checked {what}: {unread.error}", _rights(unread, cluster.namespace))


def _rights(unread: Unread, namespace: str) -> str:
    if not isinstance(unread.error, kube.ForbiddenError):
        return "try again"
    if unread.what.startswith("/"):
        forward = f"kubectl -n {namespace} port-forward svc/{names.WEBHOOK} 8443:{own.WEBHOOK_PORT}"
        return f"get rights for services/proxy in {namespace}, or check by {forward}"
    return "get rights to create pods there, or create a GPU pod and look at it"
