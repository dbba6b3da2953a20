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
from gpushare.runtime.pages import Kept, Page, PageServer

_LOG: Final = logging.getLogger(__name__)
_AGAIN_S: Final = 30.0


@dataclass(kw_only=True)
class MetricsServer:
    """One part of the plugin."""

    port: int
    node: str
    usage: Callable[[], NodeUsage | None]
    counts: Counts
    clock: Clock
    page: Kept = field(init=False)
    """The metrics of this second."""

    def __post_init__(self) -> None:
        self.page = Kept(self._make, self.clock)

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

    def _make(self) -> Page:
        # Late: the library would cost the plugin its first second.
        from deviceplugin import metrics

        return Page(200, metrics.page(self.usage, self.counts, self.node), metrics.CONTENT_TYPE)


def _all() -> str:
    return "::" if socket.has_dualstack_ipv6() else "0.0.0.0"  # noqa: S104 - Prometheus is elsewhere
