"""Tables for people that fit the width of a terminal. Pure.

Nothing is cut: names, UUIDs and commands stay whole, so a line may be too long if one of them is. What does not fit
beside the other columns goes to an indented line of its own, and prose is folded.
"""

import re
import sys
import textwrap
from collections.abc import Iterable, Sequence
from typing import Final

from gpushare.model.gpu import MAX_GPUS
from gpushare_cli import terminal

ENDLESS: Final = sys.maxsize
"""The width of what is no terminal."""
_GAP: Final = 2
_INDENT: Final = 4
_ENOUGH: Final = 40
"""Characters in which prose can still be read."""
_COMMAND: Final = re.compile(r"\b(kubectl|gpushare (explain|scheduler-config)) .*?(?=[;,]? \(|[;,] |$)")
_UNBROKEN: Final = "\N{NO-BREAK SPACE}"


def gpu_columns(indices: Iterable[int]) -> Sequence[int]:
    """The indices that are columns: every GPU up to the highest, as a lost one leaves a gap, and the MIG instances."""
    found = set(indices)
    count = max((index + 1 for index in found if index < MAX_GPUS), default=0)
    return [*range(count), *sorted(index for index in found if index >= MAX_GPUS)]


def table(rows: Sequence[Sequence[str]], width: int) -> str:
    """Lines for all rows, which have equally many cells; the last one of each is prose."""
    cells = [[terminal.one_line(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return "".join(f"{line.rstrip()}\n" for row in cells for line in _lines(row, widths, width))


def _lines(row: Sequence[str], widths: Sequence[int], width: int) -> list[str]:
    lines = [""]
    start = 0
    *columns, prose = row
    for cell, wide in zip(columns, widths, strict=False):
        if start and start + wide > width:
            lines.append("")
            start = _INDENT
        lines[-1] = lines[-1].ljust(start) + cell
        start += wide + _GAP
    if not prose:
        return lines
    if len(prose) > width - start and width - start < max(_ENOUGH, *map(len, prose.split())):
        lines.append("")
        start = _INDENT
    first, *rest = folded(prose, width - start)
    return [*lines[:-1], lines[-1].ljust(start) + first, *(" " * start + line for line in rest)]


def folded(prose: str, width: int) -> list[str]:
    """Lines of prose. A command stays on one, where it can be copied from."""
    whole = _COMMAND.sub(lambda found: found[0].replace(" ", _UNBROKEN), prose)
    lines = textwrap.wrap(whole, max(width, _ENOUGH), break_long_words=False, break_on_hyphens=False)
    return [line.replace(_UNBROKEN, " ") for line in lines]
