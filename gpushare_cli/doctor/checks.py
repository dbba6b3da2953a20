"""The table of all checks, and what they say of a cluster. Pure."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from gpushare.errors import SettingsError, WireError
from gpushare.kube import api as kube
from gpushare_cli.doctor import (
    checks_conflicts,
    checks_controller,
    checks_dra,
    checks_hand_over,
    checks_install,
    checks_limits,
    checks_others,
    checks_plugin,
    checks_pods,
    checks_scheduler,
    checks_usage,
    checks_webhook,
    finding,
)
from gpushare_cli.doctor.cluster import Cluster
from gpushare_cli.doctor.finding import Finding, Severity
from gpushare_cli.doctor.snapshot import NothingToCheckError, NotReadError, Snapshot, Unread

Run = Callable[[Cluster], Iterable[Finding]]
READ: Final = "cluster-read"
"""Id under which parts that cannot be read are reported, each once."""


@dataclass(frozen=True, slots=True)
class Check:
    """One question to a cluster."""

    id: str
    area: str
    """Under which passed checks are counted."""
    run: Run

    @property
    def meaning(self) -> str:
        """What holds if it finds nothing."""
        return (self.run.__doc__ or "").strip().splitlines()[0]


INSTALLED: Final = Check("installed", "installation", checks_install.installed)
CHECKS: Final = (
    INSTALLED,
    Check("server-version", "installation", checks_install.server_version),
    Check("settings", "installation", checks_install.settings),
    Check("runtime-class", "installation", checks_install.runtime_class),
    Check("namespace-labels", "installation", checks_install.namespace_labels),
    Check("isolation-exceptions", "installation", checks_install.isolation_exceptions),
    Check("namespace-limits", "installation", checks_install.namespace_limits),
    Check("webhook-configured", "webhook", checks_webhook.configured),
    Check("webhook-running", "webhook", checks_webhook.running),
    Check("webhook-ca", "webhook", checks_webhook.authority),
    Check("webhook-policies", "webhook", checks_webhook.policies),
    Check("webhook-answers", "webhook", checks_webhook.answers),
    Check("webhook-certificate", "webhook", checks_webhook.certificate),
    Check("webhook-admission", "webhook", checks_webhook.admission),
    Check("server-policies", "webhook", checks_webhook.server_policies),
    Check("runtime-class-policy", "webhook", checks_hand_over.runtime_class_policy),
    Check("isolation", "webhook", checks_hand_over.isolation),
    Check("controller-running", "controller", checks_controller.running),
    Check("controller-leads", "controller", checks_controller.leads),
    Check("controller-answers", "controller", checks_controller.answers),
    Check("controller-ledger", "controller", checks_controller.ledger),
    Check("hand-over-summary", "controller", checks_hand_over.summary),
    Check("scheduler-running", "scheduler", checks_scheduler.running),
    Check("scheduler-leads", "scheduler", checks_scheduler.leads),
    Check("scheduler-config", "scheduler", checks_scheduler.configuration),
    Check("scheduler-version", "scheduler", checks_scheduler.version),
    Check("other-pods", "scheduler", checks_others.spread),
    Check("plugin-daemonset", "nodes", checks_plugin.daemonset),
    Check("plugin-running", "nodes", checks_plugin.running),
    Check("inventory", "nodes", checks_plugin.inventory),
    Check("memory-unit", "nodes", checks_plugin.memory_unit),
    Check("node-amounts", "nodes", checks_plugin.amounts),
    Check("stale-inventory", "nodes", checks_plugin.stale),
    Check("gpu-health", "nodes", checks_plugin.gpu_health),
    Check("gpu-cordon", "nodes", checks_plugin.gpu_cordon),
    Check("hand-over", "nodes", checks_hand_over.ways),
    Check("limits", "nodes", checks_limits.demanded),
    Check("limit-strength", "nodes", checks_limits.weaker),
    Check("oversubscription", "nodes", checks_limits.oversubscribed),
    Check("usage", "nodes", checks_usage.usage),
    Check("nvidia-plugin", "conflicts", checks_conflicts.nvidia_plugin),
    Check("nvidia-sharing", "conflicts", checks_conflicts.nvidia_sharing),
    Check("sharing-plugins", "conflicts", checks_conflicts.sharing_plugins),
    Check("other-schedulers", "conflicts", checks_conflicts.schedulers),
    Check("dra-devices", "conflicts", checks_dra.devices),
    Check("device-classes", "conflicts", checks_dra.device_classes),
    Check("gpu-addons", "conflicts", checks_conflicts.addons),
    Check("pods-pending", "pods", checks_pods.pending),
    Check("pods-without-gpus", "pods", checks_pods.unallocated),
    Check("pods-refused", "pods", checks_pods.refused),
    Check("pods-unreadable", "pods", checks_pods.unreadable),
    Check("pods-rejected", "pods", checks_pods.rejected),
    Check("over-committed", "pods", checks_pods.over_committed),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What a check says."""

    check: Check
    findings: tuple[Finding, ...] = ()
    skipped: str = ""
    """Why not all could be said; empty if it could."""

    @property
    def severity(self) -> Severity:
        """The worst of its findings."""
        return max((each.severity for each in self.findings), default=Severity.OK)

    @property
    def passed(self) -> bool:
        """It was done and found nothing that should be fixed."""
        return not self.skipped and self.severity is Severity.OK


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """What all checks say."""

    snapshot: Snapshot
    results: tuple[Result, ...]
    unread: tuple[Finding, ...]
    """Parts of the cluster that checks needed and that could not be read."""

    @property
    def findings(self) -> tuple[tuple[str, Finding], ...]:
        """Each with the id of its check: the worst first, else in the order of the checks."""
        found = [(READ, each) for each in self.unread]
        found += [(result.check.id, each) for result in self.results for each in result.findings]
        return tuple(sorted(found, key=lambda each: -each[1].severity))


def diagnose(snapshot: Snapshot) -> Diagnosis:
    """Run every check. Without an installation only the first means anything."""
    cluster = Cluster(snapshot)
    unread: dict[Unread, list[str]] = {}
    first = _run(INSTALLED, cluster, unread)
    if first.findings:
        rest = tuple(Result(check=check, skipped="gpushare is not installed") for check in CHECKS[1:])
    else:
        rest = tuple(_run(check, cluster, unread) for check in CHECKS[1:])
    return Diagnosis(
        snapshot=snapshot,
        results=(first, *rest),
        unread=tuple(_not_read(part, checks) for part, checks in unread.items()),
    )


def _run(check: Check, cluster: Cluster, unread: dict[Unread, list[str]]) -> Result:
    """What it says, which is not lost if it comes to something that cannot be read."""
    findings: list[Finding] = []
    skipped = ""
    try:
        findings.extend(check.run(cluster))
    except NotReadError as error:
        unread.setdefault(error.unread, []).append(check.id)
        skipped = f"cannot read {error}"
    except NothingToCheckError as error:
        skipped = str(error)
    except SettingsError as error:  # the check of the settings reports it
        skipped = f"the settings cannot be read: {error}"
    except WireError as error:
        odd = f"an object has a shape that no one expects: {error}"
        findings.append(finding.error("cluster", odd, "look at that object, and correct it"))
    return Result(check=check, findings=tuple(findings), skipped=skipped)


def _not_read(part: Unread, checks: list[str]) -> Finding:
    return finding.error(
        part.what, f"cannot be read: {part.error}; not checked: {', '.join(checks)}", _way_out(part.error)
    )


def _way_out(error: kube.KubeError) -> str:
    ways: Mapping[type[kube.KubeError], str] = {
        kube.ForbiddenError: "ask a user who may read it; docs/reference/doctor.md lists the rights",
        kube.UnauthorizedError: "log in again",
    }
    return ways.get(type(error), "ask again; if it stays, check the API server")
