"""Draws docs/pictures/top.svg: what `gpushare top` prints in a terminal with colours. `make docs` runs it."""

import contextlib
import io
import re
from collections.abc import Iterator, Mapping
from html import escape
from pathlib import Path
from typing import Final

from gpushare.runtime.clock import SystemClock
from gpushare_cli import top
from gpushare_cli.console import WIDTH, Look, Streams
from gpushare_cli.dashboard import command
from testing import clusters

PICTURE: Final = Path(__file__).parents[2] / "docs" / "pictures" / "top.svg"
GPUS: Final = 12
COLOURS: Final[Mapping[str, str]] = {
    "": "#e6edf3",
    "1": "#ffffff",
    "2": "#9198a1",
    "31": "#ff7b72",
    "32": "#7ee787",
    "33": "#e3b341",
    "34": "#79c0ff",
    "35": "#d2a8ff",
    "36": "#56d4dd",
    "94": "#a5d6ff",
}
"""What the terminal shows for the numbers of ANSI commands."""
_CELL, _LINE, _EDGE = 8.4, 19, 14


def printed() -> str:
    """The command's output, with ANSI commands."""
    out, notes = io.StringIO(), io.StringIO()
    live = command.of_cluster(clusters.large(GPUS), top.Options(), lambda: "default", SystemClock())
    look = Look(colour=True, unicode=True)
    with contextlib.redirect_stdout(out):
        code = top.once(live, (), look, Streams(out=notes, err=notes), SystemClock(), lambda: False)
    assert code == 0, notes.getvalue()
    return out.getvalue()


def made() -> str:
    """The picture as it should be."""
    return svg(printed())


def svg(output: str) -> str:
    """The picture of a terminal."""
    lines = ["\x1b[2m$\x1b[0m gpushare top", *output.splitlines()]
    width, height = round(WIDTH * _CELL + 2 * _EDGE), len(lines) * _LINE + 2 * _EDGE
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
        ' role="img" aria-labelledby="title">',
        '<title id="title">gpushare top in a terminal</title>',
        "<style>text{font:14px ui-monospace,'DejaVu Sans Mono',Menlo,Consolas,monospace;white-space:pre}</style>",
        f'<rect width="{width}" height="{height}" rx="8" fill="#0d1117"/>',
        *(part for i, line in enumerate(lines) for part in _spans(line, _EDGE + _LINE * i + 14)),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _spans(line: str, y: int) -> Iterator[str]:
    column = 0
    pieces = re.split(r"\x1b\[(\d+)m(.*?)\x1b\[0m", line)
    for i, piece in enumerate(pieces):
        if i % 3 == 1:
            continue
        colour = pieces[i - 1] if i % 3 == 2 else ""
        for word in re.finditer(r"\S+(?: \S+)*", piece):
            at, long = column + word.start(), len(word[0])
            yield (
                f'<text x="{_EDGE + at * _CELL:.1f}" y="{y}" textLength="{long * _CELL:.1f}"'
                f' lengthAdjust="spacingAndGlyphs" fill="{COLOURS[colour]}">{escape(word[0])}</text>'
            )
        column += len(piece)
