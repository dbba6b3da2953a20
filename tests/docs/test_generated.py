"""Files that are made from the code are those that the code makes."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import pytest
import yaml

from gpushare import names
from gpushare_cli import schedconfig
from release.pages import architecture, chart, generate, pod_way, top_picture
from testing.manifests import helm
from testing.pages import ROOT

ROWS: Final = pod_way.table()
MADE: Final[Mapping[Path, str]] = {
    **{ROOT / "docs/reference" / name: page for name, page in generate.pages().items()},
    **{helm.CHART / name: file for name, file in chart.written().items()},
    architecture.PAGE: architecture.page(),
    pod_way.PICTURE: pod_way.svg(ROWS),
    top_picture.PICTURE: top_picture.made(),
}


@pytest.mark.parametrize("path", MADE, ids=lambda path: path.name)
def test_a_file_is_the_one_that_is_made(path: Path) -> None:
    assert path.read_text(encoding="utf-8") == MADE[path], "run `make docs` and `make architecture`"


def test_the_picture_of_a_pods_way_has_the_steps_of_the_code() -> None:
    steps = {step: who for step, who, _ in ROWS}
    assert steps.keys() - pod_way.SHORT == {names.OTHERS_VERB}  # for pods without GPUs
    assert {*pod_way.SHORT} <= steps.keys()
    written = schedconfig.configuration(schedconfig.Options(server=schedconfig.ServerVersion(1, 30)))
    [extender] = yaml.safe_load(written)["extenders"]
    verbs = {value for key, value in extender.items() if key.endswith("Verb")}
    assert {step for step, who in steps.items() if who == "controller"} == verbs | {names.OTHERS_VERB, "end"}
