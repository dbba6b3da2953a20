"""Servers in processes of their own."""

import contextlib
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator

from bench.interleaved import Client, Side


@contextlib.contextmanager
def serving(run: Callable[[int], None]) -> Iterator[Side]:
    """A process that serves at the port that it is given, and a connection to it."""
    port = free_port()
    with forked(run, port) as pid:
        yield Side(pid, connected(port))


@contextlib.contextmanager
def forked(run: Callable[[int], None], port: int) -> Iterator[int]:
    """A process that serves at this port."""
    pid = os.fork()
    if pid == 0:
        try:
            run(port)
        finally:
            os._exit(0)  # nothing may return into what the parent was doing
    try:
        yield pid
    finally:
        os.kill(pid, signal.SIGTERM)
        os.waitpid(pid, 0)


def connected(port: int) -> Client:
    """A client of a server that may not listen yet."""
    for _ in range(600):
        with contextlib.suppress(OSError):
            client = Client(port)
            client.post("/2", b"{}")
            return client
        time.sleep(0.05)
    raise SystemExit(f"no server listens on port {port}")


def free_port() -> int:
    """One that no one uses now."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])
