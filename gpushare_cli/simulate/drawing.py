"""Runs -> a plot of how much of the GPUs is allocated, a line for each policy. Pure."""

import statistics
from bisect import bisect_right
from collections.abc import Sequence
from typing import Final

from gpushare_cli.plot import Line, Plot, Point
from gpushare_cli.simulate import summary
from gpushare_cli.simulate.summary import Run

_STEPS: Final = 200


def of(runs: Sequence[Run]) -> Plot:
    """The mean over the seeds of each policy."""
    over_time = any(run.curve.ends for run in runs)
    lines = []
    for policy, found in summary.by_policy(runs).items():
        points = _mean([run.curve.points for run in found])
        lines.append(Line(name=policy, points=points, note=f"{points[-1][1]:.1f} %" if points else ""))
    ends = "; ".join(f"{line.name} {line.note}" for line in lines)
    return Plot(
        title="GPU memory that pods get",
        description=f"Allocated part of all GPU memory while pods come. At the end: {ends}.",
        across="hours since the first pod" if over_time else "asked for by pods, % of all GPU memory",
        up="allocated, % of all GPU memory",
        lines=lines,
    )


def _mean(curves: Sequence[Sequence[Point]]) -> list[Point]:
    """Of several curves, at the same places; a curve stays where it was between its points."""
    filled = [curve for curve in curves if curve]
    if len(filled) < 2:
        return list(filled[0]) if filled else []
    low = max(curve[0][0] for curve in filled)
    high = min(curve[-1][0] for curve in filled)
    places = [low + (high - low) * step / _STEPS for step in range(_STEPS + 1)]
    xs = [[x for x, _ in curve] for curve in filled]
    return [
        (place, statistics.mean(_at(curve, x, place) for curve, x in zip(filled, xs, strict=True))) for place in places
    ]


def _at(curve: Sequence[Point], xs: Sequence[float], place: float) -> float:
    return curve[max(bisect_right(xs, place) - 1, 0)][1]
