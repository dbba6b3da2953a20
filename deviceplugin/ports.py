"""What the plugin serves on ports of the node: the answer to the kubelet's probes, and metrics.

The port for probes takes connections while the plugin is registered, and reads and says nothing. That is cheaper than a
program that is started for every probe, and finds a process that stands still: the kernel lets two connections wait.
"""

import logging
import socket
import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from math import inf
from typing import Final

from gpushare.errors import SettingsError
from gpushare.runtime import logs
from gpushare.runtime.clock import Clock
from gpushare.runtime.pages import Kept, PageServer, Response

_LOG: Final = logging.getLogger(__name__)
_SILENT_S: Final = 30.0
_LOOK_S: Final = 0.5
_CONNECT_S: Final = 3.0
_AGAIN_S: Final = 30.0  # after which a port of metrics that was taken is tried again


@dataclass(kw_only=True)
class Probe:
    port: int
    clock: Clock
    parts: Collection[str]  # what has to be registered, each with its own beat
    usable: Callable[[], bool] = lambda: True  # whether this process can read the GPUs, or could when it last tried
    _lock: threading.Lock = field(init=False, default_factory=threading.Lock)
    _heard: dict[str, float] = field(init=False, default_factory=dict)  # when each last said that it is registered
    _problems: logs.Changes = field(init=False, default_factory=lambda: logs.Changes(_LOG))

    def beat(self, part: str, registered: bool) -> None:
        with self._lock:
            self._heard[part] = self.clock.monotonic() if registered else -inf

    def registered(self) -> bool:
        """Whether every part has said so in the last half minute, and the GPUs can be read."""
        if not self.usable():
            return False
        now = self.clock.monotonic()
        with self._lock:
            return all(now - self._heard.get(part, -inf) < _SILENT_S for part in self.parts)

    def run(self, stop: threading.Event) -> None:
        while not stop.is_set():
            if self.registered() and (server := self._listen()):
                with server:
                    self._take(server, stop)
            else:
                self.clock.wait(stop, _LOOK_S)

    def _take(self, server: socket.socket, stop: threading.Event) -> None:
        server.settimeout(_LOOK_S)
        while self.registered() and not stop.is_set():
            try:
                connection, _ = server.accept()
                connection.close()
            except TimeoutError:
                continue  # none came
            except OSError:  # one that has left already; or no file descriptor is free, which lasts
                self.clock.wait(stop, _LOOK_S)

    def _listen(self) -> socket.socket | None:
        dual = socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if dual else socket.AF_INET
        try:
            return socket.create_server(("", self.port), family=family, backlog=1, dualstack_ipv6=dual)
        except OSError as error:
            self._problems.say("probes not served", level=logging.WARNING, port=self.port, error=str(error))
            return None


def problem(port: int) -> str:
    try:
        socket.create_connection(("localhost", port), _CONNECT_S).close()
    except OSError as error:
        return (
            f"the plugin is not registered with the kubelet (port {port}: {error.strerror or error}); its log says why"
        )
    return ""


def serve_metrics(stop: threading.Event, *, port: int, make: Callable[[], Response], clock: Clock) -> None:
    # Prometheus is elsewhere.
    every_address = "::" if socket.has_dualstack_ipv6() else "0.0.0.0"  # noqa: S104
    while not stop.is_set():
        try:
            server = PageServer(every_address, port, f"--metrics-port {port}")
        except SettingsError as error:
            logs.event(_LOG, "metrics not served", level=logging.WARNING, error=str(error))
            clock.wait(stop, _AGAIN_S)
            continue
        server.pages = {"/metrics": Kept(make, clock)}
        server.start()
        stop.wait()
        server.stop()
