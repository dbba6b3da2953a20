"""What `docs/autoscalers.md` shows is what the code says, and the tests that it names exist."""

import re
from pathlib import Path

import pytest
import yaml

from controller import refusals
from controller.reconcile import node_requests, placeholders
from controller.settings import Settings
from gpushare import names
from gpushare.cluster import reasons
from gpushare.identity import NodeName
from testing.manifests import tree
from tests.docs.test_pains import NAMED, functions

PAGE = (Path(__file__).parents[2] / "docs" / "autoscalers.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def test_the_message_is_the_one_that_is_said() -> None:
    shown = [text.strip() for language, text in BLOCKS if language == "text"]
    assert shown == [reasons.by_sum([NodeName("node-1"), NodeName("node-2")])]


@pytest.mark.parametrize(("path", "name"), sorted(set(NAMED.findall(PAGE))))
def test_every_test_that_is_named_exists(path: str, name: str) -> None:
    assert name in functions(path)


def test_every_claim_has_a_test_or_says_why_not() -> None:
    rows = PAGE.split("## What was tried\n")[1].strip().splitlines()[2:]
    assert rows
    assert all(NAMED.search(row) or "not tried, because" in row or "by hand" in row for row in rows)


def test_the_numbers_are_those_of_the_code() -> None:
    assert f"at most {['zero', 'one', 'two', 'three'][node_requests.ATTEMPTS]} times" in PAGE
    assert (node_requests.MOST_IN_VAIN, "after ten placeholders" in PAGE) == (10, True)
    assert node_requests.ASK_AFTER_S == 10
    assert "Ten seconds after" in PAGE
    assert node_requests.REST_S == 3600
    assert "for an hour" in PAGE
    assert f"after {Settings().placeholder_seconds / 60:.0f} minutes" in PAGE
    assert f"More than {refusals.MOST_NODES:,} nodes" in PAGE
    assert f"larger than {placeholders.MOST_BYTES // 1024} KiB" in PAGE
    assert "yields to others for a minute" in PAGE
    assert placeholders.YIELD_S == 60
    quota = tree.one(tree.objects("placeholders"), "ResourceQuota", names.PLACEHOLDERS)
    assert f"{quota['spec']['hard']['pods']} in all" in PAGE


def test_the_blocks_for_karpenter_name_our_resources() -> None:
    [overlay] = [found for language, text in BLOCKS if language == "yaml" if "kind" in (found := yaml.safe_load(text))]
    assert set(overlay["spec"]["capacity"]) == {names.GPU_MEM, names.GPU_PERCENT}
