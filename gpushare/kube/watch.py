"""List, then watch, for ever: a mirror of one collection that survives broken streams and expired versions."""

import logging
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final, Protocol

from gpushare.kube import api as kube
from gpushare.kube.api import JsonObject, KubeApi
from gpushare.runtime import logs
from gpushare.runtime.backoff import Backoff
from gpushare.runtime.clock import Clock

_LOG: Final = logging.getLogger(__name__)
_PAGE: Final = "500"
_HEALTHY_S: Final = 5.0  # a stream that lived longer was no failure


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
    optional: bool = False
    """Whether to end when the collection is gone or must not be read, instead of trying for ever."""
    keep: Callable[[JsonObject], JsonObject] | None = None
    """Reduces every object of a page at once, so that a list of a large cluster never lies in memory whole."""
    watch_timeout_s: float = 300.0
    list_timeout_s: float = 30.0
    synced: threading.Event = field(default_factory=threading.Event)
    """Set after the first list."""
    _version: str = field(init=False, default="")
    """The last resourceVersion seen; a cut stream resumes there."""
    _listed_at: float = field(init=False, default=float("-inf"))
    """When the last list was begun."""
    _contact_at: float = field(init=False)
    """When the server last answered about the collection: a list, an accepted watch, an event."""
    _backoff: Backoff = field(init=False, default_factory=Backoff)
    """One for lists and streams, so that a list that succeeds does not hide a watch that never does."""

    def __post_init__(self) -> None:
        self._touch()

    def stale_for(self) -> float:
        """Seconds since the server last answered about the collection; before the first answer, since the start.

        While all is well it stays below some 100 s: bookmarks come about once a minute, and a watch that says nothing
        for longer is opened again.
        """
        return self.clock.monotonic() - self._contact_at

    def run(self, stop: threading.Event) -> None:
        """Mirror until `stop` is set, or as `optional` says. Never raises for what the server or the network does."""
        self._touch()
        while not stop.is_set():
            try:
                self._list()
                self._watch(stop)
            except kube.GoneError as error:
                # Versions expire as a matter of course; a server whose fresh versions have expired already is ill.
                usual = self.clock.monotonic() - self._listed_at > _HEALTHY_S
                self._pause(stop, "watch expired", error, delay=0.0 if usual else self._backoff.next_s())
            except (kube.NotFoundError, kube.ForbiddenError) as error:
                if self.optional:
                    self._pause(stop, "watch ended", error, delay=0.0)
                    return
                self._pause(stop, "watch failed", error, delay=self._backoff.next_s())
            except kube.KubeError as error:
                self._pause(stop, "watch failed", error, delay=self._backoff.next_s())

    def _touch(self) -> None:
        self._contact_at = self.clock.monotonic()

    def _pause(self, stop: threading.Event, event: str, error: kube.KubeError, *, delay: float) -> None:
        level = logging.WARNING if delay else logging.INFO
        logs.event(_LOG, event, level=level, path=self.path, error=str(error), retry_s=delay)
        if delay:
            self.clock.wait(stop, delay)

    def _list(self) -> None:
        """Read all pages. A page that has expired (GoneError) costs all of them: they are of one version."""
        self._listed_at = self.clock.monotonic()
        objects: list[JsonObject] = []
        params = {**self.params, "limit": _PAGE}
        while True:
            page = self.api.get(self.path, params, timeout_s=self.list_timeout_s)
            objects.extend(self._kept(item) for item in self._items(page))
            self._touch()
            more = self._metadata(page).get("continue")
            if not more:
                break
            params["continue"] = str(more)
        version = self._version_of(page)
        self.sink.replace(objects)
        self._version = version
        self.synced.set()

    def _watch(self, stop: threading.Event) -> None:
        """Watch, resuming at the last version seen, until an error or `stop`."""
        while not stop.is_set():
            started = self.clock.monotonic()
            events = 0
            try:
                for _ in self._stream(stop):
                    events += 1
            except (kube.UnreachableError, kube.TooManyRequestsError) as error:
                # A cut stream loses nothing: the next one resumes at the last version.
                logs.event(_LOG, "watch cut", level=logging.DEBUG, path=self.path, error=str(error))
            finally:
                lived = self.clock.monotonic() - started > _HEALTHY_S
                if lived or events:
                    self._backoff.reset()
            if not lived and not stop.is_set():
                self.clock.wait(stop, self._backoff.next_s())

    def _stream(self, stop: threading.Event) -> Iterator[None]:
        """One stream, told to the sink; gives something for every event of it."""
        params = {**self.params, "resourceVersion": self._version, "allowWatchBookmarks": "true"}
        events = self.api.watch(self.path, params, timeout_s=self.watch_timeout_s)
        self._touch()
        for event in events:
            self._touch()
            obj, kind = event.get("object"), event.get("type")
            if not isinstance(obj, dict):
                raise self._malformed("an event has no object")
            if kind == "ERROR":
                code = obj.get("code")
                raise kube.error_of(code if isinstance(code, int) else 500, str(obj.get("message", "watch error")))
            version = self._version_of(obj)
            if kind in {"ADDED", "MODIFIED"}:
                self.sink.upsert(self._kept(obj))
            elif kind == "DELETED":
                self.sink.remove(self._kept(obj))
            elif kind != "BOOKMARK":
                raise self._malformed(f"{kind!r} is no type of event")
            self._version = version
            yield
            if stop.is_set():
                break

    def _items(self, page: JsonObject) -> list[JsonObject]:
        self._version_of(page)  # what has none is no list at all, such as a proxy's {}
        items = page.get("items")
        if items is None:
            return []
        if not isinstance(items, list):
            raise self._malformed("items is no list")
        return items

    def _kept(self, obj: object) -> JsonObject:
        if not isinstance(obj, dict):
            raise self._malformed("an item is no object")
        self._metadata(obj)
        if self.keep is None:
            return obj
        try:
            return self.keep(obj)
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            raise self._malformed(f"an object cannot be read ({type(error).__name__}: {error})") from error

    def _version_of(self, obj: JsonObject) -> str:
        version = self._metadata(obj).get("resourceVersion")
        if not isinstance(version, str) or not version:
            raise self._malformed("metadata.resourceVersion is missing")
        return version

    def _metadata(self, obj: JsonObject) -> JsonObject:
        metadata = obj.get("metadata")
        if not isinstance(metadata, dict):
            raise self._malformed("metadata is missing")
        return metadata

    def _malformed(self, what: str) -> kube.ServerFaultError:
        return kube.ServerFaultError(f"malformed answer for {self.path}: {what}; is there a proxy in between?")
