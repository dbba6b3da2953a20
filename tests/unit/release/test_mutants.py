"""What mutation testing changes, and what it says of the tests."""

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from release.mutants import __main__ as mutants
from release.mutants.changes import Mutant, mutants_of
from release.mutants.run import Outcome


def test_a_mutant_is_the_same_below_other_code() -> None:
    function = "class A:\n    def f(self):\n        return (not self, not self)"
    (first, _), (second, _) = mutants_of(function)
    assert (first.line, str(first), first.nth, second.nth) == (3, "A.f: not self -> self", 0, 1)
    assert {first, second} == {mutant for mutant, _ in mutants_of(f"import os\n\n{function}")}


def test_an_explained_mutant_is_one_of_the_code() -> None:
    explained = mutants.explained()
    files = {file for file, _ in explained}
    there = Counter((file, str(mutant)) for file in files for mutant, _ in mutants_of(Path(file).read_text(), file))
    assert not explained - there


MODULE = """
LIMIT = 5
def small(n):
    return n < LIMIT
def unused(n):
    return not n
def text(n: int) -> str:
    return str(n)
"""
PROGRAM = """
import subprocess, sys
def test_in_a_program():
    program = "from gpushare.sizes import unused; raise SystemExit(not unused(0))"
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0
"""
TESTS = """
from gpushare.sizes import LIMIT, small
def test_of_sizes():
    assert small(4) and LIMIT == 5
"""
CONFTEST = """
from hypothesis import settings
settings.register_profile("mutants")
"""


def mutants_of_sizes(root: Path, tests: str, *also: str) -> subprocess.CompletedProcess[str]:
    for name, text in {
        "gpushare/__init__.py": "",
        "gpushare/sizes.py": MODULE,
        "tests/unit/test_sizes.py": tests,
        "tests/unit/late/test_late.py": "def test_late():\n    from gpushare import sizes",
        "tests/conftest.py": CONFTEST,
        "tests/equivalent_mutants.toml": "mutants = []",
        "pytest.ini": "[pytest]\npythonpath = .\nmarkers =\n    e2e\n    browser\n    soak\n",
    }.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    sources = {"PYTHONPATH": str(Path.cwd())}
    command = [
        sys.executable,
        "-P",
        "-m",
        "release.mutants",
        "--seed=1",
        "--results=results",
        "--tests=tests/unit",
        *also,
    ]
    return subprocess.run(command, cwd=root, env=os.environ | sources, capture_output=True, text=True, check=False)


def results(root: Path) -> set[tuple[str, str, str]]:
    """Function, change and outcome: the last one that is written."""
    lines = map(json.loads, (root / "results").read_text().splitlines())
    last = {(one["mutant"]["function"], one["mutant"]["change"]): one["outcome"] for one in lines}
    return {(*mutant, outcome) for mutant, outcome in last.items()}


def test_each_mutant_is_run_by_the_tests_that_reach_it(tmp_path: Path) -> None:
    ran = mutants_of_sizes(tmp_path, TESTS)
    assert {(change, outcome) for _, change, outcome in results(tmp_path)} == {
        ("5 -> 6", "killed"),
        ("n < LIMIT -> n <= LIMIT", "survived"),
        ("n < LIMIT -> n >= LIMIT", "killed"),
        ("not n -> n", "not covered"),
        ("str(n) -> n", "refused by mypy"),
    }, ran.stderr
    assert "5 of 5 mutants, --seed 1: gpushare 5" in ran.stdout
    assert ran.returncode == 1


def test_programs_that_tests_start_have_the_mutant(tmp_path: Path) -> None:
    ran = mutants_of_sizes(tmp_path, TESTS + PROGRAM)
    assert ("unused", "not n -> n", "killed") in results(tmp_path), ran.stderr


@pytest.mark.parametrize("also", ["gpushare/size.py", "--compare=nothing_left"])
def test_a_run_without_a_mutant_fails(also: str, tmp_path: Path) -> None:
    gone = {"file": "gpushare/sizes.py", "function": "gone", "change": "a -> b", "nth": 0, "line": 1, "statement": 1}
    (tmp_path / "nothing_left").write_text(json.dumps({"mutant": gone, "outcome": "killed"}))
    ran = mutants_of_sizes(tmp_path, TESTS, also)
    assert ran.returncode == 1
    assert "not a module" in ran.stderr or "none of them is left" in ran.stderr


def test_a_module_without_a_mutant_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert mutants.main(["certs/__init__.py"]) == 0
    assert capsys.readouterr().out.endswith("\nno mutant was drawn: these modules have none\n")


def test_tests_that_fail_without_a_change_kill_nothing(tmp_path: Path) -> None:
    only_where_loaded = "import os\nPID = os.getpid()\n" + TESTS + "    assert os.getpid() == PID\n"
    ran = mutants_of_sizes(tmp_path, only_where_loaded)
    assert "tests fail without any change" in ran.stderr
    assert "killed" not in (tmp_path / "results").read_text()
    assert ran.returncode == 1


MUTANTS = [Mutant("gpushare/sizes.py", "small", change, 0, 4, 4) for change in "abcd"]


@pytest.mark.parametrize(
    ("before", "after", "status"),
    [
        ("kkss", "kkss", 0),
        ("kkss", "ksss", 1),
        ("kkss", "kskt", 0),  # as many as before
    ],
)
def test_no_more_mutants_may_survive_than_before(before: str, after: str, status: int) -> None:
    outcomes: dict[str, Outcome] = {"k": "killed", "s": "survived", "t": "timed out"}
    then, now = (dict(zip(MUTANTS, map(outcomes.__getitem__, text), strict=True)) for text in (before, after))
    assert mutants.verdict(now, then, at_most=0, whole=False) == status


@pytest.mark.parametrize(("at_most", "status"), [(25, 0), (24, 1)])
def test_some_may_survive_without_a_reason(at_most: float, status: int) -> None:
    results: dict[Mutant, Outcome] = dict.fromkeys(MUTANTS[1:], "killed")
    results[MUTANTS[0]] = "not covered"
    assert mutants.verdict(results, {}, at_most, whole=False) == status
