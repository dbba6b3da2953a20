"""Keeps the MPS control daemon running, and answers the device plugin."""

import logging
import socket
import subprocess
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from deviceplugin.mps import wire
from deviceplugin.mps.control import MpsControl, MpsError
from deviceplugin.mps.wire import Status
from gpushare.errors import WireError
from gpushare.runtime import logs
from gpushare.runtime.clock import Backoff, Clock

_LOG: Final = logging.getLogger(__name__)
_LOOK_S: Final = 0.5
_PEER_S: Final = 2.0
_END_S: Final = 3.0
_STABLE_S: Final = 60.0
_MODES_S: Final = 1.0
"""For which compute modes are remembered: nvidia-smi takes its time, and many containers may start at once."""


@dataclass(kw_only=True)
class Supervisor:
    """`run` and `serve` are two parts of one process."""

    control: MpsControl
    clock: Clock
    _lock: threading.Lock = field(init=False, default_factory=threading.Lock)
    _defaults: dict[int, int] = field(init=False, default_factory=dict)
    """As the plugin wants them."""
    _set: dict[int, int] = field(init=False, default_factory=dict)
    """As the daemon that runs now has them."""
    _modes: Mapping[int, str] = field(init=False, default_factory=dict)
    _modes_until: float = field(init=False, default=float("-inf"))

    def run(self, stop: threading.Event) -> None:
        """Start the daemon, and again whenever it has ended, until `stop` is set."""
        backoff = Backoff(first_s=1.0, cap_s=30.0)
        while not stop.is_set():
            started = self.clock.monotonic()
            try:
                problem = self._run_once(stop)
            except (MpsError, OSError) as error:
                problem = str(error)
            if stop.is_set():
                return
            if self.clock.monotonic() - started >= _STABLE_S:
                backoff.reset()
            delay = backoff.next_s()
            logs.event(_LOG, "mps daemon ended", level=logging.ERROR, problem=problem, retry_s=delay)
            self.clock.wait(stop, delay)

    def _run_once(self, stop: threading.Event) -> str:
        self.control.make_directories()
        self.control.make_exclusive()
        with self._lock:
            self._set.clear()
        child = self.control.start()
        logs.event(_LOG, "mps daemon started", pid=child.pid)
        try:
            while not stop.is_set() and child.poll() is None:
                self.clock.wait(stop, _LOOK_S)
            return f"exit code {child.returncode}"
        finally:
            self._end(child)

    def _end(self, child: "subprocess.Popen[bytes]") -> None:
        """GPUs stay in exclusive mode: programs that still run must not become unlimited."""
        if child.poll() is None:
            with suppress(MpsError):
                self.control.end()
        for more in (child.terminate, child.kill):
            with suppress(subprocess.TimeoutExpired):
                child.wait(_END_S)
                return
            more()
        child.wait()

    def serve(self, stop: threading.Event) -> None:
        """Answer the plugin until `stop` is set; one after the other, each in a few seconds."""
        path = wire.socket_path(self.control.directory)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(str(path))
            path.chmod(0o600)
            server.listen()
            server.settimeout(_LOOK_S)
            while not stop.is_set():
                with suppress(TimeoutError):
                    connection, _ = server.accept()
                    with connection:
                        self._answer(connection)
        path.unlink(missing_ok=True)

    def _answer(self, connection: socket.socket) -> None:
        try:
            connection.settimeout(_PEER_S)
            status = self.status(wire.decode_request(wire.read_line(connection)))
            connection.sendall(wire.encode_status(status))
        except (OSError, WireError) as error:
            logs.event(_LOG, "request not answered", level=logging.WARNING, error=str(error))

    def status(self, defaults: Mapping[int, int]) -> Status:
        """Set what is new of these defaults, and ask the daemon whether it obeys."""
        with self._lock:
            self._defaults |= defaults
            try:
                self.control.probe()
                for index, mib in self._defaults.items():
                    if self._set.get(index) != mib:
                        self.control.set_default(index, mib)
                        self._set[index] = mib
                return Status(modes=self._latest_modes())
            except MpsError as error:
                return Status(problem=str(error))

    def _latest_modes(self) -> Mapping[int, str]:
        now = self.clock.monotonic()
        if now >= self._modes_until:
            self._modes, self._modes_until = self.control.modes(), now + _MODES_S
        return self._modes
