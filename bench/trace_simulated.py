"""How full GPUs get through kube-scheduler, by the engine of `gpushare simulate`: minutes instead of hours.

python -m bench.trace_simulated DIRECTORY [--traces default] [--policies dense,fgd,binpack,unranked]
    [--rows ranked,default] [--seeds 42-51] [--json FILE] [--plot FILE.svg]

The directory and the protocol are those of `bench.trace`, the rows those of `bench.trace_scheduled`. As policies,
`unranked` leaves the choice of the node to kube-scheduler, as Aliyun's extender does; the fullest GPU with room is
taken there.
"""

import argparse
import random
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from bench import arguments as arguments_of
from bench.packing.replay import LOADS, fill, scheduler_of
from bench.packing.workload import Workload
from bench.results import Results, progress
from gpushare.model.request import Policy
from gpushare_cli import kube_scores, plot, scheduler_config
from gpushare_cli.kube_scores import Fit, Rules
from gpushare_cli.plot import Line, Plot
from gpushare_cli.simulate.cluster import Learner
from gpushare_cli.simulate.scheduler import SchedulerConfig

UNRANKED = "unranked"
ROWS: Mapping[str, tuple[Fit, bool]] = {
    "ranked": (Fit.LEAST_ALLOCATED, True),
    "default": (Fit.LEAST_ALLOCATED, False),
    "most-allocated": (Fit.MOST_ALLOCATED, False),
    "most-allocated-ranked": (Fit.MOST_ALLOCATED, True),
}
"""How CPU and memory are scored, and whether pods without GPUs are ranked by us."""
NAMES = {UNRANKED: "no ranking (Aliyun's)"}
"""In the plot."""
SHOWN_FROM = 80  # per cent of the load, in the plot


@dataclass(frozen=True)
class Outcome:
    trace: str
    policy: str
    row: str
    seed: int
    at: dict[int, float] = field(repr=False)
    """Per cent of the GPUs that are allocated, by per cent that pods have asked for."""
    placed: int
    cpu_s: float


def once(workload: Workload, policy: str, row: str, seed: int, *, minor: int, own_orders: bool) -> Outcome:
    """One seed."""
    started = time.process_time()
    order, _ = workload.orders(seed, recorded=not own_orders)
    fit, others = ROWS[row]
    learner = Learner(draw=random.Random(f"{seed} looks").randrange)
    weight = 0 if policy == UNRANKED else kube_scores.needed(kube_scores.UNASKED)
    config = SchedulerConfig(
        policy=Policy.BINPACK if policy == UNRANKED else Policy(policy),
        rules=Rules(minor=minor, fit=fit),
        weight=weight,
        others_weight=scheduler_config.OTHERS_WEIGHT if others and weight else 0,
    )
    nodes = range(len(workload.nodes))
    scheduler = scheduler_of(workload, nodes, config, learner, random.Random(seed).randrange)
    curve, placed = fill(scheduler, workload, order)
    return Outcome(workload.trace, policy, row, seed, curve.at(), placed, round(time.process_time() - started, 1))


def main(arguments: Sequence[str]) -> int:
    options = _parse(arguments)
    rows, results = list[Outcome](), Results("trace_simulated", options.json)
    loads = "".join(f"{f'@{load}':>8}" for load in LOADS)
    print(f"{'trace':<12}{'policy':<10}{'row':<24}{'seeds':>5}{loads}   sd@100  s/run")
    for trace in options.traces.split(","):
        workload = Workload.read(options.directory, trace)
        for policy in options.policies:
            for row in options.rows:
                found = []
                for seed in options.seeds:
                    progress(f"{trace} {policy} {row} seed {seed}")
                    outcome = once(workload, policy, row, seed, minor=options.minor, own_orders=options.own_orders)
                    found.append(outcome)
                _print(found)
                rows += found
                results.add(map(asdict, found))
    if options.plot:
        options.plot.write_text(plot.svg(_plot(rows)), encoding="utf-8")
    return 0


def _print(found: Sequence[Outcome]) -> None:
    cells = "".join(f"{statistics.mean(one.at[load] for one in found):8.2f}" for load in LOADS)
    spread = statistics.stdev(one.at[100] for one in found) if len(found) > 1 else 0.0
    head = f"{found[0].trace:<12}{found[0].policy:<10}{found[0].row:<24}{len(found):>5}"
    print(f"{head}{cells}{spread:9.2f}{statistics.mean(one.cpu_s for one in found):7.0f}", flush=True)


def _plot(rows: Sequence[Outcome]) -> Plot:
    """Means over the seeds, a line for each policy, trace and row."""
    groups: dict[tuple[str, str, str], list[Outcome]] = {}
    for one in rows:
        groups.setdefault((one.trace, one.policy, one.row), []).append(one)
    varying = [len({key[place] for key in groups}) > 1 for place in range(3)]
    lines = []
    for key, found in groups.items():
        points = [
            (float(load), statistics.mean(one.at[load] for one in found))
            for load in sorted(set.intersection(*(set(one.at) for one in found)))
            if load >= SHOWN_FROM
        ]
        named = (key[0], NAMES.get(key[1], key[1]), key[2])
        parts = [part for part, varies in zip(named, varying, strict=True) if varies]
        lines.append(Line(name=" ".join(parts) or named[1], points=points, note=f"{points[-1][1]:.1f} %"))
    ends = "; ".join(f"{line.name}: {line.note}" for line in lines)
    return Plot(
        title="GPUs that pods get through kube-scheduler, by policy",
        description=f"Allocated part of all GPUs over what pods have asked for. At the end {ends}.",
        x_label="asked for by pods, % of all GPUs",
        y_label="allocated, % of all GPUs",
        lines=lines,
    )


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.trace_simulated", description="GPU allocation through kube-scheduler, simulated"
    )
    arguments_of.add(parser, (*(policy.value for policy in Policy), UNRANKED), "dense,fgd,binpack,unranked")
    arguments_of.add_rows(parser, ROWS, "ranked")
    parser.add_argument("--minor", type=int, default=36, help="version 1.x of the kube-scheduler whose scores count")
    parser.add_argument("--plot", type=Path, help="write an SVG there")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
