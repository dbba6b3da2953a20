"""The port that probes connect to."""

import errno
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from deviceplugin import ports
from deviceplugin.ports import Probe
from gpushare.runtime.clock import SystemClock
from testing.clock import ManualClock
from testing.deviceplugin.build import fields_of
from testing.deviceplugin.running import in_threads
from testing.fakes.http_server import free_port
from testing.fakes.kubelet import wait_until


@pytest.fixture
def port() -> int:
    return free_port()


@contextmanager
def running(served: Probe) -> Iterator[Callable[[], bool]]:
    with in_threads(served.run):
        yield lambda: ports.problem(served.port) == ""


def refused(port: int) -> str:
    return f"the plugin is not registered with the kubelet (port {port}: Connection refused); its log says why"


def test_a_connection_is_closed_at_once_and_unread(port: int) -> None:
    served = Probe(port=port, clock=SystemClock(), parts=["m"])
    served.beat("m", True)
    with running(served) as takes:
        wait_until(takes)
        with socket.create_connection(("127.0.0.1", port), 10.0) as connection:
            assert connection.recv(10) == b""


def test_all_parts_have_to_be_registered_and_to_say_so_again_whatever_the_wall_clock_says() -> None:
    clock, usable = ManualClock(), [True]
    served = Probe(port=1, clock=clock, parts=["memory", "percent"], usable=lambda: usable[0])
    served.beat("memory", True)
    assert not served.registered()
    served.beat("percent", True)
    clock.at += 29.0
    served.beat("memory", True)
    assert served.registered()
    clock.at += 1.0
    assert not served.registered()
    served.beat("percent", True)
    assert served.registered()
    usable[0] = False  # only a new process can read the GPUs
    assert not served.registered()
    usable[0] = True
    served.beat("percent", False)
    assert not served.registered()


def test_a_process_that_stands_still_is_found(port: int) -> None:
    """A listening socket from which nothing is taken, as when the process hangs."""
    server = Probe(port=port, clock=ManualClock(), parts=[])._listen()
    assert server is not None

    def connect(held: ExitStack) -> None:
        for _ in range(5):  # more than wait to be taken
            held.enter_context(socket.create_connection(("127.0.0.1", port), 0.3))

    with server, ExitStack() as held, pytest.raises(TimeoutError):
        connect(held)


def test_without_a_free_file_descriptor_it_waits_instead_of_spinning() -> None:
    clock, stop = ManualClock(), threading.Event()
    served = Probe(port=1, clock=clock, parts=[])

    class Exhausted(socket.socket):
        accepts = 0

        def accept(self) -> Any:
            self.accepts += 1
            if self.accepts == 5:
                stop.set()
            raise OSError(errno.EMFILE, "Too many open files")

    with Exhausted() as server:
        served._take(server, stop)
    assert sum(clock.waits) >= 4 * 0.5


def test_a_port_that_is_taken_is_reported_once(port: int, caplog: pytest.LogCaptureFixture) -> None:
    served = Probe(port=port, clock=SystemClock(), parts=[])
    with socket.create_server(("", port)):
        assert served._listen() is None
        assert served._listen() is None
    assert [(found["port"], "in use" in found["error"]) for found in fields_of(caplog, "probes not served")] == [
        (port, True)
    ]
