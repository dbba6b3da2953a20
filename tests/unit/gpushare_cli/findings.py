"""What doctor finds, line by line, in golden/doctor.txt: of each check, and of each test of several findings."""

import itertools
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from testing.cli import doctor_cluster as world
from testing.cli.doctor_cluster import Change

Told = Callable[[], list[str]]
_GOLDEN = Path(__file__).parent / "golden" / "doctor.txt"


def parts(section: str) -> Iterable[list[str]]:
    """The parts of a section: lines between empty ones."""
    text = _GOLDEN.read_text(encoding="utf-8").partition(f"# {section}\n")[2].partition("\n# ")[0]
    return (list(lines) for has_lines, lines in itertools.groupby(text.splitlines(), key=bool) if has_lines)


def compare(check: str, changes: Sequence[Change]) -> None:
    """Each change is told by one line, and by nothing else.

    But for the device plugin, which must see every GPU: it says so too where a label that excludes its namespace goes.
    """
    found = [[line for line in world.after(change) if not line.startswith("warning gpu-addons")] for change in changes]
    assert found == [[line] for lines in parts(check) for line in lines]
