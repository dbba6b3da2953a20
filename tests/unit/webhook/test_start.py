"""Before the first request: wait for a certificate, and say what is missing."""

import logging
import signal
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from certs.manager import CertificateManager
from certs.settings import CertSettings
from gpushare.kube import api as kube
from gpushare.runtime.process import Signals
from testing.clock import ManualClock
from testing.fakes.kube import FakeKube
from webhook import main as program
from webhook.main import Contexts
from webhook.settings import Settings


@pytest.fixture(autouse=True)
def _own_signals() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def hasty() -> ManualClock:
    """Does not sleep; certificates are verified at the machine's time."""
    return ManualClock(0, began=datetime.now(UTC))


def manager(directory: Path, api: FakeKube, clock: ManualClock, **settings: str) -> CertificateManager:
    chosen = CertSettings(cert_dir=str(directory), **settings)  # type: ignore[arg-type] # texts only
    return CertificateManager(api=api, clock=clock, settings=chosen)


def test_a_server_that_is_late_is_asked_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    api, clock = FakeKube(), hasty()
    api.fail_next(lambda call: "secrets" in call.path, kube.UnreachableError("down"), times=2)
    contexts = Contexts(directory=tmp_path)
    with caplog.at_level(logging.WARNING):
        assert program._has_certificate(manager(tmp_path, api, clock), contexts, Signals())
    assert [r.getMessage() for r in caplog.records if r.name == "webhook"] == ["no certificate yet"] * 2
    assert contexts.problem() == ""


def test_a_signal_ends_the_wait(tmp_path: Path) -> None:
    clock = hasty()
    clock.on_wait = lambda _at: signal.raise_signal(signal.SIGTERM) if len(clock.waits) == 3 else None
    waiting = manager(tmp_path, FakeKube(), clock, cert_source="files")
    signals = Signals()
    signals.install()
    assert not program._has_certificate(waiting, Contexts(directory=tmp_path), signals)
    assert len(clock.waits) == 3


def test_a_signal_after_the_certificate_was_found_is_not_lost(tmp_path: Path) -> None:
    signals = Signals()
    signals.install()
    signal.raise_signal(signal.SIGTERM)
    assert not program._has_certificate(manager(tmp_path, FakeKube(), hasty()), Contexts(directory=tmp_path), signals)
    caught: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _frame: caught.append(number))  # as gunicorn does
    options = program._options(Settings(), Contexts(directory=tmp_path), threading.Event(), signals)
    options["when_ready"](None)  # type: ignore[operator] # a hook
    assert caught == [signal.SIGTERM]


@pytest.mark.parametrize(("wanted", "whole"), [(7.6, 8), (0.2, 1)])
def test_one_process_has_whole_seconds_to_end_its_requests(wanted: float, whole: int, tmp_path: Path) -> None:
    options = program._options(
        Settings(graceful_timeout_s=wanted), Contexts(directory=tmp_path), threading.Event(), Signals()
    )
    assert (options["workers"], options["graceful_timeout"]) == (1, whole)
    options["when_ready"](None)  # type: ignore[operator] # a hook, which sends no signal where none came


def test_a_server_with_a_certificate_is_ready_until_it_expires(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    contexts, kept = Contexts(directory=tmp_path), manager(tmp_path, FakeKube(), hasty())
    assert program._not_ready(contexts, kept).startswith("no certificate: ")
    kept.ensure_once()
    assert program._not_ready(contexts, kept) == ""
    monkeypatch.setattr(CertificateManager, "leaf_left_s", lambda _: -0.1)
    assert program._not_ready(contexts, kept) == "the certificate has expired"


def test_a_bad_setting_is_reported_and_nothing_starts(capsys: pytest.CaptureFixture[str]) -> None:
    assert program.main(["--port", "none"]) == 2
    assert capsys.readouterr().err == "gpushare-webhook: --port='none': write a port from 0 to 65535\n"
