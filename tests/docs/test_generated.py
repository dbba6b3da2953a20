"""Files that are made from the code are those that the code makes."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import pytest
import yaml

from gpushare import names
from gpushare_cli import scheduler_config
from release import manifests
from release.pages import architecture, chart, generate, pod_way, top_picture
from testing.manifests import helm
from testing.pages import ROOT

Files = Mapping[Path, str]
MADE: Final[Mapping[str, Callable[[], Files]]] = {
    "reference": lambda: {ROOT / "docs" / name: page for name, page in generate.pages().items()},
    "chart": lambda: {helm.CHART / name: file for name, file in chart.written().items()},
    "manifests": manifests.files,
    "architecture": lambda: {architecture.PAGE: architecture.page()},
    "a pod's way": lambda: {pod_way.PICTURE: pod_way.svg(pod_way.table())},
    "top": lambda: {top_picture.PICTURE: top_picture.made()},
}


@pytest.mark.parametrize("made", MADE.values(), ids=MADE)
def test_files_are_those_that_are_made(made: Callable[[], Files]) -> None:
    files = made()
    assert {path: path.read_text(encoding="utf-8") for path in files} == files, (
        "run `make docs` and `make architecture`"
    )


def test_the_picture_of_a_pods_way_has_the_steps_of_the_code() -> None:
    steps = {step: who for step, who, _ in pod_way.table()}
    assert steps.keys() - pod_way.SHORT == {names.OTHERS_VERB}  # for pods without GPUs
    assert {*pod_way.SHORT} <= steps.keys()
    written = scheduler_config.configuration(scheduler_config.Options(server=scheduler_config.ServerVersion(1, 30)))
    [extender] = yaml.safe_load(written)["extenders"]
    verbs = {value for key, value in extender.items() if key.endswith("Verb")}
    assert {step for step, who in steps.items() if who == "controller"} == verbs | {names.OTHERS_VERB, "end"}
