"""What a watch makes of good and bad answers: asked ever more seldom, and never the end of the watch."""

import itertools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import orjson
import pytest

from gpushare.kube import api as kube, client
from gpushare.kube.watch import Reflector
from testing.builders import Json
from testing.clock import ManualClock

PATH = "/api/v1/pods"
LIST: Json = {"metadata": {"resourceVersion": "7"}, "items": []}
POD: Json = {"metadata": {"name": "p", "resourceVersion": "8"}}


class Sink:
    def __init__(self) -> None:
        self.names: list[str] = []

    def read(self, obj: Json) -> str | None:
        name = str(obj["metadata"]["name"])
        return None if name.startswith("other") else name

    def replace(self, found: list[str]) -> None:
        self.names = list(found)

    def upsert(self, found: str) -> None:
        self.names.append(found)

    def remove(self, found: str) -> None:
        self.names.remove(found)


class Server(ManualClock):
    """Answers lists and watches from scripts, whose last line repeats; stops the reflector after so many requests.

    Time passes only when the reflector waits, for `answer_s` before each answer, and in streams that say so.
    """

    def __init__(self, lists: list[Any], streams: list[Any], requests: int = 60, answer_s: float = 0.0) -> None:
        super().__init__(0.0)
        self.answer_s = answer_s
        self.stop = threading.Event()
        self.sink = Sink()
        self.reflector = Reflector(api=self, path=PATH, sink=self.sink, clock=self)  # type: ignore[arg-type]
        self.listed: list[tuple[float, dict[str, str]]] = []
        self.watched: list[tuple[float, str]] = []
        self._lists, self._streams, self._left = lists, streams, requests

    def run(self) -> "Server":
        self.reflector.run(self.stop)
        return self

    def list_page(
        self, path: str, params: dict[str, str], *, keep: Callable[[Json], Any], timeout_s: float = 300.0
    ) -> kube.Page[Any]:
        self.listed.append((self.at, dict(params)))
        answer = self._next(self._lists)
        return client.page_in(f"GET {path}", [orjson.dumps(answer)], keep)

    def watch(self, path: str, params: dict[str, str], *, timeout_s: float) -> Iterator[Json]:
        self.watched.append((self.at, params["resourceVersion"]))
        return self._stream(self._next(self._streams))

    def _stream(self, answer: list[Any]) -> Iterator[Json]:
        for event in answer:
            if isinstance(event, float):
                self.at += event
            elif isinstance(event, Exception):
                raise event
            else:
                yield event

    def _next(self, script: list[Any]) -> Any:
        self._left -= 1
        if self._left <= 0:
            self.stop.set()
        self.at += self.answer_s
        answer = script.pop(0) if len(script) > 1 else script[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


def event(kind: str, name: str) -> Json:
    return {"type": kind, "object": {"metadata": {"name": name, "resourceVersion": "8"}}}


def test_what_is_there_and_what_comes_and_goes_is_mirrored() -> None:
    there = [event("", name)["object"] for name in ("a", "b", "other-a")]
    changes = [event("MODIFIED", "other-a"), event("DELETED", "other-b"), event("ADDED", "c"), event("DELETED", "a")]
    server = Server([{**LIST, "items": there}], [changes], requests=3)
    assert not server.reflector.synced.is_set()
    server.run()
    assert server.reflector.synced.is_set()
    assert server.sink.names == ["b", "c"]


@pytest.mark.parametrize(("kind", "names"), [("ADDED", ["p"]), ("BOOKMARK", [])])
def test_a_cut_stream_is_resumed_where_it_ended_without_a_new_list(kind: str, names: list[str]) -> None:
    server = Server([LIST], [[event(kind, "p"), kube.UnreachableError("cut")], [9.0]], requests=3).run()
    assert (len(server.listed), [version for _, version in server.watched]) == (1, ["7", "8"])
    assert server.sink.names == names


ERROR_410 = {"type": "ERROR", "object": {"kind": "Status", "code": 410, "message": "too old"}}


@pytest.mark.parametrize(
    "stream",
    [
        *(kube.GoneError("too old"), kube.ForbiddenError("no"), kube.TooManyRequestsError("later")),
        *(kube.ServerFaultError("oops"), [ERROR_410], [{"type": "ERROR", "object": {"code": "x"}}], [{}]),
    ],
)
def test_a_watch_that_always_fails_costs_a_list_every_ten_seconds_at_most(stream: Any) -> None:
    server = Server([LIST], [stream]).run()
    later = [at for at, _ in server.listed if at > 30]
    assert all(b - a >= 5 for a, b in itertools.pairwise(later))
    assert server.at > 100


@pytest.mark.parametrize("stream", [kube.GoneError("too old"), [ERROR_410]])
def test_a_fresh_version_that_has_always_expired_costs_pauses_however_long_answers_take(stream: Any) -> None:
    server = Server([LIST], [stream], answer_s=6.0).run()
    later = [at for at, _ in server.listed if at > 150]
    assert len(later) > 5
    assert all(b - a >= 6 + 6 + 5 for a, b in itertools.pairwise(later))
    assert server.reflector.failing(0) == "too old"


def test_lists_that_always_expire_cost_pauses_ever_more_seldom() -> None:
    server = Server([kube.GoneError("continue is too old")], [[9.0]], answer_s=6.0).run()
    later = [at for at, _ in server.listed[10:]]
    assert len(later) > 5
    assert all(b - a >= 6 + 5 for a, b in itertools.pairwise(later))
    server = Server([kube.GoneError("continue is too old")], [[9.0]]).run()
    assert server.at > 100


@pytest.mark.parametrize("gone", [kube.GoneError("too old"), [ERROR_410]])
def test_a_version_that_expired_after_a_long_stream_is_listed_again_at_once(gone: Any) -> None:
    server = Server([LIST], [[60.0], gone, [1.0]], requests=5).run()
    assert [at for at, _ in server.listed] == [0.0, 60.0]


def test_a_stream_that_lasted_or_delivered_events_counts_as_a_success() -> None:
    assert Server([LIST], [[10.0]], requests=4).run().at == 30  # no waits in between
    server = Server([LIST], [[{"type": "ADDED", "object": POD}]]).run()
    assert server.watched[-1][0] <= 59 * 0.2
    assert server.watched[-1][1] == "8"
    server = Server([LIST], [kube.TooManyRequestsError("later")], requests=10).run()
    assert (len(server.listed), len(server.watched)) == (1, 9)


@pytest.mark.parametrize("item", [None, {}, {"metadata": {}}])
def test_a_list_that_is_none_is_asked_for_again(item: Json | None, caplog: pytest.LogCaptureFixture) -> None:
    server = Server([{**LIST, "items": [item]}, {**LIST, "items": [POD]}], [[9.0]], requests=3).run()
    assert server.sink.names == ["p"]
    assert caplog.messages == ["watch failed"]


def test_a_list_whose_items_are_null_is_empty_and_a_page_that_expired_restarts_it() -> None:
    server = Server([{**LIST, "items": None}], [[9.0]], requests=2).run()
    assert len(server.listed) == 1
    assert server.sink.names == []
    first = {"metadata": {"resourceVersion": "7", "continue": "token"}, "items": [POD]}
    gone = kube.GoneError("too old")
    server = Server([first, gone, gone, {**LIST, "items": [POD]}], [[9.0]], requests=5).run()
    assert [params.get("continue") for _, params in server.listed] == [None, None, "token", None]
    assert server.sink.names == ["p"]
    assert server.at < 9.3


@pytest.mark.parametrize(
    "event",
    [
        *({"object": POD}, {"type": "ADDED"}, {"type": "ADDED", "object": None}, {"type": "ADDED", "object": {}}),
        {"type": "ADDED", "object": {"metadata": {"name": "x"}}},
        {"type": "CHANGED", "object": POD},
        {"type": None, "object": POD},
    ],
)
def test_an_event_that_is_none_leads_to_a_new_list(event: Json) -> None:
    server = Server([LIST, {**LIST, "items": [POD]}], [[event], [9.0]], requests=4).run()
    assert len(server.listed) == 2
    assert server.sink.names == ["p"]


@pytest.mark.parametrize(
    ("lists", "streams"),
    [
        ([kube.UnreachableError("no route")], [[9.0]]),
        ([{}], [[9.0]]),
        ([LIST, kube.ServerFaultError("oops")], [kube.GoneError("too old")]),
    ],
    ids=["never listed", "no list", "never watched"],
)
def test_a_collection_that_cannot_be_read_grows_stale(lists: list[Any], streams: list[Any]) -> None:
    server = Server(lists, streams)
    server.at = 5.0  # it counts from the start of the work
    assert server.run().reflector.stale_for() == server.at - 5.0 > 100


@pytest.mark.parametrize("kind", ["BOOKMARK", "ADDED"])
def test_every_event_is_a_sign_of_life(kind: str) -> None:
    server = Server([LIST], [[60.0, event(kind, "p"), 7.0]], requests=2)
    assert server.run().reflector.stale_for() == 0
    assert server.at == 60


def test_a_quiet_watch_that_the_server_accepts_again_is_neither_stale_nor_failing() -> None:
    server = Server([LIST], [[95.0, kube.UnreachableError("quiet")]], requests=5)
    reflector = server.run().reflector
    assert server.at > 300
    assert reflector.stale_for() <= 95
    assert reflector.failing(10) == ""


def test_why_a_collection_cannot_be_read_is_told_after_a_while_and_until_it_can() -> None:
    server = Server([LIST, kube.ForbiddenError("Unauthorized")], [kube.GoneError("too old")], requests=12)
    reflector = server.reflector
    assert reflector.failing(0) == ""
    server.run()
    assert reflector.failing(10) == "Unauthorized"
    assert reflector.failing(server.at + 1) == ""
    server.stop.clear()
    server._lists, server._streams, server._left = [LIST], [[9.0]], 2
    server.run()
    assert reflector.failing(0) == ""
