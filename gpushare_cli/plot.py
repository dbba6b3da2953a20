"""The door to matplotlib: a plot of lines as SVG, which is read on light and on dark ground."""

import io
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import util
from typing import Final
from xml.sax.saxutils import escape

from gpushare.errors import SettingsError

_STYLES: Final = (  # colours of Okabe and Ito, seen on either ground and by colour-blind readers, and dashes
    ("#0072b2", "-"),
    ("#d55e00", "--"),
    ("#00995c", ":"),
    ("#cc79a7", "-."),
    ("#a68a00", (0, (5, 1))),
    ("#808080", (0, (1, 3))),
)
_GREY: Final = "#808080"
_ON_DARK: Final = "<style>@media (prefers-color-scheme: dark) {text {fill: #e6edf3 !important}}</style>"
Point = tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    name: str
    points: Sequence[Point]
    note: str = ""  # below its name in the legend, such as its last value


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    title: str
    description: str  # what a reader who cannot see it should know
    x_label: str  # name and unit of the axis
    y_label: str
    lines: Sequence[Line]


def require() -> None:
    if util.find_spec("matplotlib") is None:
        raise SettingsError("--plot needs matplotlib; in a checkout of gpushare: pip install '.[cli,plot]'")


def svg(plot: Plot) -> str:
    """The file's text, the same for the same plot."""
    import matplotlib  # late: it takes half a second, and is in an extra
    from matplotlib.figure import Figure

    drawn = io.StringIO()
    # Words stay words, and the same picture is the same text.
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "gpushare", "text.parse_math": False}):
        figure = Figure(figsize=(9, 5), layout="constrained")
        axes = figure.subplots()
        axes.set(title=plot.title, xlabel=plot.x_label, ylabel=plot.y_label)
        axes.grid(axis="y", color=_GREY, alpha=0.4)
        axes.spines[:].set_color(_GREY)
        axes.tick_params(color=_GREY)
        for i, line in enumerate(plot.lines):
            colour, dashes = _STYLES[i % len(_STYLES)]
            xs, ys = [x for x, _ in line.points], [y for _, y in line.points]
            label = f"{line.name}\n{line.note}" if line.note else line.name
            axes.plot(xs, ys, color=colour, linestyle=dashes, linewidth=2, label=label, gid=f"line-{i}")
        axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
        figure.savefig(drawn, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    root = f'<title id="title">{escape(plot.title)}</title><desc id="desc">{escape(plot.description)}</desc>{_ON_DARK}'
    begin, _, rest = drawn.getvalue().partition("<svg ")
    attributes, _, content = rest.partition(">")
    return f'{begin}<svg role="img" aria-labelledby="title desc" {attributes}>\n{root}{content}'
