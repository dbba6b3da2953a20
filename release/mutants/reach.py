"""Which tests reach a line: recorded once, in a run of all of them under coverage, and kept until the tree changes."""

import functools
import hashlib
import itertools
import json
import os
import re
import sqlite3
from collections import Counter, defaultdict
from collections.abc import Generator, Iterable, Mapping, Sequence, Set
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import coverage
import pytest
from coverage.numbits import num_in_numbits, numbits_union

from release.mutants import GENERATED, PRODUCT
from release.mutants.changes import Mutant
from release.mutants.run import run_pytest

REACHED: Final = """
    select path, context, numbits from line_bits
    join file on file.id = file_id join context on context.id = context_id
"""
PROGRAMS: Final = """[run]
parallel = true
data_file = {data}-program
source = {sources}
omit = {omit}
context = ${{PYTEST_CURRENT_TEST-}}
patch = _exit
    fork
disable_warnings = module-not-imported, no-data-collected
"""
"""How coverage measures the programs that tests start."""
MOST: Final = 200  # tests for one mutant; those beyond are counted in the results


def product(root: Path) -> list[Path]:
    """Every module that is mutated, relative to the root."""
    found = (path.relative_to(root) for name in PRODUCT for path in sorted((root / name).rglob("*.py")))
    return [path for path in found if not path.as_posix().startswith(GENERATED)]


def state_of(root: Path) -> str:
    """A digest of the product and of all tests: what is recorded is kept under it."""
    digest = hashlib.sha256()
    for path in sorted(path for name in (*PRODUCT, "tests", "testing") for path in (root / name).rglob("*.py")):
        digest.update(path.relative_to(root).as_posix().encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def files_of(root: Path, tests: Sequence[str]) -> list[str]:
    """The files with tests in these directories; those of benchmarks start the product to measure, not to judge it."""
    names = (file for file in _sources(root, tuple(tests)) if "/bench/" not in file)
    return [file for file in names if file.rpartition("/")[2].startswith("test_")]


def importers(root: Path, tests: Sequence[str], module: Path) -> set[str]:
    """The files of tests that import a module by its name, themselves or by what they share."""
    dotted = module.with_suffix("").as_posix().replace("/", ".").removesuffix(".__init__")
    package, _, name = dotted.rpartition(".")
    names = rf"from {dotted} import|import {dotted}\b" + (rf"|from {package} import .*\b{name}\b" if package else "")
    imports = re.compile(rf"^\s*({names})", re.MULTILINE)
    found = {file for file, text in _sources(root, tuple(tests)).items() if imports.search(text)}
    shared = {file for file in found if not file.rpartition("/")[2].startswith("test_")}
    return (found - shared).union(*(importers(root, tests, Path(file)) for file in shared))


@functools.cache
def _sources(root: Path, tests: Sequence[str]) -> Mapping[str, str]:
    found = (path for given in tests for path in sorted((root / given).rglob("*.py")))
    return {path.relative_to(root).as_posix(): path.read_text(encoding="utf-8") for path in found}


class _Recorder:
    """Names the test that runs, and those that pass."""

    def __init__(self, measured: coverage.Coverage) -> None:
        self._measured = measured
        self.passed = set[str]()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        self._measured.switch_context(item.nodeid)
        try:
            return (yield)
        finally:
            self._measured.switch_context("")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" and report.passed:
            self.passed.add(report.nodeid)
        elif report.failed:
            self.passed.discard(report.nodeid)


def record(root: Path, files: Sequence[str], data: Path, log: Path) -> int:
    """Run the tests, as those of a mutant are run, and write what each reaches, in programs too; 1 if some fail."""
    sources = [str(root / name) for name in PRODUCT]
    measured = coverage.Coverage(str(data), source=sources, omit=[f"{GENERATED}*"], config_file=False, branch=False)
    measured.set_option("run:disable_warnings", ["module-not-imported"])
    recorder = _Recorder(measured)
    settings = data.with_suffix(".ini")
    lines = "\n    ".join(sources)
    settings.write_text(PROGRAMS.format(data=data, sources=lines, omit=f"{GENERATED}*"), encoding="utf-8")
    os.environ["COVERAGE_PROCESS_START"] = str(settings)
    measured.start()
    status = run_pytest(log, ["--tb=short", *files], recorder)
    measured.stop()
    measured.save()
    if status in {0, 1}:
        data.with_suffix(".passed").write_text(json.dumps(sorted(recorder.passed)), encoding="utf-8")
    return status


@dataclass(frozen=True, slots=True)
class Reach:
    """What a recorded run says of one module: the lines of it that each test reaches, "" for what runs at import."""

    lines: dict[str, bytes]
    sizes: Mapping[str, int]
    """How many lines of all modules each test reaches."""
    near: Set[str]

    def of(self, mutant: Mutant) -> tuple[list[str], int]:
        """The tests for a mutant, and how many more reach it.

        One case of each test function comes first, those of files that import the module before others, and of these
        the one that reaches the fewest lines: it is the fastest, and the most about this one. What runs at import is
        for every test that reaches the module, and for all in the files that import it, after those that reach it.
        """
        direct = self._reaching(mutant.line) or self._reaching(mutant.statement)
        reaching = set(direct)
        if "" in direct:
            reaching.update(self.lines)
            reaching.update(test for test in self.sizes if test.partition("::")[0] in self.near)
        cases = Counter[str]()
        ranked = []
        for test in sorted(reaching - {""}, key=lambda test: (self.sizes[test], test)):
            function = test.partition("[")[0]
            far = test.partition("::")[0] not in self.near
            ranked.append((test not in direct, cases[function], far, self.sizes[test], test))
            cases[function] += 1
        return [test for *_, test in sorted(ranked)[:MOST]], max(0, len(ranked) - MOST)

    def _reaching(self, line: int) -> set[str]:
        return {test for test, numbits in self.lines.items() if num_in_numbits(line, numbits)}


def read(recorded: Iterable[Path], root: Path, tests: Sequence[str], modules: Sequence[str]) -> dict[str, Reach]:
    """Of these modules, from the recorded runs."""
    sizes = Counter[str]()
    found = {module: Reach(defaultdict(bytes), sizes, importers(root, tests, Path(module))) for module in modules}
    for data in recorded:
        passed = {"", *json.loads(data.with_suffix(".passed").read_text(encoding="utf-8"))}
        with closing(sqlite3.connect(data)) as rows:
            for path, test, numbits in rows.execute(REACHED):
                if test in passed:
                    sizes[test] += int.from_bytes(numbits).bit_count()
                    if reached := found.get(path.removeprefix(f"{root}/")):
                        reached.lines[test] = numbits_union(reached.lines[test], numbits)
    for data in recorded:
        passed = {*json.loads(data.with_suffix(".passed").read_text(encoding="utf-8"))}
        for program in data.parent.glob(f"{data.name}-program*"):
            _read_program(program, root, passed, found, sizes)
    del sizes[""]
    return found


def _read_program(data: Path, root: Path, passed: Set[str], found: Mapping[str, Reach], sizes: Counter[str]) -> None:
    """What a program has run that the tests' own process does not run at import.

    A program that was started before a test's call serves all tests of its file.
    """
    with closing(sqlite3.connect(data)) as rows:
        for path, at, numbits in rows.execute(REACHED):
            test, _, phase = at.rpartition(" ")
            file = test.partition("::")[0]
            served = {test} if phase == "(call)" else {each for each in passed if each.startswith(f"{file}::")}
            if reached := found.get(path.removeprefix(f"{root}/")):
                own = bytes(a & ~b for a, b in itertools.zip_longest(numbits, reached.lines.get("", b""), fillvalue=0))
                for each in served & passed:
                    sizes[each] += int.from_bytes(own).bit_count()
                    reached.lines[each] = numbits_union(reached.lines[each], own)
