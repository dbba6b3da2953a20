"""Runs of benchmarks as files: what was measured, on what, and how busy the machine was."""

import datetime
import os
import platform
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import orjson

Row = Mapping[str, Any]


class Results:
    """Of one program. Written again after every row, so that a run that is cut off leaves what it has."""

    def __init__(self, bench: str, path: Path | None) -> None:
        self._path = path
        self._began = time.monotonic()
        self._head = {
            "bench": bench,
            "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
            "machine": f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}",
            "load_before": round(os.getloadavg()[0], 1),
        }
        self.rows: list[Row] = []

    def note(self, **facts: object) -> None:
        """What holds for all rows, such as a version."""
        self._head |= facts

    def add(self, rows: Iterable[Row]) -> None:
        """Keep rows, and write the file if there is one."""
        self.rows += rows
        if self._path is not None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            value = {
                **self._head,
                "load_after": round(os.getloadavg()[0], 1),
                "seconds": round(time.monotonic() - self._began),
                "rows": self.rows,
            }
            self._path.write_bytes(orjson.dumps(value, option=orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS))


def progress(line: str) -> None:
    """Say what is being done, to those who watch."""
    if sys.stderr.isatty():
        print(f"{line} ...    ", end="\r", file=sys.stderr, flush=True)


def table(columns: Iterable[str], rows: Iterable[Row]) -> Iterable[str]:
    """Lines of a table in Markdown."""
    names = list(columns)
    yield f"| {' | '.join(names)} |"
    yield f"|{'---|' * len(names)}"
    for row in rows:
        yield f"| {' | '.join(written(row.get(name, '')) for name in names)} |"


def written(value: object) -> str:
    """A figure in so many digits as say something."""
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
