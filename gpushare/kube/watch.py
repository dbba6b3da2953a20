"""List, then watch, for ever: a mirror of one collection that survives broken streams and expired versions."""

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Protocol

from gpushare.kube import api as kube
from gpushare.kube.api import JsonObject, KubeApi
from gpushare.runtime import logs
from gpushare.runtime.backoff import Backoff
from gpushare.runtime.clock import Clock

_LOG: Final = logging.getLogger(__name__)
_PAGE: Final = "500"


class Sink(Protocol):
    """Who is told about the collection. All calls come from one thread, in the server's order."""

    def replace(self, objects: list[JsonObject]) -> None:
        """The whole collection, after every list."""
        ...

    def upsert(self, obj: JsonObject) -> None:
        """One object was added or changed."""
        ...

    def remove(self, obj: JsonObject) -> None:
        """One object is gone; its last state."""
        ...


@dataclass(kw_only=True)
class Reflector:
    """Keeps a sink equal to a collection."""

    api: KubeApi
    path: str
    sink: Sink
    clock: Clock
    params: dict[str, str] = field(default_factory=dict)
    """Field and label selectors."""
    keep: Callable[[JsonObject], JsonObject] | None = None
    """Reduces every object of a page at once, so that a list of a large cluster never lies in memory whole."""
    watch_timeout_s: float = 300.0
    list_timeout_s: float = 30.0
    synced: threading.Event = field(default_factory=threading.Event)
    """Set after the first list."""
    _version: str = field(init=False, default="")
    """The last resourceVersion seen; a cut stream resumes there."""

    def run(self, stop: threading.Event) -> None:
        """Mirror until `stop` is set. Never raises for what the server or the network does."""
        backoff = Backoff()
        while not stop.is_set():
            try:
                self._list()
                backoff.reset()
                self._watch(stop)
            except kube.GoneError:
                logs.event(_LOG, "watch expired", path=self.path)
            except kube.KubeError as error:
                delay = backoff.next_s()
                logs.event(_LOG, "watch failed", level=logging.WARNING, path=self.path, error=str(error), retry_s=delay)
                self.clock.wait(stop, delay)

    def _list(self) -> None:
        objects: list[JsonObject] = []
        params = {**self.params, "limit": _PAGE}
        while True:
            page = self.api.get(self.path, params, timeout_s=self.list_timeout_s)
            items = page.get("items") or []
            objects.extend(map(self.keep, items) if self.keep else items)
            more = page["metadata"].get("continue")
            if not more:
                break
            params["continue"] = more
        self.sink.replace(objects)
        self._version = str(page["metadata"]["resourceVersion"])
        self.synced.set()

    def _watch(self, stop: threading.Event) -> None:
        """Watch, resuming at the last version seen, until an error or `stop`."""
        backoff = Backoff()
        while not stop.is_set():
            started = self.clock.monotonic()
            try:
                self._stream(stop)
            except kube.UnreachableError as error:
                # A cut stream loses nothing: the next one resumes at the last version.
                logs.event(_LOG, "watch cut", level=logging.DEBUG, path=self.path, error=str(error))
            if self.clock.monotonic() - started > 5:
                backoff.reset()
            elif not stop.is_set():
                self.clock.wait(stop, backoff.next_s())

    def _stream(self, stop: threading.Event) -> None:
        params = {**self.params, "resourceVersion": self._version, "allowWatchBookmarks": "true"}
        for event in self.api.watch(self.path, params, timeout_s=self.watch_timeout_s):
            obj = event["object"]
            kind = event["type"]
            if kind == "ERROR":
                raise kube.error_of(int(obj.get("code", 500)), str(obj.get("message", "watch error")))
            if kind in {"ADDED", "MODIFIED"}:
                self.sink.upsert(self.keep(obj) if self.keep else obj)
            elif kind == "DELETED":
                self.sink.remove(self.keep(obj) if self.keep else obj)
            self._version = str(obj["metadata"]["resourceVersion"])
            if stop.is_set():
                break
