"""Mutation testing: change the code in one place at a time and see whether the tests of that module notice.

Run it with `make mutants`. Everything happens in copies of the tree. `equivalent_mutants.toml` names the mutants that
change nothing that can be observed, each with the reason; any other mutant that survives makes the run fail.
"""

import argparse
import collections
import contextlib
import importlib
import multiprocessing
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import pytest

from tests.mutations import Mutant, mutants_of

ROOT: Final = Path(__file__).parents[1]
EXPLAINED: Final = ROOT / "tests/equivalent_mutants.toml"


def _of(folder: str, *names: str) -> tuple[str, ...]:
    return tuple(f"tests/{folder}/test_{name}.py" for name in names)


PLACEMENT: Final = _of("unit/gpushare", "placement", "kinds_of_placement", "model", "selectors")
VALUES: Final = _of("unit/gpushare", "pod_requests", "allocation_wire", "inventory_wire", "cluster_records", "reasons")
SEARCHED: Final = _of("property", "placement", "search")
SUITES: Final[Mapping[str, Sequence[str]]] = {
    "gpushare/placement/*.py": (*PLACEMENT, *SEARCHED),
    "gpushare/model/[!l]*.py": (*PLACEMENT, *VALUES, *SEARCHED),
    "gpushare/model/ledger.py": (
        *_of("unit/gpushare", "ledger"),
        *PLACEMENT,
        *VALUES,
        *SEARCHED,
        *_of("property", "ledger"),
    ),
    "controller/reservations.py": _of(
        "unit/controller",
        "reservations",
        "label_index",
        "bind_faults",
        "late_faults",
        "late_binding",
        "late_machine",
        "machine",
    ),
    "deviceplugin/decide.py": _of("unit/deviceplugin", "decide", "takeover", "kinds_of_shares", "late", "prestart"),
    "webhook/env.py": _of(
        "unit/webhook", "env", "gpu_pods", "other_pods", "kinds", "refusals", "malformed_reviews", "properties"
    ),
}
"""Modules -> the tests that have to notice a change of them, the fastest first."""
OPTIONS: Final = (
    *("-x", "-q", "-p", "no:cacheprovider", "-p", "no:randomly", "--hypothesis-profile=mutants"),
    *("-W", "ignore::pytest.PytestAssertRewriteWarning"),  # about what is loaded already
)
PRELOADED: Final = ("hypothesis.stateful", "flask", "orjson", "prometheus_client", "cryptography.x509", "yaml")
MEMORY: Final = 4 << 30  # bytes of address space; a loop that no longer ends must not take the machine with it

Outcome = Literal["killed", "survived", "timed out"]


@dataclass(frozen=True, slots=True)
class Job:
    """Tests to run, with one module changed or with none."""

    tests: Sequence[str]
    cpu_s: int
    file: str = ""
    mutant: Mutant | None = None


def copy_of_tree() -> None:
    """Make this worker's own copy the current directory; pytest and hypothesis are loaded once for all runs."""
    os.nice(5)
    copy = Path(tempfile.mkdtemp(prefix="mutants-", dir=os.environ["MUTANTS"]))
    skipped = shutil.ignore_patterns(".*", "__pycache__", "*.egg-info")
    shutil.copytree(ROOT, copy, ignore=skipped, dirs_exist_ok=True)
    os.chdir(copy)
    for name in PRELOADED:
        importlib.import_module(name)


def run(job: Job) -> tuple[Job, Outcome, float]:
    """Run tests in a process of their own. How they ended, and their CPU seconds."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    if job.mutant is None:
        status = _fork(job)
    else:
        path = Path(job.file)
        original = path.read_text(encoding="utf-8")
        path.write_text(job.mutant.source, encoding="utf-8")
        for stale in path.parent.glob(f"__pycache__/{path.stem}.*"):
            stale.unlink()
        status = _fork(job)
        path.write_text(original, encoding="utf-8")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    if status == 0:
        return job, "survived", cpu_s
    return job, "timed out" if status in {-signal.SIGXCPU, -signal.SIGKILL} else "killed", cpu_s


def _fork(job: Job) -> int:
    pid = os.fork()
    if pid == 0:
        with contextlib.suppress(BaseException):
            os._exit(_pytest(job))
        os._exit(1)
    ends = time.monotonic() + 10 * job.cpu_s  # for tests that wait; a busy machine gives a tenth of the CPU
    while True:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            break
        if time.monotonic() > ends:
            os.killpg(pid, signal.SIGKILL)
        time.sleep(0.01)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)  # what a test has started and not ended
    return os.waitstatus_to_exitcode(status)


def _pytest(job: Job) -> int:
    os.setsid()
    log = os.open(f"{Path.cwd()}.log", os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    for stream in (1, 2):
        os.dup2(log, stream)
    resource.setrlimit(resource.RLIMIT_CPU, (job.cpu_s, job.cpu_s + 5))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    sys.path.insert(0, str(Path.cwd()))
    sys.dont_write_bytecode = job.mutant is not None
    return int(pytest.main([*OPTIONS, *job.tests]))


def main() -> int:
    parser = argparse.ArgumentParser(description="Mutation testing of what decides. Exits 1 for unexplained survivors.")
    parser.add_argument("--sample", type=int, metavar="N", help="run N mutants instead of all")
    parser.add_argument("--seed", type=int, default=1, help="of the sample")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes at a time")
    parser.add_argument(
        "file", nargs="*", type=lambda text: Path(text).resolve(), help="modules, such as gpushare/placement/place.py"
    )
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="mutants-") as directory:
        os.environ["MUTANTS"] = directory
        with multiprocessing.get_context("fork").Pool(asked.jobs, copy_of_tree) as pool:
            todo: list[Job] = []
            asked_for = {
                pattern: [path for path in sorted(ROOT.glob(pattern)) if not asked.file or path in asked.file]
                for pattern in SUITES
            }
            patterns = [pattern for pattern, paths in asked_for.items() if paths]
            plain_runs = pool.imap(run, (Job(SUITES[pattern], 600) for pattern in patterns))
            for pattern, (plain, outcome, cpu_s) in zip(patterns, plain_runs, strict=True):
                if outcome != "survived":
                    print(*(log.read_text() for log in Path(directory).glob("*.log")))
                    sys.exit(f"the tests of {pattern} fail without any change")
                print(f"{pattern}: the tests take {cpu_s:.1f} s of CPU", flush=True)
                for path in asked_for[pattern]:
                    file = str(path.relative_to(ROOT))
                    found = mutants_of(path.read_text(encoding="utf-8"))
                    todo += (Job(plain.tests, int(3 * cpu_s) + 10, file, mutant) for mutant in found)
            if asked.sample:
                todo = random.Random(asked.seed).sample(todo, min(asked.sample, len(todo)))
            return report(pool.imap_unordered(run, todo), len(todo), whole=not asked.sample)


def report(results: Iterator[tuple[Job, Outcome, float]], total: int, *, whole: bool) -> int:
    """Print survivors as they come, and the figures at the end."""
    explained = collections.Counter(
        (group["file"], change)
        for group in tomllib.loads(EXPLAINED.read_text(encoding="utf-8"))["mutants"]
        for change in group["changes"]
    )
    counts = dict.fromkeys(("killed", "survived", "timed out", "explained"), 0)
    files = set()
    for done, (job, outcome, _) in enumerate(results, start=1):
        assert job.mutant is not None
        files.add(job.file)
        key = (job.file, str(job.mutant))
        if outcome == "survived" and explained[key]:
            explained[key] -= 1
            counts["explained"] += 1
        else:
            counts[outcome] += 1
            if outcome != "killed":
                print(f"{outcome}: {job.file}:{job.mutant.line} {job.mutant}", flush=True)
        if done % 50 == 0 or done == total:
            print(f"{done} of {total}: {', '.join(f'{count} {name}' for name, count in counts.items())}", flush=True)
    stale = [f"{file}: {change}" for (file, change), left in explained.items() if whole and file in files and left]
    for line in stale:
        print(f"explained in {EXPLAINED.name}, but it does not survive: {line}")
    return 1 if counts["survived"] or stale else 0


if __name__ == "__main__":
    sys.exit(main())
