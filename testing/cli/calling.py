"""Calls the commands as a user does, on a cluster in memory."""

from collections.abc import Callable

import pytest

from gpushare_cli import __main__ as cli
from testing.fakes.kube import FakeKube

Run = Callable[..., tuple[int, str, str]]
"""Exit code, output and errors of `gpushare` with these arguments."""


def reached(monkeypatch: pytest.MonkeyPatch, api: FakeKube, namespace: str = "default") -> None:
    """Have the commands reach this cluster."""
    monkeypatch.setattr("gpushare.kube.client.connect", lambda _path, _context: api)
    monkeypatch.setattr("gpushare.kube.credentials.namespace", lambda _path, _context: namespace)
    monkeypatch.setattr("gpushare.kube.credentials.context_name", lambda _path, _context: "")
    monkeypatch.setenv("KUBECONFIG", "/somewhere")


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def call(*argv: str, main: Callable[[list[str]], int] = cli.main) -> tuple[int, str, str]:
        code = main([*argv])
        return (code, *capsys.readouterr())

    return call
