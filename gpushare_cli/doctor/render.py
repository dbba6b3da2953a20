"""Diagnosis -> a table for people, or JSON for programs. Pure."""

from collections import Counter
from collections.abc import Iterator
from typing import Any, Final

from gpushare_cli import console
from gpushare_cli.doctor.checks import CHECKS, Diagnosis
from gpushare_cli.doctor.finding import Severity

VERSION: Final = 1
"""Of the JSON object. Fields may be added to it; one that changes its meaning changes the version."""
_SHOWN: Final = 20  # lines of one check; a cluster of a thousand nodes may have the same wrong with all


def table(diagnosis: Diagnosis, width: int) -> str:
    """A row for each finding, one for each area's checks that passed, and the sum."""
    findings = console.table([("SEVERITY", "CHECK", "OBJECT", "FINDING"), *_findings(diagnosis)], width)
    passed = console.table(list(_passed(diagnosis)), width)
    blocks = [findings if diagnosis.findings else "", passed, f"{summary(diagnosis)}\n"]
    return "\n".join(block for block in blocks if block)


def as_json(diagnosis: Diagnosis) -> dict[str, Any]:
    """The same for programs, and everything."""
    return {
        "version": VERSION,
        "namespace": diagnosis.snapshot.namespace,
        "server": str(diagnosis.snapshot.server),
        "findings": [
            {
                "check": check,
                "severity": each.severity.word,
                "object": each.object,
                "problem": each.problem,
                "fix": each.fix,
            }
            for check, each in diagnosis.findings
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


def summary(diagnosis: Diagnosis) -> str:
    """The last line."""
    counts = Counter(each.severity for _, each in diagnosis.findings)
    passed = sum(result.passed for result in diagnosis.results)
    skipped = sum(bool(result.skipped) for result in diagnosis.results)
    parts = [_count(counts[Severity.ERROR], "error"), _count(counts[Severity.WARNING], "warning")]
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


def _count(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"
