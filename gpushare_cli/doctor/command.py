"""`gpushare doctor`: the table of all checks, what they say of a cluster, and that as a table or as JSON."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any, Final

from gpushare.errors import SettingsError, WireError
from gpushare.kube import api as kube
from gpushare.kube.api import KubeApi
from gpushare.runtime.clock import Clock
from gpushare_cli import arguments, console
from gpushare_cli.arguments import Command
from gpushare_cli.console import BAD, OK, Streams
from gpushare_cli.doctor import (
    checks_admission,
    checks_conflicts,
    checks_control_plane,
    checks_nodes,
    checks_scheduling,
    snapshot,
)
from gpushare_cli.doctor.facts import Facts, Finding, LastFindingError, NothingToCheckError, Severity, error
from gpushare_cli.doctor.snapshot import Snapshot, Unreadable, UnreadableError

VERSION: Final = 1  # of the JSON object. Fields may be added to it; one that changes its meaning changes the version.
READ: Final = "cluster-read"  # id of the findings that a part cannot be read, one for each part
_SHOWN: Final = 20  # lines of one check; a cluster of a thousand nodes may have the same wrong with all


@dataclass(frozen=True, slots=True)
class Check:
    id: str
    area: str  # under which passed checks are counted
    run: Callable[[Facts], Iterable[Finding]]

    @property
    def meaning(self) -> str:
        """What holds if it finds nothing."""
        return (self.run.__doc__ or "").strip().splitlines()[0]


CHECKS: Final = (
    Check("installed", "installation", checks_control_plane.installed),
    Check("server-version", "installation", checks_control_plane.server_version),
    Check("settings", "installation", checks_control_plane.settings),
    Check("runtime-class", "installation", checks_admission.runtime_class),
    Check("namespace-labels", "installation", checks_admission.namespace_labels),
    Check("isolation-exceptions", "installation", checks_admission.isolation_exceptions),
    Check("namespace-limits", "installation", checks_admission.namespace_limits),
    Check("webhook-configured", "webhook", checks_admission.configured),
    Check("webhook-running", "webhook", checks_control_plane.webhook_running),
    Check("webhook-ca", "webhook", checks_admission.authority),
    Check("webhook-policies", "webhook", checks_admission.policies),
    Check("webhook-answers", "webhook", checks_control_plane.webhook_answers),
    Check("webhook-certificate", "webhook", checks_control_plane.webhook_certificate),
    Check("webhook-admission", "webhook", checks_admission.admission),
    Check("server-policies", "webhook", checks_admission.server_policies),
    Check("runtime-class-policy", "webhook", checks_admission.runtime_class_policy),
    Check("isolation", "webhook", checks_admission.isolation),
    Check("controller-running", "controller", checks_control_plane.controller_running),
    Check("controller-leads", "controller", checks_control_plane.controller_leads),
    Check("controller-answers", "controller", checks_control_plane.controller_answers),
    Check("controller-ledger", "controller", checks_control_plane.controller_ledger),
    Check("hand-over-summary", "controller", checks_nodes.hand_over_summary),
    Check("scheduler-running", "scheduler", checks_control_plane.scheduler_running),
    Check("scheduler-leads", "scheduler", checks_control_plane.scheduler_leads),
    Check("scheduler-config", "scheduler", checks_scheduling.configuration),
    Check("scheduler-version", "scheduler", checks_control_plane.scheduler_version),
    Check("other-pods", "scheduler", checks_scheduling.pods_without_gpus),
    Check("plugin-daemonset", "nodes", checks_nodes.daemonset),
    Check("plugin-running", "nodes", checks_nodes.running),
    Check("inventory", "nodes", checks_nodes.inventory),
    Check("memory-unit", "nodes", checks_nodes.memory_unit),
    Check("node-amounts", "nodes", checks_nodes.amounts),
    Check("stale-inventory", "nodes", checks_nodes.stale),
    Check("gpu-health", "nodes", checks_nodes.gpu_health),
    Check("gpu-modes", "nodes", checks_nodes.gpu_modes),
    Check("gpu-cordon", "nodes", checks_nodes.gpu_cordon),
    Check("hand-over", "nodes", checks_nodes.hand_over_ways),
    Check("limits", "nodes", checks_nodes.demanded_limits),
    Check("limit-strength", "nodes", checks_nodes.weaker_limits),
    Check("oversubscription", "nodes", checks_nodes.oversubscribed),
    Check("usage", "nodes", checks_nodes.usage),
    Check("nvidia-plugin", "conflicts", checks_conflicts.nvidia_plugin),
    Check("nvidia-sharing", "conflicts", checks_conflicts.nvidia_sharing),
    Check("sharing-plugins", "conflicts", checks_conflicts.sharing_plugins),
    Check("other-schedulers", "conflicts", checks_conflicts.schedulers),
    Check("dra-devices", "conflicts", checks_conflicts.dra_devices),
    Check("device-classes", "conflicts", checks_conflicts.device_classes),
    Check("claim-schedulers", "conflicts", checks_conflicts.claim_schedulers),
    Check("gpu-addons", "conflicts", checks_conflicts.addons),
    Check("pods-pending", "pods", checks_scheduling.pending),
    Check("pods-without-gpus", "pods", checks_scheduling.unallocated),
    Check("pods-refused", "pods", checks_scheduling.refused),
    Check("pods-unreadable", "pods", checks_scheduling.unreadable),
    Check("pods-rejected", "pods", checks_scheduling.rejected),
    Check("over-committed", "pods", checks_scheduling.over_committed),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    check: Check
    findings: tuple[Finding, ...] = ()
    skipped: str = ""  # why not all could be said; empty if it could

    @property
    def severity(self) -> Severity:
        return max((each.severity for each in self.findings), default=Severity.INFO)

    @property
    def passed(self) -> bool:
        """It was done and found nothing that should be fixed."""
        return not self.skipped and self.severity is Severity.INFO


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    snapshot: Snapshot
    results: tuple[Result, ...]
    unread: tuple[Finding, ...]  # parts of the cluster that checks needed and that could not be read

    @property
    def findings(self) -> tuple[tuple[str, Finding], ...]:
        """Each with the id of its check: the worst first, else in the order of the checks."""
        found = [(READ, each) for each in self.unread]
        found += [(result.check.id, each) for result in self.results for each in result.findings]
        return tuple(sorted(found, key=lambda each: -each[1].severity))


def diagnose(taken: Snapshot) -> Diagnosis:
    """Run every check. Without an installation only the first means anything."""
    facts = Facts(taken)
    unread: dict[Unreadable, list[str]] = {}
    installed, *others = CHECKS
    first = _checked(installed, facts, unread)
    rest = [
        Result(check=check, skipped="gpushare is not installed") if first.findings else _checked(check, facts, unread)
        for check in others
    ]
    parts = tuple(_unreadable(part, checks) for part, checks in unread.items())
    return Diagnosis(snapshot=taken, results=(first, *rest), unread=parts)


def _checked(check: Check, facts: Facts, unread: dict[Unreadable, list[str]]) -> Result:
    """What it says, which is not lost if it comes to something that cannot be read."""
    findings: list[Finding] = []
    skipped = ""
    try:
        findings.extend(check.run(facts))
    except LastFindingError as end:
        findings.append(end.finding)
    except UnreadableError as end:
        unread.setdefault(end.part, []).append(check.id)
        skipped = f"cannot read {end}"
    except NothingToCheckError as end:
        skipped = str(end)
    except SettingsError as end:  # the check of the settings reports it
        skipped = f"the settings cannot be read: {end}"
    except WireError as end:
        odd = f"an object has a shape that no one expects: {end}"
        findings.append(error("cluster", odd, "look at that object, and correct it"))
    return Result(check=check, findings=tuple(findings), skipped=skipped)


def _unreadable(part: Unreadable, checks: list[str]) -> Finding:
    way_out = "ask again; if it stays, check the API server"
    if isinstance(part.error, kube.ForbiddenError):
        way_out = "ask a user who may read it; docs/reference/doctor.md lists the rights"
    elif isinstance(part.error, kube.UnauthorizedError):
        way_out = "log in again"
    return error(part.what, f"cannot be read: {part.error}; not checked: {', '.join(checks)}", way_out)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    namespace: str = arguments.installed()
    output: str = arguments.output()


def run(api: KubeApi, streams: Streams, options: Options, clock: Clock) -> int:
    """Print what is wrong with an installation; the exit code. KubeError or WireError if its server cannot be read."""
    diagnosis = diagnose(snapshot.take(api, clock, options.namespace, streams.note))
    streams.answer(options.output, lambda: as_json(diagnosis), lambda: table(diagnosis, streams.width))
    return BAD if any(each.severity is Severity.ERROR for _, each in diagnosis.findings) else OK


def table(diagnosis: Diagnosis, width: int) -> str:
    header = [("SEVERITY", "CHECK", "OBJECT", "FINDING")] if diagnosis.findings else []
    blocks = [
        console.table(rows, width) for rows in ([*header, *_findings(diagnosis)], list(_passed(diagnosis))) if rows
    ]
    return "\n".join([*blocks, f"{_summary(diagnosis)}\n"])


def as_json(diagnosis: Diagnosis) -> dict[str, Any]:
    return {
        "version": VERSION,
        "namespace": diagnosis.snapshot.namespace,
        "server": str(diagnosis.snapshot.server),
        "findings": [
            {"check": check, **asdict(each), "severity": each.severity.word} for check, each in diagnosis.findings
        ],
        "checks": [
            {
                "id": result.check.id,
                "area": result.check.area,
                "meaning": result.check.meaning,
                "result": "ok" if result.passed else result.severity.word if result.findings else "skipped",
                "skipped": result.skipped,
            }
            for result in diagnosis.results
        ],
    }


def _summary(diagnosis: Diagnosis) -> str:
    counts = Counter(each.severity for _, each in diagnosis.findings)
    passed = sum(result.passed for result in diagnosis.results)
    skipped = sum(bool(result.skipped) for result in diagnosis.results)
    parts = [console.count(counts[Severity.ERROR], "error"), console.count(counts[Severity.WARNING], "warning")]
    parts += [f"{passed} of {len(diagnosis.results)} checks passed", *([f"{skipped} not done"] if skipped else [])]
    return ", ".join(parts)


def _findings(diagnosis: Diagnosis) -> Iterator[tuple[str, ...]]:
    shown: Counter[tuple[str, Severity]] = Counter()
    for check, each in diagnosis.findings:
        shown[check, each.severity] += 1
        if shown[check, each.severity] <= _SHOWN:
            yield each.severity.word, check, each.object, f"{each.problem}; {each.fix}" if each.fix else each.problem
    for (check, severity), count in shown.items():
        if count > _SHOWN:
            yield severity.word, check, "...", f"{count - _SHOWN} more like this; -o json has all"


def _passed(diagnosis: Diagnosis) -> Iterator[tuple[str, ...]]:
    for area in dict.fromkeys(check.area for check in CHECKS):
        results = [result for result in diagnosis.results if result.check.area == area]
        passed = sum(result.passed for result in results)
        if passed:
            yield "ok", area, f"{passed} of {len(results)} checks passed"


COMMAND: Final = Command(
    name="doctor",
    what="what is wrong with an installation",
    exit_codes="no errors, perhaps warnings; 1 the cluster cannot be read; 2 wrong arguments; 3 errors were found.",
    examples=(
        ("What is wrong, and how to fix it", "gpushare doctor"),
        ("Only what it found, for programs", "gpushare doctor -o json"),
    ),
    description="Say what is wrong with an installation of gpushare, and how to fix it. Changes nothing.",
    options=Options,
    run=lambda call: run(call.api(), call.streams, call.options(Options), call.clock),
)
