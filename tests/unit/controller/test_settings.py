import os
import signal
import socket
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest

import controller.main
from controller import leadership
from controller.main import Controller, Server, main
from controller.settings import Settings
from gpushare.errors import SettingsError
from gpushare.kube import client
from gpushare.model.request import Policy
from gpushare.runtime import options
from gpushare.runtime.process import Signals
from gpushare.units import MemoryUnit
from testing.fakes.kube import FakeKube
from testing.fakes.kube_http import kubeconfig


def load(*argv: str, **environ: str) -> Settings:
    return options.load(Settings, argv, prog="gpushare-controller", environ=environ)


def test_a_worker_has_its_settings_and_ends_its_parts() -> None:
    made = Controller(Settings(in_doubt_seconds=7.0), FakeKube(), Mock(), Mock())
    assert made._leadership.state._in_doubt_s == 7.0
    made.shut_down()
    assert made._leadership._stop_working.is_set()


def test_flags_win_over_the_environment() -> None:
    found = load("--memory-unit", "256MiB", GPUSHARE_MEMORY_UNIT="MiB", GPUSHARE_GPU_POLICY="spread")
    assert load("--threads", "8").threads == 8
    assert load("--whole-gpus", "false", GPUSHARE_WHOLE_GPUS="true").whole_gpus is False
    assert load(GPUSHARE_WHOLE_GPUS="true").whole_gpus is True
    assert (found.memory_unit, found.gpu_policy) == (MemoryUnit(256), Policy.SPREAD)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--threads", "1"], "--threads='1': write a number of threads from 2 to 256"),
        (["--gpu-policy", "best"], "--gpu-policy='best': write one of binpack, spread, dense, fgd"),
        (["--lease-seconds", "0.9"], "--lease-seconds='0.9': write at least 1; a Lease counts whole seconds"),
        (["--renew-seconds", "20"], "--retry-seconds 2 < --renew-seconds 20 < --lease-seconds 15 must hold"),
        (
            ["--bind-seconds", "3"],
            "--bind-seconds 3: twice this must be less than --lease-seconds minus --renew-seconds, which is 5,"
            " or a Binding of a former leader may still be on its way",
        ),
    ],
)
def test_a_bad_setting_is_refused_with_the_fix(argv: list[str], message: str) -> None:
    with pytest.raises(SettingsError) as error:
        load(*argv)
    assert str(error.value) == message


def test_the_program_says_what_is_wrong_and_ends(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--kubeconfig", "/nowhere/config"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("gpushare-controller: ")
    assert "/nowhere/config" in error


def test_a_probe_port_that_is_taken_is_a_message(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text(kubeconfig("http://127.0.0.1:1"))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert main(["--kubeconfig", str(config), "--bind-address", "127.0.0.1", "--probe-port", port]) == 2
    expected = f"gpushare-controller: --bind-address 127.0.0.1 --probe-port {port}: Address already in use\n"
    assert capsys.readouterr().err == expected


def test_an_address_that_cannot_be_used_is_told_with_the_flags_that_say_so() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(SettingsError, match=f"--bind-address 127.0.0.1 --port {port}: Address already in use"):
            Server(Settings(bind_address="127.0.0.1", port=port), os.getpid())


def test_a_request_does_not_wait_long_for_a_thread_that_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    interval = Mock()
    monkeypatch.setattr(sys, "setswitchinterval", interval)
    server = Server(Settings(port=0), os.getpid())
    try:
        with pytest.raises(ZeroDivisionError):
            server.serve(Mock(side_effect=ZeroDivisionError), Mock())
    finally:
        server.listener.close()
        for number, handler in before.items():
            signal.signal(number, handler)
    [(seconds,)] = [call.args for call in interval.call_args_list]
    assert 0 < seconds <= 0.001


def test_a_connection_of_the_supervisor_is_closed_before_it_forks(monkeypatch: pytest.MonkeyPatch) -> None:
    """No two processes may write on one."""
    order = Mock()
    for name in ("Server", "PageServer", "fork"):
        monkeypatch.setattr(controller.main, name, getattr(order, name))
    settings = options.load(Settings, [], prog="controller")
    controller.main.supervisor(settings, order.api, Signals()).spawn()
    assert [name for name, *_ in order.mock_calls][-2:] == ["api.close", "fork"]


def test_a_watch_is_called_dead_only_after_it_was_cut_and_resumed() -> None:
    assert leadership.DEAD_S > client.QUIET_S + 60
