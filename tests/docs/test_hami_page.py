"""Requests in HAMi's words ask for what those beside them ask for here."""

import re
from dataclasses import replace
from typing import Any

import pytest
import yaml

from gpushare import names
from gpushare.wire import requests
from release.pages.requests import RESOURCE_CONFIG
from testing import pages
from testing.reviews import RULES, mutated, warnings
from webhook import mutation

Json = dict[str, Any]
_SECTION = pages.section("docs/hami.md", "## Rewrite a request")
_TABLE = _SECTION.split("Whole requests:")[1]
PAIRS = re.findall(r"^\| [^|`]+ \| (`nvidia[^|]+) \| ([^|]+) \|$", _TABLE, flags=re.MULTILINE)


def written(cell: str) -> Json:
    return {key: value for one in re.findall("`([^`]+)`", cell) for key, value in yaml.safe_load(one).items()}


def pod(cell: str) -> Json:
    limits = {key: value for key, value in written(cell).items() if not key.startswith("gpushare.dev/")}
    annotations = {key: value for key, value in written(cell).items() if key not in limits}
    container = {"name": "main", "image": "x", "resources": {"limits": limits}}
    return {"metadata": {"name": "p", "annotations": annotations}, "spec": {"containers": [container]}}


def test_the_table_is_read() -> None:
    assert len(PAIRS) == 3


def test_the_way_back_is_told_of_each_of_our_words() -> None:
    ours = (*names.REQUEST_ANNOTATIONS, names.GPU_MEM, names.GPU_PERCENT, names.GPU_CORE, names.GPU)
    assert [word for word in ours if f"`{word}" not in _SECTION] == []


@pytest.mark.parametrize(("hami", "ours"), PAIRS)
def test_a_rewritten_request_asks_for_the_same(hami: str, ours: str) -> None:
    of_hami = {key.removeprefix("nvidia.com/"): amount for key, amount in written(hami).items()}
    shape = requests.shape_of(mutated(pod(ours)), RESOURCE_CONFIG)
    assert shape is not None
    [request] = shape.containers
    assert request.gpu_count == of_hami["gpu"]
    assert request.memory_mib == of_hami.get("gpumem", 0)
    assert request.memory_percent == of_hami.get("gpumem-percentage", 0)
    assert request.compute_percent == of_hami.get("gpucores", request.memory_percent)
    assert warnings(pod(ours)) == ()


@pytest.mark.parametrize(("hami", "_"), PAIRS)
def test_pods_of_hami_are_left_alone_with_the_setting_that_the_page_names(hami: str, _: str) -> None:
    [value] = re.findall(r"`(nvidia\.com/gpu,[^`]+)`", pages.text("docs/hami.md"))
    only = [one for one in hami.split(", ") if "nvidia.com/gpu:" not in one]  # HAMi's webhook adds it, perhaps later
    assert mutation.mutate(pod(", ".join(only)), replace(RULES, foreign_resources=tuple(value.split(",")))) is None


@pytest.mark.parametrize(("hami", "ours"), PAIRS)
def test_who_asks_in_hamis_words_is_told_ours(hami: str, ours: str) -> None:
    told = " ".join(warnings(pod(hami)))
    assert all(resource in told for resource in pod(ours)["spec"]["containers"][0]["resources"]["limits"])
