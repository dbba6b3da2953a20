"""The table of complaints names tests that exist."""

import re
from functools import cache
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
TESTS: Final = ROOT / "tests"
LINES: Final = (ROOT / "docs" / "pains.md").read_text(encoding="utf-8").splitlines()
ROWS: Final = [[cell.strip() for cell in line.strip("|").split("|")] for line in LINES if line.startswith("| ")]
BODY: Final = [row for row in ROWS if row[-1] != "Covered by"]
NAMED: Final = re.compile(r"`([a-z_/0-9]+\.py)::(test_\w+)`")


@cache
def functions(path: str) -> frozenset[str]:
    text = file.read_text(encoding="utf-8") if (file := TESTS / path).is_file() else ""
    return frozenset(re.findall(r"^def (\w+)", text, re.MULTILINE))


def test_every_complaint_names_tests_that_exist_or_says_why_there_is_none() -> None:
    assert [int(row[0]) for row in BODY if row[0].isdigit()] == list(range(1, 31))
    unclear = [
        row[0]
        for row in BODY
        if not row[-1].startswith("not covered: ") and set(re.sub(NAMED, "-", row[-1]).split("<br>")) != {"-"}
    ]
    missing = [found for row in BODY for found in NAMED.findall(row[-1]) if found[1] not in functions(found[0])]
    assert (unclear, missing) == ([], [])
