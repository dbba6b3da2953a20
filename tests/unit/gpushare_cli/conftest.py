from collections.abc import Iterator

import pytest

from testing.cli.calling import run
from tests.unit.gpushare_cli import findings

__all__ = ["run"]


@pytest.fixture(autouse=True)
def wide_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables are not folded, whatever terminal the tests run in; those of the folding say how wide theirs is."""
    monkeypatch.setenv("COLUMNS", "10000")


@pytest.fixture
def told(request: pytest.FixtureRequest) -> Iterator[findings.Told]:
    """What a command is to tell, each time that a test asks, which must be all; in the file of its area."""
    area = request.module.__name__.rpartition(".test_")[2].partition("_")[0]
    parts = iter(findings.parts(request.function.__name__, area))
    yield lambda: next(parts)
    assert not list(parts), "more than the test has asked for"
