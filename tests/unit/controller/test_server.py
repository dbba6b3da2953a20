"""The extender's socket."""

import os
import signal
import socket
import sys
from unittest.mock import Mock

import pytest

from controller.server import Server
from controller.settings import Settings
from gpushare.errors import SettingsError


def test_an_address_that_cannot_be_used_is_told_with_the_flags_that_say_so() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(SettingsError, match=f"--bind-address 127.0.0.1 --port {port}: Address already in use"):
            Server(Settings(bind_address="127.0.0.1", port=port), os.getpid())


@pytest.mark.parametrize("dual", [True, False])
def test_the_address_of_all_is_that_of_ipv4_too_where_the_kernel_can(
    monkeypatch: pytest.MonkeyPatch, dual: bool
) -> None:
    create = Mock()
    monkeypatch.setattr(socket, "create_server", create)
    monkeypatch.setattr(socket, "has_dualstack_ipv6", lambda: dual)
    Server(Settings(bind_address="::", port=7), os.getpid())
    assert create.call_args.args == (("::", 7),)
    assert create.call_args.kwargs["family"] is socket.AF_INET6
    assert create.call_args.kwargs["dualstack_ipv6"] is dual


def test_a_request_does_not_wait_long_for_a_thread_that_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    interval = Mock()
    monkeypatch.setattr(sys, "setswitchinterval", interval)
    monkeypatch.setattr(socket, "create_server", Mock())
    try:
        with pytest.raises(ZeroDivisionError):
            Server(Settings(port=7), os.getpid()).serve(Mock(side_effect=ZeroDivisionError), Mock())
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    [(seconds,)] = [call.args for call in interval.call_args_list]
    assert 0 < seconds <= 0.001
