"""Serves the plugin's metrics over HTTP. A port that is taken keeps no container from starting.

Apart from `metrics`, whose library would cost a plugin its first second.
"""

import logging
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from gpushare.errors import SettingsError
from gpushare.runtime import logs
from gpushare.runtime.clock import Clock
from gpushare.runtime.pages import Kept, Page, PageServer

_LOG: Final = logging.getLogger(__name__)
_AGAIN_S: Final = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsServer:
    port: int
    make: Callable[[], Page]  # the metrics, which are kept for a second
    clock: Clock

    def run(self, stop: threading.Event) -> None:
        page = Kept(self.make, self.clock)
        # Prometheus is elsewhere.
        every_address = "::" if socket.has_dualstack_ipv6() else "0.0.0.0"  # noqa: S104
        while not stop.is_set():
            try:
                server = PageServer(every_address, self.port, f"--metrics-port {self.port}")
            except SettingsError as error:
                logs.event(_LOG, "metrics not served", level=logging.WARNING, error=str(error))
                self.clock.wait(stop, _AGAIN_S)
                continue
            server.pages = {"/metrics": page}
            server.start()
            stop.wait()
            server.stop()
