"""`gpushare doctor`: reads the cluster, runs the checks, and prints a table for people or JSON for programs."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Final

from gpushare.kube.api import KubeApi
from gpushare.runtime.clock import Clock
from gpushare_cli import arguments, console
from gpushare_cli.arguments import Command
from gpushare_cli.console import BAD, OK, Streams
from gpushare_cli.doctor import checks, snapshot
from gpushare_cli.doctor.checks import CHECKS, Diagnosis
from gpushare_cli.doctor.facts import Severity

VERSION: Final = 1  # of the JSON object. Fields may be added to it; one that changes its meaning changes the version.
_SHOWN: Final = 20  # lines of one check; a cluster of a thousand nodes may have the same wrong with all


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    namespace: str = arguments.installed()
    output: str = arguments.output()


def run(api: KubeApi, streams: Streams, options: Options, clock: Clock) -> int:
    """Print what is wrong with an installation; the exit code. KubeError or WireError if its server cannot be read."""
    diagnosis = checks.diagnose(snapshot.take(api, clock, options.namespace, streams.note))
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
                "result": "skipped" if result.skipped and not result.findings else result.severity.word,
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
    add=arguments.of_options(
        Options, "Say what is wrong with an installation of gpushare, and how to fix it. Changes nothing."
    ),
    run=lambda call: run(call.api(), call.streams, call.options(Options), call.clock),
)
