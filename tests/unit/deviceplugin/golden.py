"""What the plugin says: a line for each case in golden/NAME.txt, in the order of the test's cases."""

from collections.abc import Iterable
from pathlib import Path

DIRECTORY = Path(__file__).parent / "golden"


def compare(name: str, found: Iterable[str]) -> None:
    expected = (DIRECTORY / f"{name}.txt").read_text(encoding="utf-8").splitlines()
    assert list(found) == expected
