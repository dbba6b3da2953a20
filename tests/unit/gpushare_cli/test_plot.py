import re
import xml.etree.ElementTree as ET

import pytest

from gpushare_cli import plot
from gpushare_cli.plot import Line, Plot

SVG = "{http://www.w3.org/2000/svg}"


def plotted(*lines: Line, title: str = "T") -> ET.Element:
    made = Plot(title=title, description="D & d", x_label="x & %", y_label="y & %", lines=lines)
    return ET.fromstring(plot.svg(made))


def line(name: str, *points: tuple[float, float], note: str = "") -> Line:
    return Line(name=name, points=points, note=note)


def texts(root: ET.Element) -> list[str]:
    return [element.text or "" for element in root.iter(f"{SVG}text")]


def test_title_and_description_are_there_for_screen_readers() -> None:
    root = plotted(line("a", (0, 0), (1, 1)), title="<GPUs> & more")
    assert root.get("role") == "img"
    labels = (root.get("aria-labelledby") or "").split()
    found = {element.get("id"): element.text for element in root if element.get("id")}
    assert [found[label] for label in labels] == ["<GPUs> & more", "D & d"]


def test_every_line_has_a_name_a_colour_for_either_ground_and_a_dash_of_its_own() -> None:
    names = ["dense", "fgd", "binpack & co", "spread", "none", "random"]
    root = plotted(*(line(name, (0, i), (10, i + 1), note=f"{i} & %") for i, name in enumerate(names)))
    style = next(root.iter(f"{SVG}style")).text or ""
    light, dark = style.split("@media(prefers-color-scheme:dark)")
    assert set(texts(root)) > {*names, *(f"{i} & %" for i in range(len(names)))}
    for ground in (light, dark):
        colours = [ground.split(f".l{i}{{stroke:")[1].split("}")[0] for i in range(len(names))]
        assert len(set(colours)) == len(names)
    dashes = [part.split("}")[0] for part in light.split("stroke-dasharray:")[1:]]
    assert len({*dashes} - {""}) == len(names) - 1


def test_axes_begin_and_end_at_round_numbers() -> None:
    root = plotted(line("a", (61.3, 88), (130, 94)))
    assert {"60", "80", "100", "120", "140", "88", "89", "94", "x & %", "y & %"} < set(texts(root))


def test_points_lie_where_the_axes_say() -> None:
    root = plotted(line("a", (0, 0), (50, 5), (100, 10)))
    path = next(element.get("d") for element in root.iter(f"{SVG}path") if element.get("class") == "line l0")
    xs, ys = zip(*(map(float, point.split()) for point in (path or "").removeprefix("M").split("L")), strict=True)
    assert xs[1] - xs[0] == pytest.approx(xs[2] - xs[1], abs=0.2)
    assert ys[0] - ys[1] == pytest.approx(ys[1] - ys[2], abs=0.2)
    lowest, *_ = re.findall(r'd="M(\d+) ([\d.]+)H(\d+)"', ET.tostring(root, encoding="unicode"))
    assert (xs[0], ys[0], xs[2]) == tuple(map(float, lowest))
    assert ys[0] > ys[2] > 0


def test_a_flat_line_and_a_single_point_are_plotted() -> None:
    assert plotted(line("a", (1, 5), (2, 5)), line("b", (1, 5))) is not None


def test_nothing_is_no_plot() -> None:
    with pytest.raises(ValueError, match="no line has a point"):
        plotted(line("a"))
