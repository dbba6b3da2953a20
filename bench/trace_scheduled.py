"""How full GPUs get through kube-scheduler: a trace's pods go through this project's filter, prioritize and bind.

python -m bench.trace_scheduled DIRECTORY [--traces default] [--policies dense,binpack] [--rows ranked,default]
    [--seeds 42-51] [--owned] [--jobs 1] [--json FILE]

The directory and the protocol are those of `bench.trace`. The controller is a process of its own, asked over HTTP as
the printed configuration says; kube-scheduler's own scores, and its chance among equal ones, are computed here. It
learns what is typical in the background, by the clock: weeks pass in a minute here, so it is late by some hundred pods.

    ranked                 `gpushare scheduler-config --rank-others`
    default                `gpushare scheduler-config`: pods without GPUs are left to kube-scheduler
    most-allocated         `gpushare scheduler-config --most-allocated`
    most-allocated-ranked  `gpushare scheduler-config --most-allocated --rank-others`
    unranked               the same as `default`, without prioritize
"""

import argparse
import functools
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

from bench import arguments as arguments_of, turns
from bench.packing.replay import LOADS, Curve
from bench.packing.workload import Workload, asks_for
from bench.results import Results, progress
from bench.scheduling import configuration, fed, objects
from bench.scheduling.configuration import Configuration
from bench.scheduling.scheduler import Scheduler
from gpushare.model.request import Policy

ROWS: Mapping[str, Callable[[str], Configuration]] = {
    "ranked": lambda server: configuration.printed(server, rank_others=True),
    "default": configuration.printed,
    "most-allocated": lambda server: configuration.printed(server, most_allocated=True),
    "most-allocated-ranked": lambda server: configuration.printed(server, rank_others=True, most_allocated=True),
    "unranked": lambda server: configuration.printed(server).without_ranking(),
}


@dataclass(frozen=True, kw_only=True)
class Run:
    """What to do."""

    directory: Path
    trace: str
    policy: str
    row: str
    owned: bool
    server: str
    own_orders: bool
    most: int
    """Pods, for a quick look; 0 for all."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What came of it."""

    trace: str
    policy: str
    row: str
    owned: bool
    seed: int
    at: dict[int, float]
    """Per cent of the GPUs that are allocated, by per cent that pods have asked for."""
    placed: int
    unanswered: int
    """Questions for scores to which there was no answer; more than none is a fault."""
    seconds: float
    controller_cpu_s: float
    p50_ms: dict[str, float]
    """Of each question to the controller."""
    p99_ms: dict[str, float]


def once(run: Run, seed: int) -> Outcome:
    """One seed."""
    workload = Workload.read(run.directory, run.trace)
    order, ranks = workload.orders(seed, recorded=not run.own_orders)
    rooms = [workload.nodes[place] for place in ranks]
    names = [f"node-{place:04}" for place in ranks]
    nodes = [objects.node(name, room) for name, room in zip(names, rooms, strict=True)]
    curve, times, placed, began = Curve(workload.capacity), dict[str, list[float]](), 0, time.monotonic()
    with fed.controller(nodes, *objects.SETTINGS, f"--gpu-policy={run.policy}") as link:
        scheduler = Scheduler(
            names=names,
            has=[objects.host(room) for room in rooms],
            configuration=ROWS[run.row](run.server),
            transport=link,
            seed=seed,
            since_1_36=tuple(map(int, run.server.split("."))) >= (1, 36),
        )
        for number, position in enumerate(order[: run.most or None]):
            ask = workload.pods[position]
            pod = objects.pod(f"pod-{number}", ask)
            link.create(pod)
            decided = scheduler.schedule(pod, ask.host, ask if run.owned else None)
            if decided.node is None:
                link.delete(pod["metadata"]["name"])
            placed += decided.node is not None
            curve.came(asks_for(ask), placed=decided.node is not None)
            for what, took in decided.times_ms.items():
                times.setdefault(what, []).append(took)
            if number % 100 == 0:
                progress(f"{run.trace} {run.policy} {run.row} seed {seed}: {number} of {len(order)} pods")
        cpu_s = turns.cpu_ms(link.side.pid) / 1000
    return Outcome(
        trace=run.trace,
        policy=run.policy,
        row=run.row,
        owned=run.owned,
        seed=seed,
        at=curve.at(),
        placed=placed,
        unanswered=scheduler.unanswered,
        seconds=round(time.monotonic() - began, 1),
        controller_cpu_s=round(cpu_s, 1),
        p50_ms={what: round(statistics.median(each), 3) for what, each in times.items()},
        p99_ms={what: round(sorted(each)[len(each) * 99 // 100], 3) for what, each in times.items()},
    )


def main(arguments: Sequence[str]) -> int:
    options = _parse(arguments)
    results = Results("trace_scheduled", options.json)
    results.note(server=options.server)
    loads = "".join(f"{f'@{load}':>8}" for load in LOADS)
    print(f"{'trace':<12}{'policy':<10}{'row':<24}{'owned':<6}{'seeds':>5}{loads}   sd@100   s/run")
    with ProcessPoolExecutor(options.jobs) as pool:  # each forks a controller
        for trace in options.traces.split(","):
            for policy in options.policies:
                for row in options.rows:
                    run = Run(
                        directory=options.directory,
                        trace=trace,
                        policy=policy,
                        row=row,
                        owned=options.owned,
                        server=options.server,
                        own_orders=options.own_orders,
                        most=options.most,
                    )
                    found = []
                    for outcome in pool.map(functools.partial(once, run), options.seeds):
                        found.append(outcome)
                        results.add([asdict(outcome)])
                    _print(found)
    return 0


def _print(found: Sequence[Outcome]) -> None:
    means = [statistics.mean(one.at[load] for one in found) for load in LOADS]
    spread = statistics.stdev(one.at[100] for one in found) if len(found) > 1 else 0.0
    took, cells, first = (
        statistics.mean(one.seconds for one in found),
        "".join(f"{mean:8.2f}" for mean in means),
        found[0],
    )
    head = f"{first.trace:<12}{first.policy:<10}{first.row:<24}{'yes' if first.owned else 'no':<6}{len(found):>5}"
    fault = (
        f"  {unanswered} questions were not answered" if (unanswered := sum(one.unanswered for one in found)) else ""
    )
    print(f"{head}{cells}{spread:9.2f}{took:8.0f}{fault}", flush=True)


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.trace_scheduled", description="GPU allocation through kube-scheduler"
    )
    arguments_of.add(parser, (policy.value for policy in Policy), "dense")
    arguments_of.add_rows(parser, ROWS, ",".join(ROWS))
    parser.add_argument("--owned", action="store_true", help="pods that ask for the same are of one owner")
    parser.add_argument("--server", default="1.36", help="version of Kubernetes whose scores and configuration count")
    parser.add_argument("--jobs", type=int, default=1, help="seeds at the same time")
    parser.add_argument("--most", type=int, default=0, help="pods, for a quick look")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
