"""The quick start: as many commands as it says, and the same in every kind of cluster but for what differs."""

import shlex
from pathlib import Path

import pytest

from release.pages import chart
from tests.e2e import first_gpu
from tests.e2e.administrator import steps

PAGE = (Path(__file__).parents[2] / "docs" / first_gpu.PAGE).read_text(encoding="utf-8")
KINDS = steps(first_gpu.PAGE, "Install")
SCREEN = 45
"""Lines."""


def test_it_says_how_many_commands_it_takes() -> None:
    assert f"With kubeadm these are {len(first_gpu.typed())} commands." in PAGE


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_cluster_fits_on_a_screen_and_leads_on(kind: str) -> None:
    section = PAGE.partition(f"\n## Install: {kind}\n")[2].partition("\n## ")[0]
    assert len(section.splitlines()) <= SCREEN
    assert "(#finish-share-a-gpu)" in section
    assert "Not tried" in section or kind == "kubeadm"


@pytest.mark.parametrize("kind", KINDS)
def test_every_value_that_is_set_is_one_of_the_chart(kind: str) -> None:
    [helm] = [
        each for block in KINDS[kind] for each in first_gpu.commands(block) if each.startswith("helm install gpushare ")
    ]
    words = shlex.split(helm)
    given = [words[i + 1].partition("=")[0] for i, word in enumerate(words) if word == "--set"]
    assert given
    assert {*given} <= {value.path for value in chart.values()}
