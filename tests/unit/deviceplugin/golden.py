"""What the plugin says: a line for each case in golden/NAME.txt, in the order of the test's cases."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

DIRECTORY = Path(__file__).parent / "golden"


def error(kind: type[Exception], call: Callable[..., Any], *arguments: Any) -> str:
    """What a call that fails says."""
    with pytest.raises(kind) as caught:
        call(*arguments)
    return str(caught.value)


def compare(name: str, found: Iterable[str]) -> None:
    expected = (DIRECTORY / f"{name}.txt").read_text(encoding="utf-8").splitlines()
    assert list(found) == expected
