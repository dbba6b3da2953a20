"""Watches that the controller can do without: what it must not read, or the server does not have, counts as empty.

What was read before it became so stays: a server that starts refuses for a moment what it allows.
"""

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from gpushare.kube import api as kube
from gpushare.kube.api import KubeApi
from gpushare.kube.watch import Reflector, Sink
from gpushare.runtime import logs
from gpushare.runtime.clock import Backoff, Clock

_LOG: Final = logging.getLogger(__name__)
PATIENCE_S: Final = 20.0  # how long to wait for the first list
ASK_AGAIN_S: Final = 60.0  # if reading is forbidden, an administrator may allow it


@dataclass(kw_only=True)
class OptionalWatch:
    """Follows one collection, if it may."""

    api: KubeApi
    clock: Clock
    paths: Sequence[str]
    """Of the collection in the versions that servers may have, the best first."""
    sink: Callable[[str], Sink[Any]]
    """Of the collection in the version that a path has."""
    effect: str
    """What is different without, for the log."""
    right: str
    """What is to be granted, for the log."""
    params: Mapping[str, str] = field(default_factory=dict)
    """Label selectors."""
    _synced: threading.Event = field(init=False, default_factory=threading.Event)
    _refused: threading.Event = field(init=False, default_factory=threading.Event)
    _running: Reflector[Any] | None = field(init=False, default=None)
    _began: float | None = field(init=False, default=None)

    @property
    def path(self) -> str:
        """What it is about, for people."""
        return self.paths[0]

    def stale_for(self) -> float:
        """Seconds since the server last answered about the collection; not a number while it is not read."""
        running = self._running
        return running.stale_for() if running else float("nan")

    def settled(self) -> bool:
        """Whether the collection was read, or cannot be read soon."""
        if self._synced.is_set() or self._refused.is_set():
            return True
        return self._began is not None and self.clock.monotonic() - self._began >= PATIENCE_S

    def run(self, stop: threading.Event) -> None:
        """Follow it until `stop` is set. Never raises for what the server or the network does."""
        self._began = self.clock.monotonic()
        backoff = Backoff()
        while not stop.is_set():
            try:
                path = self._readable()
            except kube.KubeError as error:
                delay = backoff.next_s()
                logs.event(_LOG, "watch failed", level=logging.WARNING, path=self.path, error=str(error), retry_s=delay)
                self.clock.wait(stop, delay)
                continue
            if path:
                started = self.clock.monotonic()
                self._running = Reflector(
                    api=self.api,
                    path=path,
                    sink=self.sink(path),
                    clock=self.clock,
                    params=dict(self.params),
                    optional=True,
                    synced=self._synced,
                )
                self._running.run(stop)
                self._running = None
                # The server has another version now, or the right was taken away.
                if self.clock.monotonic() - started >= ASK_AGAIN_S:
                    backoff.reset()
                self.clock.wait(stop, backoff.next_s())
            else:
                self._refused.set()
                self.clock.wait(stop, ASK_AGAIN_S)

    def _readable(self) -> str:
        """The path to watch; empty if there is none."""
        absent = kube.NotFoundError("")
        for path in self.paths:
            try:
                self.api.get(path, {"limit": "1"})
            except kube.NotFoundError as error:
                absent = error
            except kube.ForbiddenError as error:
                self._complain(error, f"grant the controller {self.right}")
                return ""
            else:
                return path
        self._complain(absent, "none; this server has no such objects")
        return ""

    def _complain(self, error: kube.KubeError, fix: str) -> None:
        effect = "what was read before stays as it was" if self._synced.is_set() else self.effect
        logs.event(_LOG, "not watched", level=logging.WARNING, path=self.path, error=str(error), effect=effect, fix=fix)
