"""What the commands tell, line by line, in golden/*.txt: of each check of doctor, and of each test that asks."""

import itertools
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from testing.cli import doctor_cluster as world
from testing.cli.doctor_cluster import Change

Told = Callable[[], list[str]]
_GOLDEN = Path(__file__).parent / "golden"


def file(name: str) -> str:
    return (_GOLDEN / name).read_text(encoding="utf-8")


def parts(section: str, area: str = "doctor") -> Iterable[list[str]]:
    """The parts of a section: lines between empty ones; a dot stands for a line that is empty."""
    _, is_there, text = file(f"{area}.txt").partition(f"# {section}\n")
    assert is_there, section
    text = text.partition("\n# ")[0]
    found = (list(lines) for has_lines, lines in itertools.groupby(text.splitlines(), key=bool) if has_lines)
    return (["" if line == "." else line for line in lines] for lines in found)


def golden(area: str, case: str) -> list[str]:
    """All lines of a section."""
    [lines] = parts(case, area)
    return lines


def compare(check: str, changes: Sequence[Change]) -> None:
    """Each change is told by one line, and by nothing else.

    But for the device plugin, which must see every GPU: it says so too where a label that excludes its namespace goes.
    """
    found = [[line for line in world.after(change) if not line.startswith("warning gpu-addons")] for change in changes]
    assert found == [[line] for lines in parts(check) for line in lines]
