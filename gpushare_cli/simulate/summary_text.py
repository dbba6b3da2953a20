"""The summary of a simulation -> text for people, or JSON for programs. Pure."""

from collections.abc import Sequence
from typing import Any

from gpushare_cli import console
from gpushare_cli.simulate import summary
from gpushare_cli.simulate.plan import Plan
from gpushare_cli.simulate.summary import Run, Spread, Stranded


def text(plan: Plan, runs: Sequence[Run], width: int) -> str:
    """A line for each policy, why pods are on no node, and which GPUs are left."""
    parts = [console.table([("POLICY", "SEEDS", "PODS PLACED", "GPU MEMORY", "ASKED FOR"), *_policies(runs)], width)]
    if reasons := summary.refused(plan.rows):
        rows = [(reason, str(count)) for reason, count in reasons.items()]
        parts.append(console.table([("NOT PLACED BECAUSE OF", "PODS"), *rows], width))
    if found := summary.stranded(plan):
        header = ("MODEL", "GPUS", "ALLOCATED", "FREE", "TOO SMALL", "NO CPU OR MEMORY")
        parts.append(console.table([header, *map(_stranded, found)], width))
    return "\n".join(parts)


def run_json(run: Run) -> dict[str, Any]:
    """One policy with one seed."""
    return {
        "policy": run.policy,
        "seed": run.seed,
        "pods": run.pods,
        "placed": run.placed,
        "allocatedPercent": run.curve.allocated_percent,
        "askedPercent": run.curve.asked_percent,
    }


def stranded_json(found: Stranded) -> dict[str, Any]:
    """GPUs of one model; parts of GPUs are added up."""
    return {
        "model": found.model,
        "gpus": found.gpus,
        "allocated": round(found.allocated, 3),
        "free": round(found.free, 3),
        "freeTooSmall": round(found.too_small, 3),
        "freeWithoutHost": round(found.no_host, 3),
    }


def _policies(runs: Sequence[Run]) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for policy, found in summary.by_policy(runs).items():
        placed = Spread.of([run.placed for run in found])
        allocated = Spread.of([run.curve.allocated_percent for run in found])
        asked = Spread.of([run.curve.asked_percent for run in found])
        several = len(found) > 1
        rows.append(
            (
                policy,
                str(len(found)),
                f"{_number(placed, 0, several=several)} of {found[0].pods}",
                f"{_number(allocated, 1, several=several)} %",
                f"{asked.mean:.1f} %",
            )
        )
    return rows


def _number(spread: Spread, digits: int, *, several: bool) -> str:
    mean = f"{spread.mean:.{digits}f}"
    return f"{mean} ± {spread.deviation:.{digits + 1}f}" if several else mean


def _stranded(found: Stranded) -> tuple[str, ...]:
    parts = (found.allocated, found.free, found.too_small, found.no_host)
    return found.model, str(found.gpus), *(f"{part:.1f}" for part in parts)
