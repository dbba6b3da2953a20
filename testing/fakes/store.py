"""Versioned objects with history: what etcd and the watch cache are to the real API server."""

import bisect
import itertools
import threading
import uuid
from collections.abc import Iterator
from dataclasses import dataclass

from gpushare.kube import api as kube
from gpushare.kube.api import JsonObject, Params
from testing.fakes import selectors
from testing.fakes.merging import clone
from testing.fakes.paths import Target


@dataclass(frozen=True, slots=True)
class _Change:
    version: int
    obj: JsonObject | None
    """None after a deletion."""
    last: JsonObject
    before: JsonObject | None


class Store:
    """All collections. `lock` makes several steps one transaction."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._changed = threading.Condition(self.lock)
        self._versions = itertools.count(2)
        self._version = 1
        self._objects: dict[str, dict[tuple[str, str], JsonObject]] = {}
        self._log: dict[str, list[_Change]] = {}
        self._pages: dict[str, tuple[list[JsonObject], str]] = {}
        self._last: dict[str, tuple[str, str]] = {}
        """Of each token: the last object before it."""
        self._cache: dict[str, tuple[int, dict[tuple[str, str], JsonObject]]] = {}
        """Collections whose cache lags: its version and objects."""
        self._compacted = 0
        self._cuts = 0
        self._bookmarks = 0
        self._closed = False

    def read(self, target: Target) -> JsonObject:
        """The object itself, not to be changed."""
        obj = self._objects.get(target.collection, {}).get(target.key)
        if obj is None:
            raise kube.NotFoundError(f'{target.resource} "{target.name}" not found')
        return obj

    def has(self, target: Target) -> bool:
        return target.key in self._objects.get(target.collection, {})

    def matching(self, target: Target, params: Params) -> list[JsonObject]:
        wanted = selectors.of(params, target.namespace)
        return [obj for _, obj in sorted(self._objects.get(target.collection, {}).items()) if wanted(obj)]

    def page(self, target: Target, params: Params) -> JsonObject:
        """One page of a list. All pages of a list are of one version, unless that has expired on the way.

        Without a `resourceVersion` it comes from the store, with one from the cache, which may lag (`freeze_cache`).
        """
        limit = int(params.get("limit") or 0)
        if token := params.get("continue"):
            if token not in self._pages:
                raise self._expired(token, target, params)
            items, version = self._pages.pop(token)
        elif oldest := params.get("resourceVersion"):
            items, version = self._cached(target, params, int(oldest))
            limit = 0 if oldest == "0" else limit
        else:
            items, version = self.matching(target, params), str(self._version)
        metadata: JsonObject = {"resourceVersion": version}
        if limit and len(items) > limit:
            metadata["continue"] = str(uuid.uuid4())
            self._pages[metadata["continue"]] = (items[limit:], version)
            self._last[metadata["continue"]] = key_of(items[limit - 1])
            items = items[:limit]
        return {"kind": "List", "metadata": metadata, "items": clone(items)}

    def _cached(self, target: Target, params: Params, oldest: int) -> tuple[list[JsonObject], str]:
        version, objects = self._cache.get(target.collection, (self._version, None))
        if oldest > version:
            raise kube.ServerFaultError(f"Too large resource version: {oldest}, current: {version}")
        if objects is None:
            return self.matching(target, params), str(version)
        wanted = selectors.of(params, target.namespace)
        return [obj for _, obj in sorted(objects.items()) if wanted(obj)], str(version)

    def _expired(self, token: str, target: Target, params: Params) -> kube.GoneError:
        error = kube.GoneError("The provided continue parameter is too old")
        if token in self._last:  # the rest can be had, at the newest version
            error.more = str(uuid.uuid4())
            rest = [obj for obj in self.matching(target, params) if key_of(obj) > self._last[token]]
            self._pages[error.more] = (rest, str(self._version))
        return error

    def freeze_cache(self, target: Target) -> None:
        """Lists from the cache answer from now on what the collection is at this moment."""
        self._cache[target.collection] = (self._version, dict(self._objects.get(target.collection, {})))

    def write(self, target: Target, obj: JsonObject) -> JsonObject:
        """Store an object under a new version. A copy of it."""
        collection = self._objects.setdefault(target.collection, {})
        before = collection.get(target.key)
        if before is not None:
            obj["metadata"] = {**obj["metadata"], "resourceVersion": before["metadata"]["resourceVersion"]}
            if obj == before:
                return clone(before)  # a write that changes nothing makes no version
        obj = clone(obj)
        obj["metadata"]["resourceVersion"] = str(self._next())
        collection[target.key] = obj
        self._record(target, _Change(self._version, obj, obj, before))
        return clone(obj)

    def remove(self, target: Target) -> None:
        before = self.read(target)
        del self._objects[target.collection][target.key]
        last = clone(before)
        last["metadata"]["resourceVersion"] = str(self._next())
        self._record(target, _Change(self._version, None, last, before))

    def compact(self) -> None:
        with self._changed:
            self._compacted = self._next()
            self._log.clear()
            self._pages.clear()
            self._changed.notify_all()

    def forget(self, target: Target, to: int) -> None:
        """Drop the history of a collection up to a version that all of its watchers have seen."""
        with self.lock:
            log = self._log.get(target.collection, [])
            del log[: bisect.bisect_right(log, to, key=lambda change: change.version)]

    def cut(self) -> None:
        with self._changed:
            self._cuts += 1
            self._changed.notify_all()

    def bookmark(self) -> None:
        with self._changed:
            self._bookmarks += 1
            self._changed.notify_all()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def check(self, since: int) -> JsonObject:
        """Refuse a watch from a version that is forgotten."""
        if 0 < since < self._compacted:
            raise kube.GoneError(f"too old resource version: {since} ({self._compacted})")
        return {}

    def stream(self, target: Target, params: Params, timeout_s: float) -> Iterator[JsonObject]:
        """Events after a version, until the time is over or the stream is cut."""
        since = int(params.get("resourceVersion") or 0)
        wanted = selectors.of(params, target.namespace)
        cuts, bookmarks = self._cuts, self._bookmarks
        allowed = params.get("allowWatchBookmarks") == "true"
        while True:
            with self._changed:
                woken = self._wait(target, since, (cuts, bookmarks), timeout_s)
                if self._cuts != cuts:
                    raise kube.UnreachableError("watch: connection reset")
                gone = since < self._compacted
                changes = self._after(target, since)
                since, done = self._version, self._closed or not woken
                marked, bookmarks = self._bookmarks > bookmarks, self._bookmarks
            if gone:
                yield {"type": "ERROR", "object": {"kind": "Status", "code": 410, "message": "too old", "metadata": {}}}
                return
            yield from filter(None, (_seen(change, wanted) for change in changes))
            if allowed and (marked or done):
                yield {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": str(since)}}}
            if done:
                return

    def _wait(self, target: Target, since: int, known: tuple[int, int], timeout_s: float) -> bool:
        def news() -> bool:
            log = self._log.get(target.collection)
            return (
                self._closed
                or since < self._compacted
                or known != (self._cuts, self._bookmarks)
                or (bool(log) and log is not None and log[-1].version > since)
            )

        return self._changed.wait_for(news, timeout_s)

    def _after(self, target: Target, since: int) -> list[_Change]:
        log = self._log.get(target.collection, [])
        return log[bisect.bisect_right(log, since, key=lambda change: change.version) :]

    def _next(self) -> int:
        self._version = next(self._versions)
        return self._version

    def _record(self, target: Target, change: _Change) -> None:
        self._log.setdefault(target.collection, []).append(change)
        self._changed.notify_all()


def key_of(obj: JsonObject) -> tuple[str, str]:
    """Namespace and name, by which lists are sorted."""
    return obj["metadata"].get("namespace", ""), obj["metadata"]["name"]


def _seen(change: _Change, wanted: selectors.Wanted) -> JsonObject | None:
    """A change as a watch with selectors sees it: an object that stops to match is deleted for it."""
    now = change.obj is not None and wanted(change.obj)
    before = change.before is not None and wanted(change.before)
    if now:
        return {"type": "MODIFIED" if before else "ADDED", "object": clone(change.last)}
    return {"type": "DELETED", "object": clone(change.last)} if before else None
