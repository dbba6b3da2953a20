"""What doctor finds after a change of a healthy cluster, line by line: golden/doctor.txt."""

from collections.abc import Sequence
from pathlib import Path

from testing.cli import doctor_cluster as world
from testing.cli.doctor_cluster import Change

_LINES = (Path(__file__).parent / "golden" / "doctor.txt").read_text(encoding="utf-8").splitlines()


def compare(check: str, changes: Sequence[Change]) -> None:
    """Each change is told by one line, and by nothing else.

    But for the device plugin, which must see every GPU: it says so too where a label that excludes its namespace goes.
    """
    found = [[line for line in world.after(change) if not line.startswith("warning gpu-addons")] for change in changes]
    assert found == [[line] for line in _LINES if line.split()[1] == check]
