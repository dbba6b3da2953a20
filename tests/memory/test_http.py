"""The extender's server, without the controller behind it: what peers can make it hold is bounded."""

import contextlib
import resource
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.memory import groups

MIB = 2**20
LIMIT = 256 * MIB
PROGRAM = """
from controller import main
from gpushare.runtime import http, pages
from gpushare.runtime.clock import SystemClock
from gpushare.runtime.intake import ByteBudget
listener = http.listen("127.0.0.1", 0, "")
def handle(request):
    while request.body.read(65536):
        pass
    return pages.Response(200, b"x" * (2**20) if request.path == "/page" else b"ok")
made = http.HttpServer(
    application=pages.wsgi(handle), listener=listener, clock=SystemClock(), threads=32, most=main.MOST,
    budget=ByteBudget(main.BUDGET), keep_alive_s=75,
)
print(listener.getsockname()[1], flush=True)
made.serve(lambda: False, lambda: None)
"""
PAGE = b"GET /page HTTP/1.1\r\nHost: x\r\n\r\n"
LARGE = b"POST /ok HTTP/1.1\r\nHost: x\r\nContent-Length: 67108864\r\n\r\n" + b"x" * 200_000
SMALL = b"POST /ok HTTP/1.1\r\nHost: x\r\nContent-Length: 65536\r\n\r\n" + b"x" * 65_000


@pytest.fixture
def served() -> Iterator[tuple[int, groups.MemoryGroup]]:
    with groups.limited("http", LIMIT) as group:
        argv = group.enter([sys.executable, "-c", PROGRAM])
        with subprocess.Popen(argv, cwd=groups.ROOT, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            yield int(process.stdout.readline()), group
            process.kill()


@pytest.mark.parametrize(
    "sent",
    [PAGE * 50, LARGE, SMALL, b"GET /ok HTTP/1.1\r\n\r\n" * 10_000],
    ids=["answers are not read", "large bodies", "small bodies", "many requests at once"],
)
def test_what_hundreds_of_slow_peers_make_it_hold_is_bounded(
    served: tuple[int, groups.MemoryGroup], sent: bytes
) -> None:
    port, group = served
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, hard), hard))
    try:
        with contextlib.ExitStack() as slow:
            for _ in range(400):
                peer = slow.enter_context(socket.create_connection(("127.0.0.1", port)))
                peer.setblocking(False)
                with contextlib.suppress(OSError):
                    peer.send(sent)
            with socket.create_connection(("127.0.0.1", port), timeout=60) as ordinary:
                ordinary.sendall(SMALL.replace(b"65536", b"65000"))
                answer = b""
                while not answer.endswith(b"\r\n\r\nok"):
                    piece = ordinary.recv(4096)
                    assert piece, answer
                    answer += piece
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert group.kills() == 0, group.report()
