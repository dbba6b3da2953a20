"""What `docs/autoscalers.md` shows is what the code says."""

import re
from pathlib import Path

import yaml

from gpushare import names
from gpushare.cluster import reasons
from gpushare.identity import NodeName

PAGE = (Path(__file__).parents[2] / "docs" / "autoscalers.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def test_the_message_is_the_one_that_is_said() -> None:
    shown = [text.strip() for language, text in BLOCKS if language == "text"]
    assert shown == [reasons.by_sum([NodeName("node-1"), NodeName("node-2")])]


def test_the_blocks_for_karpenter_name_our_resources() -> None:
    [overlay] = [found for language, text in BLOCKS if language == "yaml" if "kind" in (found := yaml.safe_load(text))]
    assert set(overlay["spec"]["capacity"]) == {names.GPU_MEM, names.GPU_PERCENT}
