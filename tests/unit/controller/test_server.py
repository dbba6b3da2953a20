"""The extender's socket."""

import os
import socket

import pytest

from controller.server import Server
from controller.settings import Settings
from gpushare.errors import SettingsError


def test_an_address_that_cannot_be_used_is_told_with_the_flags_that_say_so() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(SettingsError, match=f"--bind-address 127.0.0.1 --port {port}: Address already in use"):
            Server(Settings(bind_address="127.0.0.1", port=port), os.getpid())


def test_the_address_of_all_is_that_of_ipv4_too() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    server = Server(Settings(bind_address="::", port=port), os.getpid())
    with server._socket, socket.create_connection(("127.0.0.1", port)):
        pass
