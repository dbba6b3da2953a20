"""Lists and watches of large collections: read in pieces, fresh, and always with an end."""

import gc
import re
import threading
from collections.abc import Callable, Iterator
from typing import Any

import orjson
import pytest
from hypothesis import example, given, strategies as st

from gpushare.kube import api as kube, client
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


names = st.text(max_size=6) | st.sampled_from(["metadata", "items", '},{"metadata":{', '"', "\\", "]", "{"])
values = st.recursive(
    st.none() | st.booleans() | st.integers(0, 9) | names,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
    max_leaves=8,
)
objects = st.fixed_dictionaries({"metadata": st.dictionaries(names, values, max_size=2), "spec": values})
indented = st.sampled_from([None, orjson.OPT_INDENT_2])


def answer(items: Any, *, last: bool = False, **metadata: str) -> bytes:
    """As the API server writes a list; built-in collections have their metadata first, others last."""
    head: Json = {"kind": "PodList", "metadata": {"resourceVersion": "7", **metadata}}
    return orjson.dumps({"items": items, **head} if last else {**head, "items": items})


def _parts(data: bytes, size: int) -> Iterator[bytes]:
    for at in range(0, len(data), size):
        yield data[at : at + size]


@given(st.lists(objects, max_size=4), st.integers(1, 40), st.booleans(), indented)
@example([{"metadata": {}, "spec": [{"a": 1}, {"metadata": {}}]}, {"metadata": {}, "spec": None}], 7, False, None)
def test_a_list_is_read_alike_however_it_is_cut(items: list[Json], size: int, last: bool, indent: int | None) -> None:
    data = orjson.dumps(orjson.loads(answer(items, last=last, **{"continue": "x"})), option=indent)
    page = client.page_in("GET /x", _parts(data, size), lambda obj: obj)
    assert (page.items, page.version, page.more) == (items, "7", "x")


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (b"", "Input is a zero-length, empty document"),
        (b"<html>", "unexpected character"),
        (b"[]", "the answer is not an object"),
        (b"{}", "no resourceVersion"),
        (b'{"metadata":[],"items":[]}', "no resourceVersion"),
        (b'{"metadata":{"resourceVersion":7},"items":[]}', "no resourceVersion"),
        (b'{"metadata":{"resourceVersion":"7"},"items":{}}', "items is not a list"),
        (b'{"metadata":{"resourceVersion":"7"},"items":[null]}', "an item is not an object"),
        (b'{"metadata":{"resourceVersion":"7"},"items":[[]]}', "an item is not an object"),
        (b'{"metadata":{"resourceVersion":"7"},"items":[{} {}]}', "followed by neither a comma nor"),
        (b'{"metadata":{"resourceVersion":"7"},"items":[{}', "it ends in the middle of the list"),
        (b'{"metadata":{"resourceVersion":"7"},"items":[{},', "it ends in the middle of the list"),
        (b'{"metadata":{"resourceVersion":"7"},"items":[{"a":"b', "it ends in the middle of an object"),
        (b'{"metadata":{"resourceVersion":"7"},"items":[{"a":]}]}', "unexpected character"),
        (b'{"metadata":{"resourceVersion":"7"},"items":[]', "unexpected end of data"),
        (b'{"metadata":{"items":[]}}{', "unexpected content after document"),
    ],
)
def test_what_is_no_list_is_the_servers_fault(body: bytes, problem: str) -> None:
    with pytest.raises(kube.ServerFaultError, match=f"^GET /x: answer is not a list .*{re.escape(problem)}"):
        client.page_in("GET /x", [body] if body else [], lambda obj: obj)


def test_never_more_than_one_object_is_taken_from_the_network() -> None:
    """A page of a thousand objects is not read further than the object that is looked at."""
    taken = 0

    def chunks() -> Iterator[bytes]:
        nonlocal taken
        for part in _parts(answer([{"metadata": {"name": str(i)}, "pad": "x" * 1000} for i in range(1000)]), 4096):
            taken += 1
            yield part

    ahead: list[int] = []
    page = client.page_in(
        "GET /x", chunks(), lambda obj: ahead.append(taken * 4096 // 1040 - int(obj["metadata"]["name"]))
    )
    assert len(page.items) == 1000
    assert max(ahead) < 9


def test_the_object_before_is_gone_when_the_next_one_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    class ClusterCache(dict[str, Any]):
        alive = 0

        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            ClusterCache.alive += 1

        def __del__(self) -> None:
            ClusterCache.alive -= 1

    seen: list[int] = []

    class Counting(client._Objects):
        def _taken(self, end: int, parse: Callable[[bytes], Any]) -> Json:
            return ClusterCache(super()._taken(end, parse))

    def look(_: Json) -> None:
        seen.append(ClusterCache.alive)

    monkeypatch.setattr(client, "_Objects", Counting)
    client.page_in("GET /x", _parts(answer([{"metadata": {}}] * 5), 10), look)
    assert seen == [1] * 5


def test_managed_fields_that_nest_too_deep_or_imitate_the_end_of_an_object_hide_nothing() -> None:
    deep = b'{"f:]":' * 3000 + b'[{"a":1},{"metadata":{}}]' + b"}" * 3000
    item = b'{"metadata":{"managedFields":[{"fieldsV1":' + deep + b'}],"name":"a"}}'
    body = b'{"metadata":{"resourceVersion":"7"},"items":[' + b",".join([item] * 3) + b"]}"
    page = client.page_in("GET /x", _parts(body, 1000), lambda obj: obj["metadata"])
    assert page.items == [{"managedFields": None, "name": "a"}] * 3


@pytest.mark.parametrize("size", [1000, 4000])
def test_an_object_beyond_all_bounds_is_refused(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "LARGEST", 10_000)
    small, large = {"metadata": {"name": "a" * 9000}}, {"metadata": {"name": "a" * 20_000}}
    assert len(client.page_in("GET /x", _parts(answer([small] * 9), size), lambda obj: obj).items) == 9
    with pytest.raises(kube.ServerFaultError, match="an object is larger than 10000 bytes"):
        client.page_in("GET /x", _parts(answer([small, large]), size), lambda obj: obj)
    assert list(client.lines_in(_parts(b"x" * 9000 + b"\n", size))) == [b"x" * 9000]
    with pytest.raises(ValueError, match="a line is larger than 10000 bytes"):
        list(client.lines_in(_parts(b"x" * 20_000 + b"\n", size)))


@given(st.lists(st.binary(max_size=9).filter(lambda line: b"\n" not in line)), st.integers(1, 12))
def test_lines_are_read_alike_however_they_are_cut(lines: list[bytes], size: int) -> None:
    data = b"".join(line + b"\n" for line in lines) + b"unfinished"
    assert list(client.lines_in(_parts(data, size))) == [line for line in lines if line]
