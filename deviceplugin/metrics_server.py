"""Serves the plugin's metrics over HTTP. A port that is taken keeps no container from starting."""

import logging
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from deviceplugin.counts import Counts
from deviceplugin.usage.values import NodeUsage
from gpushare.errors import SettingsError
from gpushare.runtime import logs
from gpushare.runtime.clock import Clock
from gpushare.runtime.pages import Page, PageServer

_LOG: Final = logging.getLogger(__name__)
_AGAIN_S: Final = 30.0
_FRESH_S: Final = 1.0


@dataclass(kw_only=True)
class MetricsServer:
    """One part of the plugin."""

    port: int
    usage: Callable[[], NodeUsage | None]
    counts: Counts
    clock: Clock
    _lock: threading.Lock = field(init=False, default_factory=threading.Lock)
    _made: tuple[float, Page] | None = field(init=False, default=None)
    """When the last page was made, and the page."""

    def run(self, stop: threading.Event) -> None:
        """Serve until `stop` is set, as soon as the port is free."""
        while not stop.is_set():
            try:
                server = PageServer(_all(), self.port, f"--metrics-port {self.port}")
            except SettingsError as error:
                logs.event(_LOG, "metrics not served", level=logging.WARNING, error=str(error))
                self.clock.wait(stop, _AGAIN_S)
                continue
            server.pages = {"/metrics": self.page}
            server.start()
            stop.wait()
            server.stop()

    def page(self) -> Page:
        """The metrics of this second: the same for all who ask, so that many at once cost no more than one."""
        # Late: the library would cost the plugin its first second.
        from deviceplugin import metrics

        with self._lock:
            now = self.clock.monotonic()
            if self._made is None or now - self._made[0] >= _FRESH_S:
                self._made = now, Page(200, metrics.page(self.usage, self.counts), metrics.CONTENT_TYPE)
            return self._made[1]


def _all() -> str:
    return "::" if socket.has_dualstack_ipv6() else "0.0.0.0"  # noqa: S104 - Prometheus is elsewhere
