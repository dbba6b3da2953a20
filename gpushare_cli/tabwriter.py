"""Column layout by Go's text/tabwriter rules (padding 2, spaces), which the users of `kubectl inspect gpushare` parse.

A cell ends with a tab. Cells of consecutive lines at the same position form a column as wide as its widest cell plus
the padding; what follows a line's last tab belongs to no column and is written as it is.
"""

from collections.abc import Sequence
from typing import Final

_PADDING: Final = 2


def layout(text: str) -> str:
    """Replace tabs by spaces so that columns line up."""
    lines = [line.split("\t") for line in text.split("\n")]
    done: list[str] = [""] * len(lines)
    _block(lines, 0, len(lines), (), done)
    return "\n".join(done)


def _block(lines: Sequence[Sequence[str]], start: int, end: int, widths: tuple[int, ...], done: list[str]) -> None:
    """Lay out lines `start` to `end`, whose first cells have the given column widths."""
    column = len(widths)
    row = start
    while row < end:
        last = row
        while last < end and len(lines[last]) - 1 > column:
            last += 1
        if last == row:
            padded = (cell.ljust(width) for cell, width in zip(lines[row], widths, strict=False))
            done[row] = "".join(padded) + lines[row][-1]
            row += 1
        else:
            width = max(len(cells[column]) for cells in lines[row:last]) + _PADDING
            _block(lines, row, last, (*widths, width), done)
            row = last
