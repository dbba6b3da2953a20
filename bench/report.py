"""The page docs/contributing/benchmarks.md and its plots, from what `python -m bench` has measured.

python -m bench.report [DIRECTORY [DOCS]]

By default from docs/benchmarks/ to docs/.
"""

import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import orjson

from bench import targets
from bench.results import table, written
from bench.targets import TARGETS, Data, Row
from bench.trace_claims import ROWS
from gpushare_cli import plot
from gpushare_cli.plot import Line, Plot

HEAD = "\n".join(
    (
        "# Benchmarks",
        "",
        "`make bench TRACE=DIRECTORY` measures all of this on the machine that it runs on;"
        " `python -m bench --only NAME` runs one benchmark.",
        "`python -m bench.report DIRECTORY` generates this page from the results; do not edit it.",
        "Variants that are compared take turns in one run, so load on the machine affects all of them alike:"
        " compare ratios and CPU time; absolute times depend on the machine.",
        "The floor is a minimal server in the same language: it parses the same request with the same parser,"
        " and returns a prepared response of the same size.",
        "",
    )
)
SHOWN: Final = (95, 100, 130)
_MISSING = "not measured"


def read(directory: Path) -> Data:
    """All results in a directory, by name."""
    return {path.stem: orjson.loads(path.read_bytes()) for path in sorted(directory.glob("*.json"))}


def files(data: Data) -> Mapping[str, str]:
    """Name below docs/ -> what it should be."""
    plots = {f"benchmarks/{name}.svg": plot.svg(one) for name, one in _plots(data)}
    return {"contributing/benchmarks.md": page(data, list(plots)), **plots}


def page(data: Data, plots: Sequence[str]) -> str:
    """The whole page."""
    parts = [HEAD, *_machines(data), "\n## Targets\n", *_targets(data)]
    for title, lines in _sections(data, plots):
        parts += ["", f"## {title}", *lines]
    return "\n".join(parts).rstrip() + "\n"


def _machines(data: Data) -> Iterator[str]:
    machines = "; ".join(sorted({one["machine"] for one in data.values()}))
    versions = sorted({one["kubernetes"] for one in data.values() if one.get("kubernetes")})
    yield f"Measured on: {'; '.join([machines, *(f'Kubernetes {version}' for version in versions)])}."
    yield ""
    yield "| measured | on | load average before, after |"
    yield "|---|---|---|"
    for name, one in data.items():
        yield f"| {name} | {one['date']} | {one['load_before']}, {one['load_after']} |"


def _targets(data: Data) -> Iterator[str]:
    yield "| what | target | result | reached |"
    yield "|---|---|---|---|"
    for target in TARGETS:
        found = targets.reached(target, data)
        result, met = (found.text, "yes" if found.met else "**no**") if found else (_MISSING, "")
        yield f"| {target.what} | {target.target} | {result} | {met} |"


def _sections(data: Data, plots: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    yield (
        "GPU allocation",
        [*_shown(plots, "allocation", "GPUs that are allocated over what pods have asked for"), *_allocation(data)],
    )
    yield "Packing by ResourceClaims", [*_claims(data)]
    yield "A day of pods that come and go", [*_churn(data, plots)]
    yield "Filter and prioritize", [*_questions(data)]
    columns: Sequence[str] = ("nodes", "GPU pods", "other pods", "ready s", "CPU s", "peak MiB", "API server CPU s")
    yield "Start of a leader", [*_table(data, "server", columns, key="start")]
    cpu = ("CPU ms client", "CPU ms API server", "CPU ms controller")
    yield "Bind", [*_table(data, "bind", ("nodes", "streams", "way", "a second", "ratio", *cpu), key="bind")]
    cpu = ("CPU ms scheduler", "CPU ms API server", "CPU ms controller")
    yield "From creation to Binding", [*_table(data, "bound", ("nodes", "way", "a second", "ratio", *cpu))]
    columns = ("question", "at a time", "a second and core", "CPU ms server", "ratio")
    yield "Webhook", ["The ratio is to the floor.", "", *_table(data, "webhook", columns, way="webhook")]
    for name in ("plugin_start", "hand_over", "usage"):
        title = {
            "plugin_start": "Device plugin: start",
            "hand_over": "Device plugin: a container's start",
            "usage": "Device plugin: what containers use",
        }[name]
        rows = data[name]["rows"] if name in data else []
        yield title, [*_table(data, name, rows[0] if rows else ())]


def _table(data: Data, name: str, columns: Sequence[str] | Row, **wanted: object) -> Iterator[str]:
    rows = targets.rows(data, name, **wanted) if name in data else []
    yield from table(columns, rows) if rows else [_MISSING]


def _allocation(data: Data) -> Iterator[str]:
    rows: dict[tuple[str, str], dict[str, object]] = {}
    policies = dict.fromkeys(policy for _, policy, _ in _grouped(data))
    for (trace, policy, how), found in _grouped(data).items():
        row = rows.setdefault((trace, how), {"trace": trace, "how": how, "seeds": len(found)})
        row[policy] = " / ".join(f"{statistics.mean(one['at'][str(load)] for one in found):.2f}" for load in SHOWN)
    loads = ", ".join(map(str, SHOWN[:-1]))
    yield f"Percentage of the GPUs that each policy allocates once pods have requested {loads} and {SHOWN[-1]} %."
    yield (
        "The README's plot has the means of `python -m bench.trace_simulated DIRECTORY --seeds 42-44`, with the scores"
        " of kube-scheduler 1.36 and what `gpushare scheduler-config --server-version 1.36 --rank-others` prints."
    )
    yield ""
    yield from table(("trace", "how", "seeds", *policies), rows.values()) if rows else [_MISSING]


def _claims(data: Data) -> Iterator[str]:
    if "trace_claims" not in data:
        yield _MISSING
        return
    yield (
        "Pods of the trace ask by [claims](../claims.md), and kube-scheduler gives them the first GPU with room"
        f" in the node's ResourceSlice. In per cent: GPUs allocated once pods have requested {SHOWN[0]}, {SHOWN[1]} and"
        f" {SHOWN[2]} %; in the end, pods refused, and memory that is free on GPUs of which others hold a part."
    )
    names = [name for name in ROWS if targets.rows(data, "trace_claims", row=name)]
    at = {name: targets.allocated(data, "trace_claims", 100, row=name) for name in names}
    if {"default-fullest", "dense", "dense-emptiest"} <= at.keys():
        gained, lost = (at["dense"] - at[name] for name in ("default-fullest", "dense-emptiest"))
        yield (
            f"At 100 %, ranking nodes by `dense` gains {gained:.1f} points over kube-scheduler's scores where the slice"
            f" has the fullest GPU first; the emptiest first loses {lost:.1f} of it."
        )
    yield (
        "This is a simulation: pods never leave, kube-scheduler looks at all nodes, and a slice is written again before"
        " the next pod comes, but where the table says late."
    )
    yield ""
    found = []
    for name in names:
        way, some = ROWS[name], targets.rows(data, "trace_claims", row=name)
        ranking = way.ranking.value if way.ranking else f"kube-scheduler, {way.fit.value}"
        found.append(
            {
                "pods ask by": "claim" if way.order else "gpu-mem",
                "nodes ranked by": ranking + ", for the GPU that is taken" * way.judged,
                "GPU there": (way.order or "by the policy") + f", {way.late} pods late" * (way.late > 0),
                "seeds": len(some),
                "allocated": " / ".join(
                    f"{statistics.mean(one['at'][str(load)] for one in some):.2f}" for load in SHOWN
                ),
                "refused": f"{statistics.mean(one['refused'] for one in some):.1f}",
                "free on held GPUs": f"{statistics.mean(one['broken'] for one in some):.1f}",
            }
        )
    yield from table(found[0], found)


def _grouped(data: Data) -> dict[tuple[str, str, str], list[Row]]:
    """Runs of a trace, by trace, policy and way."""
    ways = {
        "trace": "ranks all nodes",
        "trace_fresh": "ranks all nodes, fresh seeds",
        "trace_variants": "ranks all nodes",
        "trace_scheduled": "kube-scheduler, {row}",
        "trace_owned": "kube-scheduler, {row}, with owners",
        "trace_policies": "kube-scheduler, {row}",
        "trace_simulated": "simulated, {row}",
    }
    found: dict[tuple[str, str, str], list[Row]] = {}
    for name, way in ways.items():
        for one in data[name]["rows"] if name in data else ():
            found.setdefault((one["trace"], one["policy"], way.format(row=one.get("row"))), []).append(one)
    return found


def _churn(data: Data, plots: Sequence[str]) -> Iterator[str]:
    hours = targets.rows(data, "churn", key="hour") if "churn" in data else []
    if len(hours) < 2:
        yield _MISSING
        return
    yield from _shown(plots, "churn-allocation", "what pods ask for and hold, hour by hour")
    yield from _shown(plots, "churn-latency", "how long answers take, hour by hour")
    pods, part = sum(one["pods"] for one in hours), max(len(hours) // 4, 1)
    churn = data["churn"]
    yield (
        f"{pods:,} pods were created in {len(hours)} hours,"
        f" after {churn.get('settled_hours', 0)} hours that are not shown; policy `{churn['policy']}`."
    )
    yield ""
    columns = [key for key in hours[0] if key not in {"key", "hour", "pods"}]
    means = [
        {"": title, **{key: round(statistics.mean(one.get(key, 0.0) for one in some), 2) for key in columns}}
        for title, some in (("first quarter", hours[:part]), ("last quarter", hours[-part:]))
    ]
    yield from table(["", *columns], means)


def _questions(data: Data) -> Iterator[str]:
    asked = [one for one in data["server"]["rows"] if "question" in one] if "server" in data else []
    largest = max((one["nodes"] for one in asked), default=0)
    found = [one for one in asked if one["nodes"] == largest]
    rows = [
        {
            "question": one["question"],
            "p50 ms": f"{one['p50_ms']:.2f}",
            "p99 ms": f"{one['p99_ms']:.2f}",
            "CPU ms": f"{one['cpu_ms']:.2f}",
            "p50 / floor": f"{one['p50_ms'] / one['floor_p50_ms']:.1f}",
        }
        for one in found
    ]
    yield "Over HTTP with one keep-alive connection, until the response is read."
    yield (
        f"Each of {largest:,} nodes has eight GPUs of 80 GiB, and ten pods that hold 32 GiB each. Fewer nodes:"
        " `docs/benchmarks/`."
    )
    yield ""
    yield from table(rows[0], rows) if rows else [_MISSING]


def _shown(plots: Sequence[str], name: str, what: str) -> Iterator[str]:
    if f"benchmarks/{name}.svg" in plots:
        yield f"![{what}](../benchmarks/{name}.svg)"
        yield ""


def _plots(data: Data) -> Iterator[tuple[str, Plot]]:
    if lines := list(_allocation_lines(data)):
        yield (
            "allocation",
            _plot(
                "GPUs that are allocated, through kube-scheduler",
                "asked for by pods, % of all GPUs",
                "allocated, % of all GPUs",
                lines,
            ),
        )
    hours = targets.rows(data, "churn", key="hour") if "churn" in data else []
    if len(hours) > 1:
        for name, title, up, keys in (
            ("churn-allocation", "A day of pods that come and go", "% of all GPUs", ("asked %", "allocated %")),
            (
                "churn-latency",
                "How long answers take",
                "ms, median",
                ("filter p50 ms", "prioritize p50 ms", "bind p50 ms"),
            ),
        ):
            lines = [Line(name=key, points=[(one["hour"], one.get(key, 0.0)) for one in hours]) for key in keys]
            yield name, _plot(title, "hour", up, lines)


def _plot(title: str, across: str, up: str, lines: Sequence[Line]) -> Plot:
    ends = "; ".join(f"{line.name}: {written(float(line.points[-1][1]))}" for line in lines)
    description = f"{up} over {across}. At the end {ends}."
    return Plot(title=title, description=description, x_label=across, y_label=up, lines=lines)


def _allocation_lines(data: Data) -> Iterator[Line]:
    """Ours, FGD, binpack, and no ranking, which is what Aliyun's extender does."""
    wanted = (
        ("dense", "trace_scheduled", "dense", "ranked"),
        ("dense, GPU pods alone", "trace_scheduled", "dense", "default"),
        ("FGD", "trace_policies", "fgd", "ranked"),
        ("binpack", "trace_policies", "binpack", "ranked"),
        ("Aliyun's, no ranking", "trace_scheduled", "dense", "unranked"),
    )
    for title, name, policy, row in wanted:
        found = targets.rows(data, name, policy=policy, row=row, trace="default") if name in data else []
        if found:
            loads = sorted(set.intersection(*({int(load) for load in one["at"]} for one in found)))
            points = [
                (float(load), statistics.mean(one["at"][str(load)] for one in found)) for load in loads if load >= 80
            ]
            yield Line(name=title, points=points, note=f"{points[-1][1]:.1f} %")


def main(arguments: Sequence[str]) -> int:
    root = Path(__file__).parents[1] / "docs"
    directory, docs = (Path(argument) for argument in (*arguments, *map(str, (root / "benchmarks", root)))[:2])
    docs = docs if len(arguments) > 1 else root
    if not any(directory.glob("*.json")):
        raise SystemExit(f"error: {directory}: no figures there (*.json); `make bench` writes them")
    for name, text in files(read(directory)).items():
        path = docs / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        print(f"written: {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
