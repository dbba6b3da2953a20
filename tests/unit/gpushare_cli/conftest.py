import pytest

from testing.cli.calling import run

__all__ = ["run"]


@pytest.fixture(autouse=True)
def wide_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables are not folded, whatever terminal the tests run in; those of the folding say how wide theirs is."""
    monkeypatch.setenv("COLUMNS", "10000")
