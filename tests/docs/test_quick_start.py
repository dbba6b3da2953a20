"""The quick start: as many commands as it says, and the same in every kind of cluster but for what differs."""

import shlex

import pytest

from release.pages import chart
from testing import pages

PAGE = pages.text(f"docs/{pages.QUICK_START}")
KINDS = pages.steps(pages.QUICK_START, "Install")


def test_it_says_how_many_commands_it_takes() -> None:
    assert f"With kubeadm these are {len(pages.quick_start())} commands." in PAGE


@pytest.mark.parametrize("kind", KINDS)
def test_every_value_that_is_set_is_one_of_the_chart(kind: str) -> None:
    [helm] = [
        each for block in KINDS[kind] for each in pages.commands(block) if each.startswith("helm install gpushare ")
    ]
    words = shlex.split(helm)
    given = [words[i + 1].partition("=")[0] for i, word in enumerate(words) if word == "--set"]
    assert given
    assert {*given} <= {value.path for value in chart.values()}
