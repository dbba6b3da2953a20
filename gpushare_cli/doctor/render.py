"""Diagnosis -> a table for people, or JSON for programs. Pure."""

from collections import Counter
from collections.abc import Iterator
from typing import Any, Final

import orjson

from gpushare_cli import tabwriter
from gpushare_cli.doctor.checks import CHECKS, Diagnosis
from gpushare_cli.doctor.finding import Finding, Severity

VERSION: Final = 1
"""Of the JSON object. Fields may be added to it; one that changes its meaning changes the version."""
_SHOWN: Final = 20  # lines of one check; a cluster of a thousand nodes may have the same wrong with all


def table(diagnosis: Diagnosis) -> str:
    """One line for each finding, one for each area's checks that passed, and the sum."""
    lines = ["SEVERITY\tCHECK\tOBJECT\tFINDING", *_findings(diagnosis), *_passed(diagnosis)]
    return tabwriter.layout("\n".join([*lines, "", summary(diagnosis), ""]))


def as_json(diagnosis: Diagnosis) -> str:
    """The same for programs, and everything."""
    value: dict[str, Any] = {
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
    return orjson.dumps(value, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE).decode()


def summary(diagnosis: Diagnosis) -> str:
    """The last line."""
    counts = Counter(each.severity for _, each in diagnosis.findings)
    passed = sum(result.passed for result in diagnosis.results)
    skipped = sum(bool(result.skipped) for result in diagnosis.results)
    parts = [_count(counts[Severity.ERROR], "error"), _count(counts[Severity.WARNING], "warning")]
    parts += [f"{passed} of {len(diagnosis.results)} checks passed", *([f"{skipped} not done"] if skipped else [])]
    return ", ".join(parts)


def _findings(diagnosis: Diagnosis) -> Iterator[str]:
    shown: Counter[tuple[str, Severity]] = Counter()
    for check, each in diagnosis.findings:
        shown[check, each.severity] += 1
        if shown[check, each.severity] <= _SHOWN:
            yield f"{each.severity.word}\t{check}\t{each.object}\t{_text(each)}"
    for (check, severity), count in shown.items():
        if count > _SHOWN:
            yield f"{severity.word}\t{check}\t...\t{count - _SHOWN} more like this; -o json has all"


def _passed(diagnosis: Diagnosis) -> Iterator[str]:
    for area in dict.fromkeys(check.area for check in CHECKS):
        results = [result for result in diagnosis.results if result.check.area == area]
        passed = sum(result.passed for result in results)
        if passed:
            yield f"ok\t{area}\t\t{passed} of {len(results)} checks passed"


def _text(each: Finding) -> str:
    """On one line, whatever a message from elsewhere contains; a tab would break the columns."""
    return " ".join(f"{each.problem}; {each.fix}".split()) if each.fix else " ".join(each.problem.split())


def _count(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"
