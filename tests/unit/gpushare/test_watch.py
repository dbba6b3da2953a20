import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from gpushare.kube import api as kube
from gpushare.kube.watch import Reflector
from testing.builders import Json, make_pod
from testing.clock import ManualClock
from testing.fakes.kube import FakeKube

PODS = "/api/v1/pods"


def quick() -> ManualClock:
    """Its waits are short, but real enough to let another thread work."""
    return ManualClock(0, lambda _at: time.sleep(0.005))


class Collection:
    """What a sink knows."""

    def __init__(self) -> None:
        self.names: set[str] = set()
        self.lists = 0
        self._changed = threading.Condition()

    def read(self, obj: Json) -> str | None:
        name: str = obj["metadata"]["name"]
        return None if name.startswith("other") else name

    def replace(self, found: list[str]) -> None:
        with self._changed:
            self.names = set(found)
            self.lists += 1
            self._changed.notify_all()

    def upsert(self, found: str) -> None:
        with self._changed:
            self.names.add(found)
            self._changed.notify_all()

    def remove(self, found: str) -> None:
        with self._changed:
            self.names.remove(found)
            self._changed.notify_all()

    def wait_for(self, condition: Callable[["Collection"], bool]) -> None:
        with self._changed:
            self._changed.wait_for(lambda: condition(self))


@contextmanager
def running(api: FakeKube, **options: Any) -> Iterator[tuple[Collection, Reflector[str]]]:
    collection, stop = Collection(), threading.Event()
    reflector = Reflector(api=api, path=PODS, sink=collection, clock=quick(), **options)
    thread = threading.Thread(target=reflector.run, args=(stop,))
    thread.start()
    yield collection, reflector
    stop.set()
    api.close()
    thread.join()
    assert not thread.is_alive()


def seed(api: FakeKube, *names: str) -> None:
    for name in names:
        api.seed("/api/v1/namespaces/default/pods", make_pod(name=name))


def test_what_is_there_and_what_comes_and_goes_is_mirrored() -> None:
    api = FakeKube()
    seed(api, "a", "b")
    seed(api, "other-a")
    with running(api) as (collection, reflector):
        collection.wait_for(lambda m: m.names == {"a", "b"})
        assert reflector.synced.wait(5)
        seed(api, "other-b")
        api.vanish("/api/v1/namespaces/default/pods/other-b")
        seed(api, "c")
        api.vanish("/api/v1/namespaces/default/pods/a")
        collection.wait_for(lambda m: m.names == {"b", "c"})


def test_a_cut_stream_is_resumed_without_a_new_list() -> None:
    api = FakeKube()
    with running(api) as (collection, _):
        collection.wait_for(lambda m: m.lists == 1)
        api.cut()
        seed(api, "late")
        collection.wait_for(lambda m: m.names == {"late"})
        assert collection.lists == 1


def test_bookmarks_move_the_version_on() -> None:
    api = FakeKube()
    with running(api) as (collection, reflector):
        collection.wait_for(lambda m: m.lists == 1)
        api.seed("/api/v1/nodes", {"metadata": {"name": "n"}})
        version = reflector._version
        while reflector._version == version:
            api.bookmark()


def test_an_error_event_in_the_stream_is_an_error() -> None:
    api = FakeKube()

    class Once(FakeKube):
        def watch(self, path: str, params: kube.Params, *, timeout_s: float) -> Iterator[kube.JsonObject]:
            yield {"type": "ERROR", "object": {"kind": "Status", "code": 410, "message": "too old"}}

    reflector = Reflector(api=Once(), path=PODS, sink=Collection(), clock=quick())
    with pytest.raises(kube.GoneError, match="too old"):
        list(reflector._stream())
    api.close()
