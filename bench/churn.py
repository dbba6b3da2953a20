"""A day of pods that come and go, through the controller: how full GPUs are and how long answers take, hour by hour.

python -m bench.churn DIRECTORY [--policy dense] [--row ranked] [--hours 24] [--settle 16] [--load 92]
    [--seed 1] [--json FILE]

The directory is that of `bench.trace`. Pods are drawn from the trace with their durations, at such a rate that on
average they ask for so many per cent of the GPUs. They begin with as many, each somewhere in its time. One that does
not fit is dropped. Nodes that were filled at once are much alike; the day begins when they are as different as they
will be, which takes 16 hours with the trace's durations: 200 different ones then, 800 from there on.
"""

import argparse
import heapq
import itertools
import random
import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bench import arguments as arguments_of, trace_scheduled, turns
from bench.packing.workload import Workload, asks_for
from bench.results import Results, progress, table
from bench.scheduling import fed, objects
from bench.scheduling.fed import Link
from bench.scheduling.scheduler import Scheduler

HOUR_S = 3600.0
COLUMNS = (
    "hour",
    "asked %",
    "allocated %",
    "refused %",
    "pods",
    "filter p50 ms",
    "filter p99 ms",
    "prioritize p50 ms",
    "bind p50 ms",
    "controller CPU ms",
)


@dataclass(frozen=True, slots=True)
class Arrival:
    """A pod of the trace that comes."""

    at_s: float
    leaves_s: float
    position: int
    """In the trace's list."""


def begin(workload: Workload, load: float, rng: random.Random) -> Iterator[Arrival]:
    """Pods that run when the day begins: long ones are more often among them, and each is somewhere in its time."""
    left = load * workload.capacity
    for position in rng.choices(range(len(workload.pods)), weights=workload.seconds, k=100 * len(workload.pods)):
        left -= asks_for(workload.pods[position])
        if left < 0:
            return
        yield Arrival(0.0, rng.random() * workload.seconds[position], position)


def day(workload: Workload, load: float, hours: float, rng: random.Random) -> Iterator[Arrival]:
    """Pods that come at random times."""
    pairs = zip(workload.pods, workload.seconds, strict=True)
    mean = sum(asks_for(pod) * seconds for pod, seconds in pairs) / len(workload.pods)
    now = 0.0
    while (now := now + rng.expovariate(load * workload.capacity / mean)) < hours * HOUR_S:
        position = rng.randrange(len(workload.pods))
        yield Arrival(now, now + workload.seconds[position], position)


@dataclass
class Hour:
    """What is counted in one hour."""

    asked: list[float] = field(default_factory=list)
    allocated: list[float] = field(default_factory=list)
    pods: int = 0
    came: int = 0
    refused: int = 0
    times_ms: dict[str, list[float]] = field(default_factory=dict)
    cpu_ms: float = 0.0

    def row(self, number: int) -> dict[str, object]:
        """Of the table."""
        row: dict[str, object] = {
            "key": "hour",
            "hour": number,
            "asked %": round(statistics.mean(self.asked), 2),
            "allocated %": round(statistics.mean(self.allocated), 2),
            "refused %": round(100 * self.refused / max(self.came, 1), 2),
            "pods": self.pods,
            "controller CPU ms": round(self.cpu_ms / max(self.pods, 1), 2),
        }
        for what, each in self.times_ms.items():
            row[f"{what} p50 ms"] = round(statistics.median(each), 3)
            row[f"{what} p99 ms"] = round(sorted(each)[len(each) * 99 // 100], 3)
        return row


class Cluster:
    """What runs, and what would run if every pod had fitted."""

    def __init__(self, workload: Workload, scheduler: Scheduler, link: Link) -> None:
        self._workload, self._scheduler, self._link = workload, scheduler, link
        self._numbers = itertools.count()
        self._leaving: list[tuple[float, int, int, int | None]] = []
        """When, number, position and node."""
        self._asked = self._used = 0

    def come(self, arrival: Arrival, hour: Hour) -> None:
        """All that have left by then leave, and one comes."""
        while self._leaving and self._leaving[0][0] <= arrival.at_s:
            self._leave(*heapq.heappop(self._leaving)[1:])
        ask, number = self._workload.pods[arrival.position], next(self._numbers)
        pod = objects.pod(f"pod-{number}", ask)
        self._link.create(pod)
        decided = self._scheduler.schedule(pod, ask.host)
        heapq.heappush(self._leaving, (arrival.leaves_s, number, arrival.position, decided.node))
        self._asked += asks_for(ask)
        self._used += asks_for(ask) if decided.node is not None else 0
        if decided.node is None:
            self._link.delete(f"pod-{number}")
            hour.refused += asks_for(ask)
        hour.pods += 1
        hour.came += asks_for(ask)
        hour.asked.append(100 * self._asked / self._workload.capacity)
        hour.allocated.append(100 * self._used / self._workload.capacity)
        for what, took in decided.times_ms.items():
            hour.times_ms.setdefault(what, []).append(took)

    def _leave(self, number: int, position: int, node: int | None) -> None:
        ask = self._workload.pods[position]
        self._asked -= asks_for(ask)
        if node is not None:
            self._used -= asks_for(ask)
            self._link.delete(f"pod-{number}")
            self._scheduler.gone(node, ask.host)


def run(options: argparse.Namespace, results: Results) -> None:
    """The whole day."""
    workload, rng = Workload.read(options.directory, options.trace), random.Random(options.seed)
    names = [f"node-{number:04}" for number in range(len(workload.nodes))]
    nodes = [objects.node(name, room) for name, room in zip(names, workload.nodes, strict=True)]
    with fed.controller(nodes, *objects.SETTINGS, f"--gpu-policy={options.policy}") as link:
        scheduler = Scheduler(
            names=names,
            has=[objects.host(room) for room in workload.nodes],
            configuration=trace_scheduled.ROWS[options.row](options.server),
            transport=link,
            seed=options.seed,
        )
        cluster, load = Cluster(workload, scheduler, link), options.load / 100
        for number, arrival in enumerate(begin(workload, load, rng)):
            cluster.come(arrival, Hour())
            progress(f"before the day: {number} pods")
        pods = day(workload, load, options.settle + options.hours, rng)
        for number, group in itertools.groupby(pods, lambda one: int(one.at_s // HOUR_S) - options.settle):
            hour, cpu_ms = Hour(), turns.cpu_ms(link.side.pid)
            for arrival in group:
                cluster.come(arrival, hour)
                progress(f"hour {number}: {hour.pods} pods")
            hour.cpu_ms = turns.cpu_ms(link.side.pid) - cpu_ms
            if number >= 0:
                results.add([hour.row(number)])
                print(list(table(COLUMNS, [results.rows[-1]]))[-1], flush=True)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.churn", description="A day of pods that come and go")
    parser.add_argument("directory", type=arguments_of.trace, help=arguments_of.DIRECTORY)
    parser.add_argument("--trace", default="default")
    parser.add_argument("--policy", default="dense")
    parser.add_argument("--row", default="ranked", choices=trace_scheduled.ROWS)
    parser.add_argument("--hours", type=float, default=24)
    parser.add_argument("--settle", type=int, default=16, help="hours before the day, which are not shown")
    parser.add_argument("--load", type=float, default=92, help="per cent of the GPUs")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--server", default="1.36")
    parser.add_argument("--json", type=Path, help="write the figures to this file, too")
    options = parser.parse_args(arguments)
    results = Results("churn", options.json)
    results.note(policy=options.policy, row=options.row, load=options.load, settled_hours=options.settle)
    print("\n".join(table(COLUMNS, [])))
    run(options, results)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
