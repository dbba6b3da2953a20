"""Whether one controller leads, is reached, and has its ledger right. Pure."""

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Final

from gpushare import names
from gpushare.kube.api import JsonObject
from gpushare.wire import fields
from gpushare_cli import scheduler_config
from gpushare_cli.doctor import finding, objects, own
from gpushare_cli.doctor.cluster import Cluster
from gpushare_cli.doctor.finding import Finding
from gpushare_cli.doctor.snapshot import Unread, known

DIFFERENCES: Final = "gpushare_ledger_differences"
_SKEW: Final = timedelta(seconds=30)  # between the clocks of the holder and of anyone who tells us the time
_LEASE_S: Final = 15


def running(cluster: Cluster) -> Iterator[Finding]:
    """One replica is ready and the Service knows it; another one waits to take over."""
    where = f"deployment/{cluster.namespace}/{names.CONTROLLER}"
    deployment = known(cluster.snapshot.controller_deployment)
    if deployment is None:
        yield finding.error(where, "it is missing, so no GPU pod is placed", own.APPLY)
        return
    _, wanted = objects.replicas(deployment)
    reached = objects.endpoints(known(cluster.snapshot.controller_endpoints))
    look = cluster.kubectl(f"get pods -l {own.LABEL_APP}={names.CONTROLLER}")
    logs = cluster.kubectl(f"logs -l {own.LABEL_APP}={names.CONTROLLER} --prefix --tail=100")
    if not reached:
        yield finding.error(
            where, "its Service has no endpoint, because no replica leads: no GPU pod is placed", f"{look}; {logs}"
        )
    elif reached > 1:
        yield finding.error(
            where,
            f"{reached} replicas report ready, but only one may lead; normal for some seconds while the lead changes",
            f"ask again; if it stays: {look}; {logs}",
        )
    elif (alive := _alive(cluster)) < wanted:
        yield finding.warning(where, f"{alive} of {wanted} replicas run, so no one may be there to take over", look)


def leads(cluster: Cluster) -> Iterator[Finding]:
    """The Lease has a holder that renews it."""
    where = f"lease/{cluster.namespace}/{names.LEASE}"
    problem = lease_problem(known(cluster.snapshot.controller_lease), cluster.now)
    if problem:
        logs = cluster.kubectl(f"logs -l {own.LABEL_APP}={names.CONTROLLER} --prefix --tail=100")
        yield finding.error(where, f"{problem}, so no controller leads and no GPU pod is placed", logs)


def answers(cluster: Cluster) -> Iterator[Finding]:
    """The leader says that kube-scheduler may ask it."""
    objects.needs_endpoint(cluster.snapshot.controller_endpoints)
    where, answer = f"service/{cluster.namespace}/{names.CONTROLLER}", cluster.snapshot.controller_ready
    if isinstance(answer, Unread):
        yield _not_checked(cluster, where, "whether it answers", answer)
    elif not answer.is_good:
        yield finding.error(
            where,
            f"it is not ready: {answer.brief}",
            f"ask again in a minute; if it stays: {cluster.kubectl(f'logs deploy/{names.CONTROLLER}')}",
        )


def ledger(cluster: Cluster) -> Iterator[Finding]:
    """The leader's ledger is what the pods alone tell."""
    objects.needs_endpoint(cluster.snapshot.controller_endpoints)
    where, page = f"service/{cluster.namespace}/{names.CONTROLLER}", cluster.snapshot.controller_metrics
    if isinstance(page, Unread):
        yield _not_checked(cluster, where, "its ledger", page)
        return
    differences = objects.metric(page.text, DIFFERENCES)
    if differences is None:
        yield finding.warning(
            where, f"it has no metric {DIFFERENCES}", "check whether all components have the same version of the image"
        )
    elif differences:
        restart = cluster.kubectl(f"rollout restart deployment/{names.CONTROLLER}")
        yield finding.error(
            where,
            f"its ledgers of {differences:g} nodes differ from what the pods tell",
            f"keep its log for a report, then: {restart}",
        )


def lease_problem(lease: JsonObject | None, now: datetime) -> str:
    """Why no one can be leading by this Lease; empty if one can be."""
    if lease is None:
        return "there is no such Lease"
    spec = fields.mapping(lease, "spec", "lease")
    holder, renewed = fields.text(spec, "holderIdentity", "spec"), objects.moment(spec.get("renewTime"))
    if not holder or renewed is None:
        return "no one holds it"
    length = spec.get("leaseDurationSeconds") or _LEASE_S
    age = now - renewed
    if age > timedelta(seconds=length) + _SKEW:
        return f"{holder} has not renewed it for {age.total_seconds():.0f} s, and it lasts {length} s"
    return ""


def _alive(cluster: Cluster) -> int:
    """Replicas that run, whether they lead or wait."""
    return sum(
        objects.label(pod, own.LABEL_APP) == names.CONTROLLER
        and pod["metadata"].get("namespace") == cluster.namespace
        and (pod.get("status") or {}).get("phase") == "Running"
        for pod in known(cluster.snapshot.pods)
    )


def _not_checked(cluster: Cluster, where: str, what: str, unread: Unread) -> Finding:
    forward = cluster.kubectl(f"port-forward svc/{names.CONTROLLER} {scheduler_config.CONTROLLER_PORT}")
    return finding.warning(
        where,
        f"not checked {what}: {unread.error}",
        f"it takes rights for services/proxy in {cluster.namespace}, and the NetworkPolicy {names.CONTROLLER} may keep"
        f" the control plane out; check by {forward}",
    )
