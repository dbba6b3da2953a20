"""A collection of more than a page is read whole from the real API server, from its cache where that is fresh."""

import threading
from collections.abc import Callable

import pytest

from gpushare.kube.api import JsonObject
from gpushare.kube.watch import Reflector
from gpushare.runtime.clock import SystemClock
from tests.apiserver.server import Server

COUNT = 620


class Names:
    """The first list, with what is to happen while it is read."""

    def __init__(self, during: Callable[[], object] = lambda: None) -> None:
        self.stop, self.found = threading.Event(), list[str]()
        self._during = during

    def read(self, obj: JsonObject) -> str:
        if (name := str(obj["metadata"]["name"])) == "c-0007":
            self._during()
            self._during = lambda: None
        return name

    def replace(self, found: list[str]) -> None:
        self.found = [name for name in found if name.startswith("c-")]
        self.stop.set()

    def upsert(self, found: str) -> None: ...

    def remove(self, found: str) -> None: ...


def listed(server: Server, path: str, names: Names) -> list[str]:
    Reflector(api=server.api, path=path, sink=names, clock=SystemClock()).run(names.stop)
    return sorted(names.found)  # the cache of an old server has no order


@pytest.fixture
def path(server: Server, namespace: str) -> str:
    """Of a collection of so many objects."""
    path = f"/api/v1/namespaces/{namespace}/configmaps"
    for i in range(COUNT):
        server.api.create(path, {"metadata": {"name": f"c-{i:04}"}})
    return path


def test_a_list_is_whole_and_not_older_than_the_moment_it_was_asked_for(
    server: Server, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing changes in the collection, so the cache of an old server may not get there; the list is whole anyway."""
    assert listed(server, path, Names()) == [f"c-{i:04}" for i in range(COUNT)]
    caplog.clear()
    # What is written after the first page moves the cache on, and is seen.
    names = Names(during=lambda: server.api.create(path, {"metadata": {"name": "c-new"}}))
    found = listed(server, path, names)
    assert found == [*(f"c-{i:04}" for i in range(COUNT)), "c-new"]
    assert "list not from the cache" not in caplog.messages
