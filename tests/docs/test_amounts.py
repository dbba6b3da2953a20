"""What `docs/troubleshoot.md` says about amounts is what users of a real API server see."""

from pathlib import Path

import pytest

from gpushare import units

PAGE = (Path(__file__).parents[2] / "docs" / "troubleshoot.md").read_text(encoding="utf-8")


def test_the_example_is_the_message_for_what_the_api_server_makes_of_an_amount() -> None:
    with pytest.raises(ValueError, match="is not whole") as refused:
        units.parse_amount("1500m")
    assert f"limits[aliyun.com/gpu-mem]: {refused.value}`" in PAGE
