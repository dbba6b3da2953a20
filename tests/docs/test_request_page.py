"""The page on requests names every variable that a container gets."""

from typing import Final

import pytest

from gpushare import names
from testing.pages import text

SECTION: Final = text("docs/request.md").partition("\n## What a container gets\n")[2].partition("\n## ")[0]
VARIABLES: Final = [value for name, value in vars(names).items() if name.startswith("ENV_")]


@pytest.mark.parametrize("variable", [*VARIABLES, names.ALIYUN_CONTAINER, names.ALIYUN_POD, names.ALIYUN_DEV])
def test_every_variable_is_named(variable: str) -> None:
    assert f"`{variable}`" in SECTION
