"""Ways to do the same that take turns, so that what else the machine does touches all alike: rates, and CPU."""

import contextlib
import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROUNDS = 5
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, kw_only=True)
class Way:
    """One way to do it."""

    name: str
    prepare: Callable[[], object]
    """What one round works on; neither timed nor counted."""
    act: Callable[[object], int]
    """Does a round. How many things it did."""
    pids: Mapping[str, Sequence[int]]
    """Processes whose CPU counts, by what they are."""


@dataclass(frozen=True, kw_only=True)
class Taken:
    """What a way took: medians of the rounds."""

    name: str
    per_s: float
    ratio: float
    """Of the rate, to the first way's in the same round."""
    cpu_ms: Mapping[str, float]
    """For each thing."""

    @property
    def row(self) -> dict[str, object]:
        """Of a table."""
        cpu = {f"CPU ms {name}": round(value, 2) for name, value in self.cpu_ms.items()}
        return {"way": self.name, "a second": round(self.per_s), "ratio": round(self.ratio, 2), **cpu}


def take(ways: Sequence[Way], rounds: int = ROUNDS) -> Sequence[Taken]:
    """Every way once in each round, after one round that does not count; the first way is the floor."""
    rates = {way.name: list[float]() for way in ways}
    cpu = {way.name: {name: list[float]() for name in way.pids} for way in ways}
    for number in range(rounds + 1):
        for way in ways:
            work = way.prepare()
            before = {name: _both(pids) for name, pids in way.pids.items()}
            began = time.perf_counter()
            count = way.act(work)
            took_s = time.perf_counter() - began
            if number:
                rates[way.name].append(count / took_s)
                for name, pids in way.pids.items():
                    spent = max(now - then for now, then in zip(_both(pids), before[name], strict=True))
                    cpu[way.name][name].append(spent / count)
    floor = rates[ways[0].name]
    return [
        Taken(
            name=way.name,
            per_s=statistics.median(rates[way.name]),
            ratio=statistics.median(one / least for one, least in zip(rates[way.name], floor, strict=True)),
            cpu_ms={name: statistics.median(each) for name, each in cpu[way.name].items()},
        )
        for way in ways
    ]


def cpu_s(*pids: int) -> float:
    """CPU of whole processes, of threads that have ended too, in steps of 10 ms."""
    total = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        total += int(fields[11]) + int(fields[12])
    return total / _TICKS


def cpu_ms(*pids: int) -> float:
    """CPU of processes, to the nanosecond. Of other processes than this one, without threads that have ended."""
    total = 0.0
    for pid in pids:
        if pid == os.getpid():
            total += time.process_time() * 1000
            continue
        for task in Path(f"/proc/{pid}/task").glob("*/schedstat"):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                total += int(task.read_text(encoding="ascii").split()[0]) / 1e6
    return total


def _both(pids: Sequence[int]) -> tuple[float, float]:
    """In steps of 10 ms, and without threads that have ended: the larger difference is nearer to the truth."""
    return cpu_s(*pids) * 1000, cpu_ms(*pids)


def peak_mib(pid: int) -> int:
    """The most memory that a process has had."""
    lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) // 1024


def children(pid: int) -> Sequence[int]:
    """Processes that a process has started, as far as its first thread did."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()]
