"""Lists of large collections: as fresh as the store, whatever the cache answers, and always with an end."""

import gc
import threading
from collections.abc import Callable
from typing import Any

import pytest

from gpushare.kube import api as kube
from gpushare.kube.watch import Reflector
from testing.builders import Json, make_pod
from testing.clock import ManualClock
from testing.fakes.kube import Call, FakeKube

PODS = "/api/v1/pods"
NAMESPACE = "/api/v1/namespaces/default/pods"


class Copy:
    """The names that a sink knows; the first list that it is told of ends the work, unless it says otherwise."""

    def __init__(self, lists: int = 1) -> None:
        self.stop = threading.Event()
        self.names: list[str] = []
        self.before_each: Callable[[str], object] = lambda _: None
        self.lists = lists

    def read(self, obj: Json) -> str:
        name: str = obj["metadata"]["name"]
        self.before_each(name)
        return name

    def replace(self, found: list[str]) -> None:
        self.names = found
        self.lists -= 1
        if self.lists == 0:
            self.stop.set()

    def upsert(self, found: str) -> None:
        raise AssertionError(f"{found}: a watch came before the last list")

    remove = upsert


def listed(api: FakeKube, copy: Copy) -> list[dict[str, str]]:
    """The parameters of all lists until the copy has stopped."""
    Reflector(api=api, path=PODS, sink=copy, clock=ManualClock(0)).run(copy.stop)
    return [dict(call.params) for call in api.calls if call.verb == "list"]


def crowded(count: int = 1101) -> FakeKube:
    api = FakeKube()
    for i in range(count):
        api.seed(NAMESPACE, make_pod(name=f"p{i:04}"))
    api.close()
    return api


def is_list(**params: str) -> Callable[[Call], bool]:
    return lambda call: call.verb == "list" and all(call.params.get(key) == value for key, value in params.items())


def test_a_small_collection_is_one_page_from_the_store_and_a_large_one_comes_from_a_fresh_cache() -> None:
    api, copy = crowded(500), Copy()
    assert listed(api, copy) == [{"limit": "500"}]
    assert len(copy.names) == 500
    api, copy = crowded(), Copy()
    first, whole = listed(api, copy)
    assert first == {"limit": "500"}
    assert whole == {"resourceVersion": "1102", "resourceVersionMatch": "NotOlderThan"}
    assert copy.names == [f"p{i:04}" for i in range(1101)]


@pytest.mark.parametrize(
    "error",
    [
        kube.ServerFaultError("Too large resource version"),
        kube.UnreachableError("cut"),
        kube.TooManyRequestsError("later"),
        kube.BadRequestError("resourceVersionMatch: Invalid value"),
    ],
)
def test_without_the_cache_the_pages_come_from_the_store(error: kube.KubeError) -> None:
    api, copy = crowded(), Copy()
    api.fail_next(is_list(resourceVersionMatch="NotOlderThan"), error)
    pages = listed(api, copy)[2:]
    assert all("continue" in page and "resourceVersion" not in page for page in pages)
    assert copy.names == [f"p{i:04}" for i in range(1101)]


def test_a_cache_that_lags_is_not_believed() -> None:
    api, copy = crowded(), Copy()
    api.freeze_cache(PODS)
    api.seed(NAMESPACE, make_pod(name="new"))
    listed(api, copy)
    assert "new" in copy.names


def test_a_list_whose_version_expires_goes_on_and_is_made_again() -> None:
    """Whatever the pages before the break have missed is found by the next list; no watch comes in between."""
    api, copy = crowded(), Copy(lists=2)
    api.fail_next(is_list(resourceVersionMatch="NotOlderThan"), kube.ServerFaultError("no"), times=2)

    def compact_once(name: str) -> None:
        if name == "p0700":
            api.vanish(f"{NAMESPACE}/p0000")
            api.vanish(f"{NAMESPACE}/p1000")
            api.compact()
            copy.before_each = lambda _: None
            after.append(len(api.calls))

    after: list[int] = []
    copy.before_each = compact_once
    listed(api, copy)
    assert copy.names == [f"p{i:04}" for i in range(1101) if i not in {0, 1000}]
    assert api.count("watch") == 0
    assert after


def test_a_token_that_expires_again_and_again_ends_the_list() -> None:
    error = kube.GoneError("too old")
    error.more = "another"
    api, copy = crowded(), Copy()
    api.fail_next(is_list(resourceVersionMatch="NotOlderThan"), kube.ServerFaultError("no"))
    api.fail_next(lambda call: "continue" in call.params, error, times=2)
    params = listed(api, copy)
    assert [page.get("continue") == "another" for page in params] == [False, False, False, True, False, False]


def test_pages_get_smaller_while_they_fail_and_grow_again() -> None:
    api, copy = crowded(), Copy()
    api.fail_next(is_list(), kube.UnreachableError("cut after 60 s"), times=6)
    limits = [page["limit"] for page in listed(api, copy) if "limit" in page]
    assert limits == ["500", "125", "31", "7", "1", "1", "1"]
    api.calls.clear()
    copy = Copy()
    reflector = Reflector(api=api, path=PODS, sink=copy, clock=ManualClock(0))
    api.fail_next(is_list(), kube.UnreachableError("cut"))
    reflector.run(copy.stop)
    copy.stop.clear()
    copy.lists = 1
    reflector.run(copy.stop)
    assert [call.params["limit"] for call in api.calls if "limit" in call.params] == ["500", "125", "500"]


class Probe(Copy):
    """Notes whether the collector is at work."""

    def __init__(self) -> None:
        super().__init__()
        self.enabled: set[bool] = set()
        self.before_each = lambda _: self.enabled.add(gc.isenabled())


def test_the_collector_rests_during_a_list_and_is_at_work_after_one_that_fails() -> None:
    assert gc.isenabled()
    probe = Probe()
    frozen = gc.get_freeze_count()
    listed(crowded(600), probe)
    assert probe.enabled == {False}
    assert gc.isenabled()
    assert gc.get_freeze_count() != frozen
    gc.unfreeze()

    def fail(name: str) -> Any:
        copy.stop.set()
        raise ValueError(name)

    copy = Copy()
    copy.before_each = fail
    listed(crowded(1), copy)
    assert gc.isenabled()


def test_two_lists_at_once_do_not_wake_the_collector_up_early() -> None:
    outer, inner = Probe(), Probe()

    def nested(name: str) -> None:
        if name == "p0001":
            listed(crowded(2), inner)
        outer.enabled.add(gc.isenabled())

    outer.before_each = nested
    listed(crowded(5), outer)
    assert inner.enabled == outer.enabled == {False}
    assert gc.isenabled()
