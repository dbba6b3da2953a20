"""What this project wants to reach, and what was measured. Pure."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Row = Mapping[str, Any]
Data = Mapping[str, Mapping[str, Any]]
"""Results by the name of their file."""


@dataclass(frozen=True, slots=True)
class Reached:
    """A result."""

    text: str
    met: bool


@dataclass(frozen=True, slots=True)
class Target:
    """One row of the table."""

    what: str
    target: str
    reach: Callable[[Data], Reached]
    """May raise LookupError or a StatisticsError where something was not measured."""


def rows(data: Data, name: str, **wanted: object) -> Sequence[Row]:
    """Of a result, those with these values."""
    return [row for row in data[name]["rows"] if all(row.get(key) == value for key, value in wanted.items())]


def row(data: Data, name: str, **wanted: object) -> Row:
    """The only one.

    Raises:
        LookupError: there is none.
    """
    found = rows(data, name, **wanted)
    if not found:
        raise LookupError(f"{name}: no row with {wanted}")
    return found[0]


def allocated(data: Data, name: str, load: int, **wanted: object) -> float:
    """Mean over the seeds, in per cent of the GPUs."""
    return statistics.mean(float(one["at"][str(load)]) for one in rows(data, name, **wanted))


def _loads(name: str, least: tuple[float, float], **wanted: object) -> Callable[[Data], Reached]:
    def reach(data: Data) -> Reached:
        found = [allocated(data, name, load, **wanted) for load in (100, 130)]
        met = all(one >= limit for one, limit in zip(found, least, strict=True))
        return Reached(f"{found[0]:.2f} / {found[1]:.2f} (seeds: {len(rows(data, name, **wanted))})", met)

    return reach


def _other_rows(data: Data) -> Reached:
    default, most, ranked = (
        allocated(data, "trace_scheduled", 100, policy="dense", row=row)
        for row in ("default", "most-allocated", "most-allocated-ranked")
    )
    text = f"{default:.2f}; {most:.2f} ({ranked:.2f} where the second entry ranks them)"
    return Reached(text, default >= 93.5 and most >= 94.5)


def _against_fgd(data: Data, of: Callable[[str], bool]) -> dict[str, tuple[float, float]]:
    """Per cent that dense and FGD leave unallocated, by trace."""
    traces = dict.fromkeys(one["trace"] for name in ("trace", "trace_variants") for one in data[name]["rows"])
    found = {}
    for trace in filter(of, traces):
        name = "trace_variants" if rows(data, "trace_variants", trace=trace) else "trace"
        dense, fgd = (100 - allocated(data, name, 100, trace=trace, policy=policy) for policy in ("dense", "fgd"))
        found[trace] = (dense, fgd)
    return found


def _constrained(data: Data) -> Reached:
    cuts = {
        trace: 1 - dense / fgd for trace, (dense, fgd) in _against_fgd(data, lambda t: t.startswith("gpuspec")).items()
    }
    return Reached("; ".join(f"{trace} {100 * cut:.0f} %" for trace, cut in cuts.items()), min(cuts.values()) >= 0.4)


def _every_trace(data: Data) -> Reached:
    leads = {trace: fgd - dense for trace, (dense, fgd) in _against_fgd(data, lambda _: True).items()}
    worst, mean = min(leads, key=leads.__getitem__), statistics.mean(leads.values())
    text = f"worst {leads[worst]:+.2f} ({worst}), mean {mean:+.2f} over {len(leads)} traces"
    return Reached(text, leads[worst] >= -0.1 and mean >= 0.5)


def _learned(data: Data) -> Reached:
    lost = [
        allocated(data, "trace", load, policy="dense-known") - allocated(data, "trace", load, policy="dense")
        for load in (100, 130)
    ]
    return Reached(f"{lost[0]:.2f} / {lost[1]:.2f} less", max(lost) <= 0.3)


def _simulated(data: Data) -> Reached:
    differences: dict[str, float] = {}
    for name in ("ranked", "default", "most-allocated"):
        ours, theirs = (rows(data, file, policy="dense", row=name) for file in ("trace_scheduled", "trace_simulated"))
        seeds = {one["seed"] for one in ours} & {one["seed"] for one in theirs}
        for load in ("100", "130"):
            means = [
                statistics.mean(one["at"][load] for one in each if one["seed"] in seeds) for each in (ours, theirs)
            ]
            differences[name] = max(differences.get(name, 0.0), abs(means[0] - means[1]))
    text = "; ".join(f"{name} {difference:.2f}" for name, difference in differences.items())
    return Reached(text, max(differences.values()) <= 0.3)


def _filter_warm(data: Data) -> Reached:
    one = row(data, "server", key="warm-all", nodes=5000)
    ratio = one["p50_ms"] / one["floor_p50_ms"]
    text = f"{one['p50_ms']:.2f} ms, CPU {one['cpu_ms']:.2f} ms, {ratio:.1f} times the floor"
    return Reached(text, max(one["p50_ms"], one["cpu_ms"]) <= 2 and ratio <= 3)


def _filter_cold(data: Data) -> Reached:
    some, every = (row(data, "server", key=key, nodes=5000)["cpu_ms"] for key in ("cold", "cold-all"))
    return Reached(f"{some:.2f} / {every:.2f} ms", some <= 3 and every <= 15)


def _filter_changing(data: Data) -> Reached:
    changing, warm = (row(data, "server", key=key, nodes=5000)["cpu_ms"] for key in ("changing", "warm-all"))
    return Reached(f"{changing / warm:.1f} times (CPU {changing:.2f} ms)", changing <= 2 * warm)


def _filter_small(data: Data) -> Reached:
    warm, cold = (row(data, "server", key=key, nodes=100)["p50_ms"] for key in ("warm-all", "cold-all"))
    return Reached(f"{warm:.2f} / {cold:.2f} ms", warm <= 0.4 and cold <= 0.8)


def _prioritize(data: Data) -> Reached:
    ours, filtering = (row(data, "server", key=key, nodes=5000) for key in ("prioritize", "warm-all"))
    text = f"{ours['p50_ms']:.2f} ms (CPU {ours['cpu_ms']:.2f}); filter {filtering['p50_ms']:.2f} ms"
    return Reached(text, ours["cpu_ms"] <= filtering["cpu_ms"])


def _bind(data: Data) -> Reached:
    ratios = [row(data, "bind", key="bind", way="Binder", streams=streams)["ratio"] for streams in (1, 8)]
    over = [row(data, "bind", key="bind", way="over HTTP", streams=streams)["ratio"] for streams in (1, 8)]
    calls = row(data, "bind", key="calls")
    text = f"{ratios[0]:.2f} / {ratios[1]:.2f} (over HTTP {over[0]:.2f} / {over[1]:.2f})"
    text += f"; other requests about pods: {calls['other requests about pods']:g} in {calls['Bindings']:,.0f} binds"
    return Reached(text, min(ratios) >= 0.85 and not calls["other requests about pods"])


def _bound(data: Data) -> Reached:
    ratios = [row(data, "bound", key="bound", way="gpushare-scheduler", nodes=nodes)["ratio"] for nodes in (100, 1000)]
    return Reached(f"{ratios[0]:.2f} / {ratios[1]:.2f}", min(ratios) >= 0.6)


def _start(data: Data) -> Reached:
    found = sorted(rows(data, "server", key="start", nodes=5000), key=lambda one: one["other pods"])
    times, peak = [one["ready s"] for one in found], max(one["peak MiB"] for one in found)
    return Reached(f"{times[0]:.1f} s; {times[1]:.1f} s; {peak} MiB", times[0] <= 12 and times[1] <= 18 and peak <= 300)


def _webhook(data: Data) -> Reached:
    found = [one["a second and core"] for one in rows(data, "webhook", way="webhook", question="a GPU pod")]
    return Reached(f"{min(found):,.0f}", min(found) >= 800)


TARGETS = (
    Target(
        "trace `default`, policies rank all nodes, allocation at 100 % / 130 % arrived load, seeds 42 to 51",
        "≥ 95.7 / ≥ 95.8",
        _loads("trace", (95.7, 95.8), policy="dense", trace="default"),
    ),
    Target(
        "the same, 10 fresh seeds",
        "≥ 95.7 / ≥ 95.8",
        _loads("trace_fresh", (95.7, 95.8), policy="dense", trace="default"),
    ),
    Target(
        "the same through filter and prioritize over HTTP with kube-scheduler's scores and random ties,"
        " pods without GPUs ranked by the second entry",
        "≥ 95.5 / ≥ 95.6",
        _loads("trace_scheduled", (95.5, 95.6), policy="dense", row="ranked"),
    ),
    Target(
        "the same, pods without GPUs left to the default scheduler; with MostAllocated, at 100 %",
        "≥ 93.5; ≥ 94.5",
        _other_rows,
    ),
    Target("traces with model constraints at 100 %: unallocated GPUs, against FGD", "cut by ≥ 40 %", _constrained),
    Target("every trace at 100 %, against FGD", "never more than 0.1 below, on average ≥ 0.5 above", _every_trace),
    Target("demand learned on line, cold start included, against knowing it in advance", "within 0.3", _learned),
    Target(
        "`gpushare simulate` against filter and prioritize over HTTP with kube-scheduler's scores",
        "within 0.3 points",
        _simulated,
    ),
    Target(
        "filter over HTTP, 5,000 nodes of 8 GPUs, all names, warm",
        "≤ 2 ms p50 and CPU, ≤ 3 times the floor",
        _filter_warm,
    ),
    Target("the same, a size never asked before, 500 names / all names", "≤ 3 / ≤ 15 ms CPU", _filter_cold),
    Target(
        "200 sizes in turn, and 20 pods a second bound and deleted meanwhile",
        "no worse than twice warm",
        _filter_changing,
    ),
    Target("filter at 100 nodes, warm / cold", "≤ 0.4 / ≤ 0.8 ms p50", _filter_small),
    Target("prioritize, 5,000 names", "≤ filter", _prioritize),
    Target("bind, 1 / 8 streams, against bare Bindings by the same client", "one API call; ≥ 0.85", _bind),
    Target(
        "creation to Binding through a real kube-scheduler, 100 / 1,000 nodes,"
        " against the same scheduler without extender",
        "≥ 0.6",
        _bound,
    ),
    Target(
        "start at 5,000 nodes and 50,000 GPU pods, until ready; the same with 50,000 other pods; memory",
        "≤ 12 s; ≤ 18 s; ≤ 300 MiB",
        _start,
    ),
    Target("webhook, one worker, TLS, kept connections: reviews a second and core", "≥ 800", _webhook),
)


def reached(target: Target, data: Data) -> Reached | None:
    """None if it was not measured."""
    try:
        return target.reach(data)
    except (LookupError, statistics.StatisticsError, ValueError):
        return None
