"""The table of complaints names tests that exist."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TESTS = ROOT / "tests"
LINES = (ROOT / "docs" / "pains.md").read_text(encoding="utf-8").splitlines()
ROWS = [[cell.strip() for cell in line.strip("|").split("|")] for line in LINES if line.startswith("| ")]
BODY = [row for row in ROWS if row[-1] != "Covered by"]
NAMED = re.compile(r"`([a-z_/0-9]+\.py)::(test_\w+)`")


@cache
def functions(path: str) -> frozenset[str]:
    file = TESTS / path
    tree = ast.parse(file.read_text(encoding="utf-8")) if file.is_file() else ast.Module(body=[], type_ignores=[])
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))


@pytest.mark.parametrize(("path", "name"), sorted({found for row in BODY for found in NAMED.findall(row[-1])}))
def test_every_test_that_is_named_exists(path: str, name: str) -> None:
    assert name in functions(path)


@pytest.mark.parametrize("row", BODY, ids=lambda row: row[0][:20])
def test_every_complaint_has_a_test_or_says_why_not(row: list[str]) -> None:
    named = NAMED.findall(row[-1])
    assert bool(named) != row[-1].startswith("not covered: ")
    assert not named or re.sub(NAMED, "", row[-1]).replace("<br>", "") == ""


def test_all_thirty_are_there() -> None:
    assert [int(row[0]) for row in BODY if row[0].isdigit()] == list(range(1, 31))
