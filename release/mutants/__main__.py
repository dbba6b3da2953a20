"""`make mutants`: draw mutants, run their tests, and say which no test noticed.

`tests/equivalent_mutants.toml` names those that change nothing that can be observed, each with the reason.
"""

import argparse
import collections
import functools
import hashlib
import itertools
import json
import os
import subprocess
import sys
import tomllib
import warnings
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import asdict
from pathlib import Path
from typing import Final

from release.mutants import lint, reach
from release.mutants.changes import Mutant, mutants_of
from release.mutants.run import (
    WALL_S,
    Job,
    Outcome,
    Pool,
    changed_functions,
    end_with,
    in_loaded_process,
    in_new_process,
    outcome,
)

ROOT: Final = Path.cwd()
EXPLAINED: Final = ROOT / "tests/equivalent_mutants.toml"
KEPT: Final = ROOT / "build/mutants"
LAST: Final = KEPT / "last.jsonl"
LOG: Final = KEPT / "log"
SEED: Final = 20261125
"""Of the sample by which releases are compared."""
TESTS: Final = ("tests/unit", "tests/property", "tests/docs", "tests/integration")
NOTICED: Final = ("killed", "timed out", "refused by mypy")

Results = dict[Mutant, Outcome]


def main(argv: Sequence[str]) -> int:
    """Exits 1 if too many survive."""
    given = _parser().parse_args(argv)
    before = _read(given.compare) if given.compare else {}
    if given.compare and not before:
        sys.exit(f"there are no results in {given.compare}")
    if unknown := {*given.files} - {module.as_posix() for module in reach.product(ROOT)}:
        sys.exit(f"not a module of the product: {', '.join(sorted(unknown))}")
    present = list(_all(given.files, given.since))
    if before:
        drawn = [mutant for mutant in present if mutant in before]
        print(f"{len(drawn)} of the {len(before)} mutants in {given.compare} are still there")
        if not drawn:
            sys.exit("none of them is left to compare")
    else:
        drawn = sorted(present, key=lambda mutant: _place(mutant, given.seed))[: given.sample]
        print(f"{len(drawn)} of {len(present)} mutants, --seed {given.seed}: {_by_package(drawn)}", flush=True)
        if not present:
            where = f"the modules that have changed since {given.since}" if given.since else "these modules"
            print(f"no mutant was drawn: {where} have none")
            return 0
    KEPT.mkdir(parents=True, exist_ok=True)
    LOG.unlink(missing_ok=True)
    if given.results == LAST:
        LAST.unlink(missing_ok=True)
    left = [mutant for mutant in drawn if mutant not in _read(given.results)]
    if left:
        _run(left, given)
    results = _read(given.results)
    _lint({mutant for mutant in drawn if results[mutant] not in NOTICED}, given.results)
    results = _read(given.results)
    return verdict({one: results[one] for one in drawn}, before, given.at_most, whole=len(drawn) == len(present))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="release.mutants", description=__doc__, allow_abbrev=False)
    parser.add_argument("files", nargs="*", help="modules, such as gpushare/placement/place.py; by default all")
    parser.add_argument("--sample", type=int, default=2000, metavar="N", help="how many, over all packages")
    parser.add_argument("--seed", type=int, default=SEED, help="which; printed")
    parser.add_argument("--since", metavar="COMMIT", help="draw from the modules that have changed since then")
    parser.add_argument(
        "--results", type=Path, default=LAST, help="JSON lines to add to; what is in it is not run again"
    )
    parser.add_argument("--compare", type=Path, help="run the mutants of these results that are still there")
    parser.add_argument("--tests", nargs="+", default=TESTS, metavar="DIRECTORY", help="whose tests to use")
    parser.add_argument("--near", action="store_true", help="of these, only files that import a module with a mutant")
    parser.add_argument("--at-most", type=float, default=5, metavar="PERCENT", help="may survive without a reason")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes at a time")
    return parser


def _all(files: Sequence[str], since: str | None) -> Iterable[Mutant]:
    modules = [module for module in reach.product(ROOT) if not files or module.as_posix() in files]
    if since:
        command = ["git", "diff", "--name-only", since]
        changed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split()
        modules = [module for module in modules if module.as_posix() in changed]
    for module in modules:
        for mutant, _ in mutants_of((ROOT / module).read_text(encoding="utf-8"), module.as_posix()):
            yield mutant


def _place(mutant: Mutant, seed: int) -> bytes:
    """Its place in the order of a seed, which another mutant's coming or going does not change."""
    text = f"{seed} {mutant.file} {mutant.function} {mutant.change} {mutant.nth}"
    return hashlib.sha256(text.encode()).digest()


def _by_package(mutants: Iterable[Mutant]) -> str:
    counts = collections.Counter(mutant.file.partition("/")[0] for mutant in mutants)
    return ", ".join(f"{package} {count}" for package, count in counts.most_common())


def _read(results: Path) -> Results:
    lines = results.read_text(encoding="utf-8").splitlines() if results.exists() else []
    return {Mutant(**one["mutant"]): one["outcome"] for one in map(json.loads, lines)}


def _run(mutants: Sequence[Mutant], given: argparse.Namespace) -> None:
    """Run their tests; each result is written as it comes, by whichever process has it."""
    modules = sorted({mutant.file for mutant in mutants})
    tests = reach.files_of(ROOT, given.tests)
    if given.near:
        tests = sorted({test for module in modules for test in reach.importers(ROOT, given.tests, Path(module))})
    reaches = reach.read(_recorded(tests, given.jobs), ROOT, given.tests, modules)
    with given.results.open("a", encoding="utf-8", buffering=1) as out:

        def report(job: Job, result: Outcome, cpu_s: float) -> None:
            seen = {"outcome": result, "tests": len(job.tests), "left_out": job.left_out, "cpu_s": round(cpu_s, 2)}
            out.write(json.dumps({"mutant": asdict(job.mutant)} | seen) + "\n")

        jobs = []
        for job in _jobs(mutants, reaches):
            if job.tests:
                jobs.append(job)
            else:
                report(job, "not covered", 0)
        pool = Pool[Job](given.jobs, lambda job, status, cpu_s: report(job, outcome(status), cpu_s), WALL_S)
        if in_loaded_process(jobs, pool, LOG):
            sys.exit(f"tests fail without any change, or cannot be loaded: see {LOG}")
        done = _read(given.results)
        in_new_process([job for job in jobs if job.mutant not in done], pool, LOG)


def _lint(mutants: Set[Mutant], results: Path) -> None:
    """Write down which of those that tests have not noticed the type checker refuses."""
    with results.open("a", encoding="utf-8", buffering=1) as out:

        def report(mutant: Mutant, refused: bool) -> None:
            if refused:
                out.write(json.dumps({"mutant": asdict(mutant), "outcome": "refused by mypy"}) + "\n")

        lint.refused(ROOT, KEPT / "mypy", mutants, report)


def _jobs(mutants: Sequence[Mutant], reaches: Mapping[str, reach.Reach]) -> list[Job]:
    """In the order of the mutants."""
    found = dict[Mutant, Job]()
    for file, of_module in reaches.items():
        wanted = {mutant for mutant in mutants if mutant.file == file}
        path = ROOT / file
        source = path.read_text(encoding="utf-8")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)  # some mutants look odd
            original = compile(source, path, "exec")
            for mutant, tree in mutants_of(source, file):
                if mutant in wanted:
                    changed = compile(tree, path, "exec")
                    at_import = changed_functions(original, changed) is None
                    found[mutant] = Job(mutant, original, changed, *of_module.of(mutant, at_import=at_import))
    return [found[mutant] for mutant in mutants]


def _recorded(tests: Sequence[str], jobs: int) -> list[Path]:
    """What the tests of each directory reach; they are run once, if that is not there."""
    found = []
    state = reach.state_of(ROOT)
    for old in KEPT.glob("reach-*"):
        if state not in old.name:
            old.unlink()

    def report(directory: str, status: int, cpu_s: float) -> None:
        said = {0: "all pass", 1: f"some fail, and are not used: see {LOG}"}
        print(f"{directory}: {said.get(status, f'pytest ends with {status}')}; {cpu_s:.0f} s of CPU", flush=True)

    pool = Pool(jobs, report)
    for directory, group in itertools.groupby(tests, lambda test: test.rpartition("/")[0]):
        files = list(group)
        asked = hashlib.sha256("".join(files).encode()).hexdigest()[:8]
        data = KEPT / f"reach-{state}-{directory.replace('/', '-')}-{asked}"
        found.append(data)
        if not data.with_suffix(".passed").exists():
            data.unlink(missing_ok=True)
            if pool.fork(directory):
                end_with(functools.partial(reach.record, ROOT, files, data, LOG))
    pool.finish()
    if not all(data.with_suffix(".passed").exists() for data in found):
        sys.exit(f"tests cannot be run: see {LOG}")
    return found


def explained() -> collections.Counter[tuple[str, str]]:
    """By file and change, how many survivors have a reason."""
    groups = tomllib.loads(EXPLAINED.read_text(encoding="utf-8"))["mutants"]
    return collections.Counter((group["file"], change) for group in groups for change in group["changes"])


def verdict(results: Results, before: Results, at_most: float, *, whole: bool) -> int:
    """Print what survives; 1 if it is too much, or more than before."""
    left = explained()
    survivors = [mutant for mutant, outcome in results.items() if outcome not in NOTICED]
    unexplained = []
    for mutant in survivors:
        if left[mutant.file, str(mutant)]:
            left[mutant.file, str(mutant)] -= 1
        else:
            unexplained.append(mutant)
            print(f"{results[mutant]}: {mutant.file}:{mutant.line} {mutant}")
    files = {mutant.file for mutant in results} if whole else ()
    stale = [f"{file}: {change}" for (file, change), count in left.items() if count and file in files]
    for one in stale:
        print(f"explained in {EXPLAINED.name}, but it does not survive: {one}")
    counts = collections.Counter(results.values())
    share = 100 * len(unexplained) / max(1, len(results))
    print(f"{len(results)} mutants: {', '.join(f'{count} {outcome}' for outcome, count in counts.most_common())}")
    print(
        f"{len(unexplained)} survive without a reason, {share:.1f} %; at most {at_most:g} %: {_by_package(unexplained)}"
    )
    if not before:
        return int(share > at_most or bool(stale))
    lost = [mutant for mutant in survivors if before[mutant] in NOTICED]
    for mutant in lost:
        print(f"no longer noticed: {mutant.file}:{mutant.line} {mutant}")
    survived = sum(before[mutant] not in NOTICED for mutant in results)
    print(f"{len(survivors)} survive, {survived} before; {len(lost)} are no longer noticed")
    return int(len(survivors) > survived)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
