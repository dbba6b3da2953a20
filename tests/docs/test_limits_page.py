"""The page on limits says what the code does."""

import re
from typing import Final

import pytest

from deviceplugin.limits import choose, node, variables
from deviceplugin.settings import Settings
from gpushare import names
from gpushare.model.gpu import Limit
from gpushare.runtime import options
from gpushare.wire.frameworks import Framework
from testing.pages import text

PAGE: Final = text("docs/limits.md")
ROWS: Final = re.findall(r"^\| `([\w-]+)` \|(.*)\|$", PAGE, re.MULTILINE)


@pytest.mark.parametrize("limit", Limit)
def test_a_limit_has_its_strength(limit: Limit) -> None:
    assert dict(ROWS)[limit.value].split("|")[0].strip(" *") == limit.strength.value


def test_every_setting_and_name_exists() -> None:
    flags = {options.flag_names(name)[index] for name in Settings.__dataclass_fields__ for index in (0, 1)}
    assert set(re.findall(r"`(--[\w-]+)`", PAGE)) <= flags
    assert set(re.findall(r"`(GPUSHARE_\w+)`", PAGE)) <= flags
    for name in (names.LABEL_LIMITS, names.ANNOTATION_LIMIT, names.ANNOTATION_FRAMEWORK_VARIABLES, names.MPS):
        assert name in PAGE


def test_every_order_in_the_page_is_understood() -> None:
    setting = choose.order(choose.AUTO)
    labels = re.findall(rf"{names.LABEL_LIMITS}=([\w.-]+)", PAGE)
    assert {choose.wanted(setting, label)[1] for label in labels} == {""}
    assert choose.order("cgroup,advisory")
    assert "such as `cgroup,advisory`" in PAGE
    assert {failure.value for failure in node.OnFailure} == {"refuse", "next"}


@pytest.mark.parametrize("framework", Framework)
def test_every_framework_has_its_row_with_its_variable(framework: Framework) -> None:
    cells = dict(ROWS)[framework.value]
    assert re.findall(r"`(\w+)`", cells)[0] == variables.NAMES[framework][0]
