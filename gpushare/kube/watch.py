"""List, then watch, forever: a copy of one collection that survives broken streams and expired versions."""

import logging
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, Generic, Protocol, TypeVar

from gpushare.errors import WireError
from gpushare.kube import api as kube
from gpushare.kube.api import JsonObject, KubeApi, Page
from gpushare.runtime import logs, process
from gpushare.runtime.clock import Backoff, Clock
from gpushare.wire import fields

_LOG: Final = logging.getLogger(__name__)
_PAGE: Final = 500  # objects
_WATCH_S: Final = 300.0
_HEALTHY_S: Final = 5.0  # a stream that lived longer was no failure
T = TypeVar("T")


class Sink(Protocol[T]):
    """Who is told about the collection. All calls come from one thread, in the server's order."""

    def read(self, obj: JsonObject) -> T | None:
        """Reduce an object, at once after it was read, so that a large collection never lies in memory whole.

        None leaves it out: nothing else is called for it, also not when it is removed.
        """

    def replace(self, found: list[T]) -> None:
        """The whole collection, after every list."""

    def upsert(self, found: T) -> None: ...
    def remove(self, found: T) -> None: ...  # its last state


@dataclass(kw_only=True)
class Reflector(Generic[T]):
    api: KubeApi
    path: str
    sink: Sink[T]
    clock: Clock
    params: dict[str, str] = field(default_factory=dict)  # field and label selectors
    optional: bool = False  # whether to end when the collection is gone or must not be read, instead of trying forever
    synced: threading.Event = field(default_factory=threading.Event)  # set after the first list
    _version: str = field(init=False, default="")  # the last resourceVersion seen; a cut stream resumes there
    _limit: int = field(init=False, default=_PAGE)
    """Objects of a page; fewer after a page that the server or the network did not manage."""
    _was_healthy: bool = field(init=False, default=False)  # whether a stream since the last list was
    _contact_at: float = field(init=False, default=float("nan"))
    """When the server last answered about the collection: a list, an accepted watch, an event."""
    _failure: str = field(init=False, default="")  # why the server could not be asked since it last answered
    _failed_at: float = field(init=False, default=float("nan"))  # when that began
    _backoff: Backoff = field(init=False, default_factory=Backoff)
    """One for lists and streams, so that a list that succeeds does not hide a watch that never does."""

    def stale_for(self) -> float:
        """Seconds since the server last answered about the collection; not a number before `run`.

        While all is well it stays below some 100 s: bookmarks come about once a minute, and a watch that says nothing
        for longer is opened again.
        """
        return self.clock.monotonic() - self._contact_at

    def failing(self, for_s: float) -> str:
        """Why the collection cannot be read, for at least so many seconds; empty if it can."""
        failure, since = self._failure, self._failed_at
        return failure if failure and self.clock.monotonic() - since >= for_s else ""

    def run(self, stop: threading.Event) -> None:
        """Follow it until `stop` is set, or as `optional` says. Never raises for what server and network do."""
        self._touch()
        while not stop.is_set():
            try:
                if self._list():
                    self._watch(stop)
                else:
                    self.clock.wait(stop, self._backoff.next_s())
            except kube.KubeError as error:
                self._fail(error)
                ended = self.optional and isinstance(error, kube.NotFoundError | kube.ForbiddenError)
                expired = isinstance(error, kube.GoneError)
                # Versions expire as a matter of course; a server whose fresh versions have expired is unhealthy.
                delay = 0.0 if ended or (expired and self._was_healthy) else self._backoff.next_s()
                what = "watch ended" if ended else "watch expired" if expired else "watch failed"
                level = logging.WARNING if delay else logging.INFO
                logs.event(_LOG, what, level=level, path=self.path, error=str(error), retry_s=delay)
                if ended:
                    return
                if delay:
                    self.clock.wait(stop, delay)

    def _touch(self) -> None:
        self._contact_at = self.clock.monotonic()
        self._failure = ""

    def _fail(self, error: kube.KubeError) -> None:
        if not self._failure:
            self._failed_at = self.clock.monotonic()
        self._failure = str(error)

    # The list.

    def _list(self) -> bool:
        """Read the whole collection. Whether it is of one version, from which a watch can go on."""
        self._was_healthy = False
        with process.COLLECTOR_PAUSED:
            page = self._all()
            self.sink.replace([record for record in page.items if record is not None])
        self._version = page.version
        self.synced.set()
        return bool(page.version)

    def _all(self) -> Page[T | None]:
        """The whole collection, at a version that is not older than this call: see docs/architecture.md.

        A small one is one page, which comes from the store itself. A large one is then asked for in one piece from the
        API server's cache, as soon as that has reached the version of the first page: this costs the store nothing and
        nothing in it can expire. A cache that does not get there leaves the pages.
        """
        first = self._page({"limit": str(self._limit)})
        if not first.more:
            return first
        try:
            return self._page({"resourceVersion": first.version, "resourceVersionMatch": "NotOlderThan"})
        except kube.KubeError as error:
            logs.event(_LOG, "list not from the cache", level=logging.WARNING, path=self.path, error=str(error))
        return self._paged(first)

    def _paged(self, first: Page[T | None]) -> Page[T | None]:
        """The pages after the first. Without a version if it expired on the way: the rest is then newer."""
        items, more, version = list(first.items), first.more, first.version
        while more:
            try:
                page = self._page({"limit": str(self._limit), "continue": more})
            except kube.GoneError as error:
                if not error.more or not version:
                    raise
                more, version = error.more, ""
                continue
            items += page.items
            more = page.more
        return Page(items=items, version=version)

    def _page(self, params: dict[str, str]) -> Page[T | None]:
        try:
            page = self.api.list_page(self.path, {**self.params, **params}, keep=self._read)
        except (kube.ServerFaultError, kube.UnreachableError):
            self._limit = max(1, self._limit // 4)
            raise
        self._limit = min(_PAGE, self._limit * 2)
        self._touch()
        return page

    # The watch.

    def _watch(self, stop: threading.Event) -> None:
        """Watch, resuming at the last version seen, until an error or `stop`."""
        while not stop.is_set():
            accepted = float("inf")
            events = 0
            try:
                versions = self._stream()
                accepted = self.clock.monotonic()
                for version in versions:
                    self._version = version
                    events += 1
                    if stop.is_set():
                        break
            except (kube.UnreachableError, kube.TooManyRequestsError) as error:
                # A cut stream loses nothing: the next one resumes at the last version.
                self._fail(error)
                logs.event(_LOG, "watch cut", level=logging.DEBUG, path=self.path, error=str(error))
            finally:
                lived = self.clock.monotonic() - accepted > _HEALTHY_S
                self._was_healthy |= lived
                if lived or events:
                    self._backoff.reset()
            if not lived and not stop.is_set():
                self.clock.wait(stop, self._backoff.next_s())

    def _stream(self) -> Iterable[str]:
        """One stream, told to the sink; the version after every event of it."""
        params = {**self.params, "resourceVersion": self._version, "allowWatchBookmarks": "true"}
        events = self.api.watch(self.path, params, timeout_s=_WATCH_S)
        self._touch()
        return map(self._apply, events)  # holds no object, perhaps a large one, while it waits for the next one

    def _apply(self, event: JsonObject) -> str:
        """Tell the sink about one event; the version that it brings."""
        self._touch()
        try:
            obj, kind = fields.needed_mapping(event, "object", ""), fields.text(event, "type", "")
            if kind == "ERROR":
                code = fields.integer(obj, "code", "object", default=500)
                raise kube.error_of(code, fields.text(obj, "message", "object") or "watch error")
            version = fields.needed(fields.mapping(obj, "metadata", "object"), "resourceVersion", "object.metadata")
        except WireError as error:
            raise self._malformed(error) from error
        if kind not in {"ADDED", "MODIFIED", "DELETED", "BOOKMARK"}:
            raise self._malformed(f"{kind!r:.40} is no type of event")
        record = None if kind == "BOOKMARK" else self._read(obj)
        if record is not None:
            (self.sink.remove if kind == "DELETED" else self.sink.upsert)(record)
        return version

    def _read(self, obj: JsonObject) -> T | None:
        try:
            fields.needed_mapping(obj, "metadata", "")
            return self.sink.read(obj)
        except (AttributeError, LookupError, TypeError, ValueError, WireError) as error:
            raise self._malformed(f"an object cannot be read ({type(error).__name__}: {error})") from error

    def _malformed(self, problem: object) -> kube.ServerFaultError:
        return kube.ServerFaultError(f"malformed answer for {self.path}: {problem}; is there a proxy in between?")
