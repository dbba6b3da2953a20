"""The extender's server, without the life of its process, which is the supervisor's.

The sockets are opened once, before any worker is forked, so that requests between two workers wait and are answered.
"""

import os
import signal
import sys
from collections.abc import Callable
from typing import Final, Protocol

from controller.settings import Settings
from gpushare.runtime import http
from gpushare.runtime.clock import Clock, SystemClock
from gpushare.runtime.http import Handler, HttpServer
from gpushare.runtime.intake import MIB, ByteBudget
from gpushare.runtime.process import Signals

GRACE_S: Final = 8  # every request has an answer by then: a bind's deadline is below the scheduler's 5 s
KEEP_ALIVE_S: Final = 75  # kube-scheduler keeps its connections; closing them first would race with its requests
# How long a thread that computes keeps others waiting: Python's default is ten times as long, longer than most answers
# take. A request waits so long whenever it has waited for bytes, and the background has much to compute.
SWITCH_S: Final = 0.0005
MOST: Final = 64 * MIB  # bytes of the longest body that `controller.extender.app` reads
BUDGET: Final = 128 * MIB  # bytes of all bodies above 64 KiB, while they arrive and are answered


class Running(Protocol):
    """The controller inside of the worker."""

    handler: Handler

    def start(self) -> None: ...
    def shut_down(self) -> None: ...  # finish what was begun; called after the last answer


class Server:
    def __init__(self, settings: Settings, supervisor_pid: int, clock: Clock | None = None) -> None:
        """Open the socket, in the supervisor. Raises SettingsError."""
        self._supervisor_pid = supervisor_pid
        self._threads = settings.threads
        self._clock = clock or SystemClock()
        address, port = settings.bind_address, settings.port
        self.listener = http.listen(address, port, f"--bind-address {address} --port {port}")

    def serve(self, build: Callable[[], Running], beat: Callable[[], None]) -> int:
        """Serve until SIGTERM or the supervisor's end, in the worker; `beat` is called each second. The exit code."""
        signals = Signals()
        signals.install()
        sys.setswitchinterval(SWITCH_S)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to the supervisor as well
        running = build()
        server = HttpServer(
            application=http.wsgi(running.handler),
            listener=self.listener,
            clock=self._clock,
            threads=self._threads,
            most=MOST,
            budget=ByteBudget(BUDGET),
            keep_alive_s=KEEP_ALIVE_S,
        )
        running.start()
        server.serve(lambda: bool(signals.number) or os.getppid() != self._supervisor_pid, beat)
        server.finish(beat, grace_s=GRACE_S)
        running.shut_down()
        return 0
