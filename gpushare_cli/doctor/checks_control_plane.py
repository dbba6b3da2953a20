"""Whether each part of the installation is there, ready, reached, and led by one. Pure."""

import math
from collections.abc import Iterator
from typing import Final

from gpushare import names
from gpushare.errors import SettingsError
from gpushare.kube import api as kube
from gpushare.kube.api import JsonObject
from gpushare.wire import fields
from gpushare_cli.doctor import objects
from gpushare_cli.doctor.facts import Facts, Finding, error, note, warning
from gpushare_cli.doctor.snapshot import Unreadable, read
from gpushare_cli.scheduler_config import ServerVersion

DIFFERENCES: Final = "gpushare_ledger_differences"
CERTIFICATE_TTL: Final = "gpushare_webhook_certificate_ttl_seconds"
_OLDEST: Final = ServerVersion(1, 20)
_FEW_DAYS: Final = 7  # a leaf is renewed 30 days before its end, so somebody has had time


def installed(facts: Facts) -> Iterator[Finding]:
    """The installation's Namespace exists."""
    if read(facts.snapshot.installed) is None:
        problem = "there is no such namespace, so gpushare is not installed or is in another one"
        fix = "install it as docs/install.md says, or say which namespace with -n"
        yield error(f"namespace/{facts.namespace}", problem, fix)


def server_version(facts: Facts) -> Iterator[Finding]:
    """The server is one that the project supports."""
    server = facts.snapshot.server
    if server < _OLDEST:
        problem = f"Kubernetes {server} is older than {_OLDEST}, the oldest that works"
        yield error("server", problem, "upgrade the cluster")


def settings(facts: Facts) -> Iterator[Finding]:
    """The settings that all components share are there and can be read."""
    effect = ", and no component's container starts without it"
    facts.needed("configmap", names.CONFIG, facts.snapshot.settings, effect)
    try:
        _ = facts.settings
    except SettingsError as odd:
        restart = facts.kubectl("rollout restart deployment,daemonset")
        fix = f"{facts.kubectl(f'edit configmap {names.CONFIG}')}; then: {restart}"
        yield error(facts.own("configmap", names.CONFIG), str(odd), fix)


def webhook_running(facts: Facts) -> Iterator[Finding]:
    """Replicas are ready, and the Service knows them."""
    part, missing = facts.snapshot.webhook_deployment, ", so GPU pods are refused or are created incomplete"
    deployment = facts.needed("deployment", names.WEBHOOK, part, missing)
    reached = facts.reached(names.WEBHOOK)
    effect = f" and its Service has {reached} endpoints, so no one answers the API server"
    yield from _replicas(facts, names.WEBHOOK, deployment, effect, is_reached=reached > 0)


def webhook_answers(facts: Facts) -> Iterator[Finding]:
    """It answers through its Service, and says that it can work."""
    facts.needs_ready_replica(names.WEBHOOK)
    where, part = facts.own("service", names.WEBHOOK), facts.snapshot.webhook_ready
    if isinstance(part, Unreadable) and isinstance(part.error, kube.ServerFaultError):
        problem = f"the API server does not reach it: {part.error}"
        fix = "let the control plane reach port 8443 of its pods: firewall, security group or NetworkPolicy"
        yield error(where, problem, fix)
        return
    answer = facts.answer(names.WEBHOOK, part, "whether it answers")
    if not answer.is_good:
        yield error(where, f"it is not ready: {answer.brief}", facts.kubectl(f"logs deploy/{names.WEBHOOK}"))


def webhook_certificate(facts: Facts) -> Iterator[Finding]:
    """The served certificate is good for days."""
    where, part = facts.own("secret", names.WEBHOOK_SECRET), facts.snapshot.webhook_metrics
    page = facts.answer(names.WEBHOOK, part, "how long the certificate is good", where)
    seconds = objects.metric(page.text, CERTIFICATE_TTL)
    logs = f"look for 'certificates not checked': {facts.kubectl(f'logs deploy/{names.WEBHOOK}')}"
    if seconds is None or math.isnan(seconds):
        yield error(where, "the webhook does not tell how long its certificate is good", logs)
    elif seconds <= 0:
        yield error(where, f"the webhook's certificate expired {-seconds / 86400:.1f} days ago", logs)
    elif (days := seconds / 86400) < _FEW_DAYS:
        yield warning(where, f"the webhook's certificate expires in {days:.1f} days and was not renewed", logs)


def controller_running(facts: Facts) -> Iterator[Finding]:
    """Replicas are ready, and the Service knows the one that leads."""
    part, missing = facts.snapshot.controller_deployment, ", so no GPU pod is placed"
    deployment = facts.needed("deployment", names.CONTROLLER, part, missing)
    reached = facts.reached(names.CONTROLLER)
    labelled = not reached and any(objects.label(pod, names.LABEL_LEADER) for pod in facts.own_pods(names.CONTROLLER))
    why = "the one that leads is not ready" if labelled else f"none has the label {names.LABEL_LEADER}"
    effect = f", and its Service has no endpoint, because {why}: no GPU pod is placed"
    yield from _replicas(facts, names.CONTROLLER, deployment, effect, is_reached=reached > 0)
    if reached > 1:
        problem = (
            f"{reached} replicas have the label {names.LABEL_LEADER}; only while the lead changes may there be two"
        )
        look = f"{_pods(facts, names.CONTROLLER)}; {facts.all_logs(names.CONTROLLER)}"
        yield error(facts.own("service", names.CONTROLLER_SERVICE), problem, f"ask again; if it stays: {look}")


def controller_leads(facts: Facts) -> Iterator[Finding]:
    """The Lease has a holder that renews it."""
    part, effect = facts.snapshot.controller_lease, "no controller leads and no GPU pod is placed"
    return facts.leads(names.CONTROLLER, names.LEASE, part, effect)


def controller_answers(facts: Facts) -> Iterator[Finding]:
    """The leader says that kube-scheduler may ask it."""
    answer = facts.answer(names.CONTROLLER, facts.snapshot.controller_ready, "whether it answers")
    if not answer.is_good:
        logs = facts.kubectl(f"logs deploy/{names.CONTROLLER}")
        fix = f"ask again in a minute; if it stays: {logs}"
        yield error(facts.own("service", names.CONTROLLER), f"it is not ready: {answer.brief}", fix)


def controller_ledger(facts: Facts) -> Iterator[Finding]:
    """The leader's ledger is what the pods alone tell."""
    page = facts.answer(names.CONTROLLER, facts.snapshot.controller_metrics, "its ledger")
    where, differences = facts.own("service", names.CONTROLLER), objects.metric(page.text, DIFFERENCES)
    if differences is None:
        same = "check whether all components have the same version of the image"
        yield warning(where, f"it has no metric {DIFFERENCES}", same)
    elif differences:
        restart = facts.kubectl(f"rollout restart deployment/{names.CONTROLLER}")
        problem = f"its ledgers of {differences:g} nodes differ from what the pods tell"
        yield error(where, problem, f"keep its log for a report, then: {restart}")


def scheduler_running(facts: Facts) -> Iterator[Finding]:
    """The scheduler that GPU pods name runs."""
    wanted = facts.settings.scheduler_name
    if wanted != names.SCHEDULER:
        other = wanted or names.DEFAULT_SCHEDULER
        problem = f"GPU pods go to {other}, whose file cannot be read through the API server"
        ours = f"gpushare scheduler-config --server-version {facts.snapshot.server} --scheduler-name '{wanted}'"
        yield note(facts.own("configmap", names.CONFIG), problem, f"compare it with: {ours}")
        return
    waiting = f"; {count} GPU pods wait for it" if (count := _waiting(facts, wanted)) else ""
    effect = f", so no one schedules GPU pods{waiting}"
    deployment = facts.needed("deployment", names.SCHEDULER, facts.snapshot.scheduler_deployment, effect)
    yield from _replicas(facts, names.SCHEDULER, deployment, effect)


def scheduler_leads(facts: Facts) -> Iterator[Finding]:
    """One replica of the second scheduler leads."""
    facts.needs_second_scheduler()
    lease = facts.snapshot.scheduler_lease
    yield from facts.leads(names.SCHEDULER, names.SCHEDULER, lease, "no one schedules GPU pods")


def scheduler_version(facts: Facts) -> Iterator[Finding]:
    """The second scheduler has the server's minor version, or the one before it."""
    facts.needs_second_scheduler()
    deployment = read(facts.snapshot.scheduler_deployment)
    server = facts.snapshot.server
    for container in fields.objects(objects.pod_spec(deployment or {}), "containers", "spec"):
        tag = fields.text(container, "image", "container").partition("@")[0].rpartition(":")[2]
        try:
            found = ServerVersion.parse(tag)
        except SettingsError:
            continue  # somebody's own tag, or none; nothing says that it is wrong
        if not 0 <= server.minor - found.minor <= 1:
            problem = f"kube-scheduler {found} runs against a server {server}: it may be one minor older, not newer"
            fix = f"set newTag: v{server}.0 for registry.k8s.io/kube-scheduler in the overlay, and apply it"
            yield warning(facts.own("deployment", names.SCHEDULER), problem, fix)


def _replicas(
    facts: Facts, name: str, deployment: JsonObject, effect: str, *, is_reached: bool = True
) -> Iterator[Finding]:
    """Args: effect: of no replica being ready, or none being reached."""
    ready, wanted = objects.replicas(deployment)
    where, message = facts.own("deployment", name), f"{ready} of {wanted} replicas are ready"
    fix = f"{_pods(facts, name)}; {facts.kubectl(f'logs deploy/{name}')}"
    if not ready or not is_reached:
        yield error(where, f"{message}{effect}", fix)
    elif ready < wanted:
        yield warning(where, message, fix)


def _pods(facts: Facts, component: str) -> str:
    return facts.kubectl(f"get pods -l {names.LABEL_APP}={component}")


def _waiting(facts: Facts, scheduler: str) -> int:
    """GPU pods on no node that name this scheduler, if anybody can tell."""
    if isinstance(facts.snapshot.pods, Unreadable):
        return 0
    specs = (pod.get("spec") or {} for pod, _ in facts.pods)
    return sum(not spec.get("nodeName") and spec.get("schedulerName") == scheduler for spec in specs)
