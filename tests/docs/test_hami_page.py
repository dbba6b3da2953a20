"""Requests in HAMi's words ask for what those beside them ask for here."""

from typing import Any

import pytest
import yaml

from gpushare.wire import requests
from release.pages.requests import RESOURCE_CONFIG
from testing import pages
from testing.reviews import mutated, warnings

Json = dict[str, Any]
EXAMPLES = [yaml.safe_load(block) for block in pages.blocks("docs/hami.md", "yaml")]
PAIRS = list(zip(EXAMPLES[::2], EXAMPLES[1::2], strict=True))


def pod(example: Json) -> Json:
    container = {"name": "main", "image": "x", "resources": {"limits": example["limits"]}}
    return {
        "metadata": {"name": "p", "annotations": example.get("annotations", {})},
        "spec": {"containers": [container]},
    }


@pytest.mark.parametrize(("hami", "ours"), PAIRS)
def test_a_rewritten_request_asks_for_the_same(hami: Json, ours: Json) -> None:
    of_hami = {key.removeprefix("nvidia.com/"): amount for key, amount in hami["limits"].items()}
    shape = requests.shape_of(mutated(pod(ours)), RESOURCE_CONFIG)
    assert shape is not None
    [request] = shape.containers
    assert request.gpu_count == of_hami["gpu"]
    assert request.memory_mib == of_hami.get("gpumem", 0)
    assert request.memory_percent == of_hami.get("gpumem-percentage", 0)
    assert request.compute_percent == of_hami.get("gpucores", request.memory_percent)
    assert warnings(pod(ours)) == ()


@pytest.mark.parametrize(("hami", "ours"), PAIRS)
def test_who_asks_in_hamis_words_is_told_ours(hami: Json, ours: Json) -> None:
    told = " ".join(warnings(pod(hami)))
    assert all(resource in told for resource in ours["limits"])
