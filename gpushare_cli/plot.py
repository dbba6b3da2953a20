"""A plot of lines as SVG. Pure.

It is read on light and dark ground, in colours that differ for colour-blind readers too, and every line has a dash and
a name of its own; the title and the description are for screen readers.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final
from xml.sax.saxutils import escape

_WIDTH: Final = 760
_HEIGHT: Final = 420
_LEFT: Final = 64
_TOP: Final = 52
_RIGHT: Final = 220
"""Margin, in which the legend is."""
_BOTTOM: Final = 56
_COLOURS: Final = (
    ("#0072b2", "#56b4e9"),
    ("#d55e00", "#ff9b57"),
    ("#00795a", "#2fcfa0"),
    ("#a6378a", "#e59ac9"),
    ("#6f5c00", "#f0e442"),
    ("#4d4d4d", "#c4c4c4"),
)
"""For light and for dark ground: those of Okabe and Ito, with enough contrast to either."""
_DASHES: Final = ("", "8 4", "2 3", "10 3 2 3", "5 3", "1 4")
_LEGEND_LINE: Final = 42
_MOST_TICKS: Final = 7

Point = tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line, in the order of its points."""

    name: str
    points: Sequence[Point]
    note: str = ""
    """Below its name in the legend, such as its last value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """What is shown."""

    title: str
    description: str
    """What a reader who cannot see it should know."""
    x_label: str
    """Name and unit of the axis."""
    y_label: str
    lines: Sequence[Line]


def svg(plot: Plot) -> str:
    """The file's text.

    Raises:
        ValueError: no line has a point.
    """
    points = [point for line in plot.lines for point in line.points]
    if not points:
        raise ValueError("nothing to plot: no line has a point")
    across, up = _Axis.of(x for x, _ in points), _Axis.of(y for _, y in points)
    size = f'viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" height="{_HEIGHT}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-labelledby="title desc">',
        f'<title id="title">{escape(plot.title)}</title>',
        f'<desc id="desc">{escape(plot.description)}</desc>',
        _style(len(plot.lines)),
        f'<text class="title" x="{_LEFT}" y="26">{escape(plot.title)}</text>',
        *_grid(across, up),
        f'<text x="{_middle(_LEFT, _WIDTH - _RIGHT)}" y="{_HEIGHT - 14}" class="mid">{escape(plot.x_label)}</text>',
        f'<text transform="translate(16 {_middle(_TOP, _HEIGHT - _BOTTOM)}) rotate(-90)" class="mid">'
        f"{escape(plot.y_label)}</text>",
        *(_line(i, line, across, up) for i, line in enumerate(plot.lines)),
        *(part for i, line in enumerate(plot.lines) for part in _legend(i, line)),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


@dataclass(frozen=True, slots=True)
class _Axis:
    low: float
    high: float
    step: float

    @classmethod
    def of(cls, values: Iterable[float]) -> "_Axis":
        """From a round number to a round number, in round steps."""
        found = list(values)
        low, high = min(found), max(found)
        span = (high - low) or 1.0
        rough = span / (_MOST_TICKS - 1)
        magnitude = 10.0 ** math.floor(math.log10(rough))
        step = next(times * magnitude for times in (1, 2, 5, 10) if times * magnitude >= rough)
        return cls(math.floor(low / step) * step, max(math.ceil(high / step) * step, low + step), step)

    @property
    def ticks(self) -> list[float]:
        return [self.low + i * self.step for i in range(round((self.high - self.low) / self.step) + 1)]

    def part(self, value: float) -> float:
        return (value - self.low) / (self.high - self.low)


def _x(axis: _Axis, value: float) -> float:
    return _LEFT + axis.part(value) * (_WIDTH - _LEFT - _RIGHT)


def _y(axis: _Axis, value: float) -> float:
    return _HEIGHT - _BOTTOM - axis.part(value) * (_HEIGHT - _TOP - _BOTTOM)


def _middle(low: int, high: int) -> int:
    return (low + high) // 2


def _style(lines: int) -> str:
    def colours(ground: int) -> str:
        return "".join(f".l{i}{{stroke:{_COLOURS[i % len(_COLOURS)][ground]}}}" for i in range(lines))

    dashes = "".join(f".l{i}{{stroke-dasharray:{_DASHES[i % len(_DASHES)]}}}" for i in range(lines) if i % len(_DASHES))
    return (
        "<style>text{font:13px system-ui,sans-serif;fill:#24292f}.title{font-size:16px;font-weight:600}"
        ".mid{text-anchor:middle}.end{text-anchor:end}.grid{stroke:#d0d7de;stroke-width:1}"
        f".line{{fill:none;stroke-width:2.5;stroke-linejoin:round}}{colours(0)}{dashes}"
        f"@media(prefers-color-scheme:dark){{text{{fill:#e6edf3}}.grid{{stroke:#3d444d}}{colours(1)}}}</style>"
    )


def _grid(across: _Axis, up: _Axis) -> Iterable[str]:
    low, right = _HEIGHT - _BOTTOM, _WIDTH - _RIGHT
    for tick in up.ticks:
        y = _y(up, tick)
        yield f'<path class="grid" d="M{_LEFT} {y:.1f}H{right}"/>'
        yield f'<text class="end" x="{_LEFT - 8}" y="{y + 4:.1f}">{tick:g}</text>'
    for tick in across.ticks:
        x = _x(across, tick)
        yield f'<path class="grid" d="M{x:.1f} {low}v5"/><text class="mid" x="{x:.1f}" y="{low + 20}">{tick:g}</text>'


def _line(i: int, line: Line, across: _Axis, up: _Axis) -> str:
    places = [(round(_x(across, x), 1), round(_y(up, y), 1)) for x, y in line.points]
    kept = places[:1] + [place for before, place in pairwise(places) if place != before]
    path = "L".join(f"{x:g} {y:g}" for x, y in kept)
    return f'<path class="line l{i}" d="M{path}"><title>{escape(line.name)}</title></path>' if kept else ""


def _legend(i: int, line: Line) -> Iterable[str]:
    x, y = _WIDTH - _RIGHT + 16, _TOP + 8 + i * _LEGEND_LINE
    yield f'<path class="line l{i}" d="M{x} {y}h28"/><text x="{x + 36}" y="{y + 4}">{escape(line.name)}</text>'
    if line.note:
        yield f'<text x="{x + 36}" y="{y + 20}">{escape(line.note)}</text>'
