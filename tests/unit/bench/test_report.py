"""The page of benchmarks is what the committed figures say, and has every target."""

from pathlib import Path
from typing import Any

import pytest

from bench import report, targets
from bench.targets import TARGETS
from bench.trace_scheduled import ROWS

DOCS = Path(__file__).parents[3] / "docs"
LOADS = ("90", "95", "100", "110", "120", "130")


def test_the_page_and_its_plots_are_what_the_figures_say() -> None:
    made = report.files(report.read(DOCS / "benchmarks"))
    assert "benchmarks.md" in made
    other = [name for name, text in made.items() if (DOCS / name).read_text(encoding="utf-8") != text]
    assert other == [], "run python -m bench.report"


def run(trace: str, policy: str, level: float, **more: object) -> dict[str, Any]:
    return {"trace": trace, "policy": policy, "at": dict.fromkeys(LOADS, level), "seed": 42, **more}


def question(key: str, nodes: int, p50_ms: float) -> dict[str, Any]:
    cpu = {"cpu_ms": p50_ms, "floor_p50_ms": 0.5, "floor_cpu_ms": 0.1, "bytes": 1}
    return {"key": key, "nodes": nodes, "question": key, "p50_ms": p50_ms, "p99_ms": 9.0, **cpu}


def results(good: bool) -> dict[str, Any]:
    """Of everything; all reach their targets, or none."""
    high, few = (96.0, 1.0) if good else (90.0, 30.0)
    ratio = 0.9 if good else 0.3
    ways = [run("default", "dense", high, row=row) for row in ROWS]
    hours = [{"key": "hour", "hour": hour, "pods": 5, "asked %": 90.0, "allocated %": 89.0} for hour in range(4)]
    by_name: dict[str, list[dict[str, Any]]] = {
        "trace": [
            run("default", "dense", high),
            run("default", "dense-known", high + few / 10),
            run("default", "fgd", 92),
        ],
        "trace_fresh": [run("default", "dense", high)],
        "trace_variants": [run("gpuspec25", "dense", high), run("gpuspec25", "fgd", 92)],
        "trace_scheduled": ways,
        "trace_simulated": [one | {"at": dict.fromkeys(LOADS, high + few / 10)} for one in ways],
        "churn": hours,
        "server": [
            *(
                question(key, 5000, few * more)
                for key, more in (("cold", 1), ("cold-all", 1), ("changing", few), ("prioritize", few), ("warm-all", 1))
            ),
            *(question(key, 100, 0.3 * few) for key in ("warm-all", "cold-all")),
            *(
                {"key": "start", "nodes": 5000, "other pods": pods, "ready s": few, "peak MiB": round(100 * few)}
                for pods in (0, 9)
            ),
        ],
        "bind": [
            *(
                {"key": "bind", "way": way, "streams": streams, "ratio": ratio}
                for way in ("Binder", "over HTTP")
                for streams in (1, 8)
            ),
            {"key": "calls", "Bindings": 10, "other requests about pods": 0},
        ],
        "bound": [
            {"key": "bound", "way": "gpushare-scheduler", "nodes": nodes, "ratio": ratio} for nodes in (100, 1000)
        ],
        "webhook": [{"way": "webhook", "question": "a GPU pod", "a second and core": round(900 * ratio)}],
    }
    head = {"date": "2026-01-01", "machine": "m", "load_before": 1.0, "load_after": 1.0, "seconds": 1}
    return {name: {**head, "policy": "dense", "rows": rows} for name, rows in by_name.items()}


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.what[:40])
def test_a_target_is_reached_or_not_or_not_measured(target: targets.Target) -> None:
    good, bad = (targets.reached(target, results(good)) for good in (True, False))
    assert good is not None
    assert good.met, good
    assert bad is not None
    assert not bad.met, bad
    assert targets.reached(target, {}) is None
