import re
import xml.etree.ElementTree as ET
from importlib import util

import pytest

from gpushare.errors import SettingsError
from gpushare_cli import plot
from gpushare_cli.plot import Line, Plot

SVG = "{http://www.w3.org/2000/svg}"


def plotted(*lines: Line, title: str = "T") -> ET.Element:
    made = Plot(title=title, description="D & d", x_label="x & %", y_label="y & $%", lines=lines)
    return ET.fromstring(plot.svg(made))


def test_title_and_description_are_there_for_screen_readers() -> None:
    root = plotted(Line(name="a", points=[(0, 0), (1, 1)]), title="<GPUs> & more")
    assert root.get("role") == "img"
    labels = (root.get("aria-labelledby") or "").split()
    found = {element.get("id"): element.text for element in root if element.get("id")}
    assert [found[label] for label in labels] == ["<GPUs> & more", "D & d"]


def test_every_line_has_a_name_and_a_colour_and_a_dash_of_its_own() -> None:
    names = ["dense", "fgd", "binpack & co", "spread", "none", "$random$"]
    root = plotted(*(Line(name=name, points=[(0, i), (10, i + 1)], note=f"{i} & %") for i, name in enumerate(names)))
    texts = {element.text for element in root.iter(f"{SVG}text")}
    assert texts > {*names, *(f"{i} & %" for i in range(len(names))), "x & %", "y & $%"}
    drawn = [group for group in root.iter(f"{SVG}g") if (group.get("id") or "").startswith("line-")]
    styles = [group[0].get("style") or "" for group in drawn]
    for what in (r"stroke: (#\w+)", r"(stroke-dasharray: [\d., ]+|$)"):
        assert len({found[1] for style in styles if (found := re.search(what, style))}) == len(names)


def test_the_same_plot_is_the_same_text() -> None:
    made = Plot(title="t", description="d", x_label="x", y_label="y", lines=[Line(name="a", points=[(1, 5)])])
    assert plot.svg(made) == plot.svg(made)


def test_without_the_library_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(util, "find_spec", lambda _name: None)
    with pytest.raises(SettingsError, match=re.escape("pip install '.[cli,plot]'")):
        plot.require()
