"""What `gpushare dashboard` says in the terminal, what a page is sent, and who is answered."""

import io
import json
import stat
import threading
import webbrowser
from collections.abc import Iterator
from dataclasses import replace
from http import HTTPStatus
from pathlib import Path
from types import SimpleNamespace
from typing import cast
from urllib.parse import unquote, urlsplit

import pytest

from gpushare.runtime.clock import SystemClock
from gpushare_cli import top
from gpushare_cli.console import Streams
from gpushare_cli.dashboard import browser, command, routes, server
from gpushare_cli.dashboard.feed import Feed
from gpushare_cli.dashboard.live import Live
from gpushare_cli.dashboard.model import NodeView, Overview, Totals, Waiting
from gpushare_cli.dashboard.routes import Answer, Asset, Request, Site, Stream
from gpushare_cli.dashboard.state import Changes, State
from testing import clusters

ADDRESS = "http://127.0.0.1:8127/#key=secret&x"


class Troubled:
    """A picture whose cluster cannot be read for a while."""

    def __init__(self, *problems: str) -> None:
        self._problems: Iterator[str] = iter(problems)
        self.ended = False

    @property
    def problem(self) -> str:
        found = next(self._problems, None)
        self.ended = found is None
        return found or ""


def test_that_the_cluster_cannot_be_read_is_told_once_and_so_is_the_end_of_that() -> None:
    live, err, stop = (
        Troubled("", "pods cannot be read", "pods cannot be read", "", ""),
        io.StringIO(),
        threading.Event(),
    )
    stop.set()  # so that nothing waits
    streams = Streams(out=err, err=err)
    command._follow(cast("Live", live), streams, SystemClock(), stop, lambda: live.ended)
    assert err.getvalue() == "note: pods cannot be read\nnote: the cluster can be read again\n"


def test_a_browser_gets_a_file_because_everyone_may_read_its_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    called = threading.Event()

    def open_it(uri: str) -> None:
        opened.append(uri)
        called.set()

    monkeypatch.setattr(webbrowser, "get", lambda: SimpleNamespace(open=open_it))
    with browser.showing(ADDRESS) as shown:
        assert shown
        called.wait()
        [uri] = opened
        assert "secret" not in uri
        file = Path(unquote(urlsplit(uri).path))
        assert 'content="0; url=http://127.0.0.1:8127/#key=secret&amp;x"' in file.read_text()
        assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert not file.parent.exists()


def test_a_machine_without_a_browser_is_no_fault(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> None:
        raise webbrowser.Error("could not locate runnable browser")

    monkeypatch.setattr(webbrowser, "get", none)
    err = io.StringIO()
    asked = command.Options(port=0, browser=True)
    assert command.run(live, Streams(out=io.StringIO(), err=err), asked, SystemClock(), lambda: True) == 0
    assert err.getvalue().splitlines()[-1] == "note: no browser was found on this machine"


@pytest.fixture
def live() -> Iterator[Live]:
    """Has read the cluster, and does nothing by itself."""
    stop = threading.Event()
    found = command.picture(clusters.small(), top.Options(), lambda: "default", SystemClock())
    for each in found._reflectors.values():
        threading.Thread(target=each.run, args=(stop,), daemon=True).start()
    while not found.is_read:
        stop.wait(0.01)
    yield found
    stop.set()


def used(live: Live) -> int | None:
    assert live.feed.picture is not None
    return live.feed.picture.overview.totals.used_mib


def test_use_that_comes_while_a_picture_is_drawn_is_in_the_next_one(
    live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    live.refresh()
    take = State.take_changes

    def take_and_be_overtaken(state: State) -> Changes:
        changes = take(state)
        live.ask_use()
        return changes

    with monkeypatch.context() as overtaken:
        overtaken.setattr(State, "take_changes", take_and_be_overtaken)
        live.refresh()
    assert (live.asked.is_set(), used(live)) == (False, None)
    live.refresh()
    assert (live.asked.is_set(), used(live)) == (True, 11 * 1024)


def test_use_is_not_said_to_be_known_before_its_nodes_are_drawn_again(
    live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    live.refresh()
    mark = State.mark

    def draw_and_mark(state: State, names: list[str]) -> None:
        live.refresh()
        mark(state, names)

    with monkeypatch.context() as overtaking:
        overtaking.setattr(State, "mark", draw_and_mark)
        live.ask_use()
    assert (live.asked.is_set(), used(live)) == (False, None)


def test_a_pod_is_gone_once_it_is_deleted_and_not_when_it_has_changed() -> None:
    state, pod = State(), {"spec": {"nodeName": "a"}}
    gone = []
    for each in ({}, pod, None):
        state.put_pod("u", each)
        gone.append(state.take_changes().gone)
    assert gone == [(), (), (pod,)]


OVERVIEW = Overview(server="s", complete=True, scope="", totals=Totals())


def node(name: str, address: str = "a") -> NodeView:
    return NodeView(name=name, address=address, known=True, cards=())


def publish(feed: Feed, *nodes: NodeView, gone: str = "", overview: Overview = OVERVIEW) -> None:
    feed.publish({**{each.name: each for each in nodes}, **({gone: None} if gone else {})}, overview, (), ())


def since(feed: Feed, version: int) -> dict[str, object]:
    found: dict[str, object] = json.loads(b"".join(feed.since(version)[1]))
    return found


def names(sent: dict[str, object]) -> list[str]:
    nodes = sent["nodes"]
    assert isinstance(nodes, list)
    return [each["name"] for each in nodes]


def test_a_new_page_gets_everything() -> None:
    feed = Feed()
    publish(feed, node("a"), node("b"))
    sent = since(feed, 0)
    assert (sent["full"], names(sent)) == (True, ["a", "b"])
    assert sent.keys() == {"full", "nodes", "overview", "waiting", "happenings"}


def test_a_page_that_has_a_version_gets_what_is_new_since() -> None:
    feed = Feed()
    publish(feed, node("a"), node("b"))
    publish(feed, node("a"), node("b", "other"))
    sent = since(feed, 1)
    assert sent.keys() == {"full", "nodes"}
    assert (sent["full"], names(sent)) == (False, ["b"])


def test_what_has_not_changed_makes_no_version() -> None:
    feed = Feed()
    publish(feed, node("a"))
    publish(feed, node("a"))
    assert feed.wait(0, 0) == 1


def test_a_node_that_is_gone_is_told_to_pages_that_had_it() -> None:
    feed = Feed()
    publish(feed, node("a"))
    publish(feed, gone="a")
    assert since(feed, 1) == {"full": False, "nodes": [], "gone": ["a"]}
    assert names(since(feed, 0)) == []
    assert feed.picture is not None
    assert not feed.picture.nodes
    publish(feed, node("a"))
    assert names(since(feed, 2)) == ["a"]


def test_a_node_that_never_was_is_not_gone() -> None:
    feed = Feed()
    publish(feed, node("a"))
    publish(feed, gone="never")
    assert feed.wait(0, 0) == 1


def test_who_waits_is_told_of_the_next_version() -> None:
    feed = Feed()
    publish(feed, node("a"))
    found: list[int] = []
    thread = threading.Thread(target=lambda: found.append(feed.wait(1, 300)))
    thread.start()
    publish(feed, node("b"))
    thread.join()
    assert found == [2]


def test_a_part_that_changes_alone_is_sent_alone() -> None:
    feed = Feed()
    publish(feed, node("a"))
    pod = Waiting(namespace="n", name="p", others=0, asks="", headline="", reason="", good=False, since="")
    feed.publish({}, OVERVIEW, (pod,), ())
    assert since(feed, 1).keys() == {"full", "nodes", "waiting"}


@pytest.mark.parametrize("mib", [0, 3 * 2**63])
def test_characters_that_hide_are_shown_beside_numbers_that_only_a_forged_pod_has_too(mib: int) -> None:
    feed = Feed()
    notes = ("a\u202eb\u009bc\u00ad\u00e9",)
    publish(feed, node("a"), overview=replace(OVERVIEW, totals=Totals(granted_mib=mib), notes=notes))
    sent = since(feed, 0)["overview"]
    assert isinstance(sent, dict)
    assert (sent["totals"]["granted_mib"], sent["notes"]) == (mib, ["a\\u202eb\\u009bc\u00ad\u00e9"])


def test_a_picture_is_in_memory_once_for_all_who_read_it() -> None:
    feed = Feed()
    publish(feed, *(node(str(number), "x" * 1000) for number in range(10)))
    one, other = ([id(piece) for piece in feed.since(0)[1] if len(piece) > 1000] for _ in range(2))
    assert len(one) == 10
    assert one == other


def test_a_large_picture_is_sent_in_parts_for_each_of_which_a_slow_network_has_the_whole_time() -> None:
    pieces = [b"x" * 30_000] * 10 + [b"y" * 200_000, b"z"]
    batches = list(server._batches(pieces))
    assert b"".join(batches) == b"".join(pieces)
    assert [len(batch) for batch in batches] == [90_000, 90_000, 90_000, 230_000, 1]


SITE = Site(assets={"/": Asset(media="text/html", body=b"page")}, key="secret", run="run1")
LOCAL = {"host": "127.0.0.1:8127"}
STREAM = "/stream?key=secret"


def ask(target: str = "/", method: str = "GET", **headers: str) -> Answer | Stream:
    found = {**LOCAL, **{key.replace("_", "-"): value for key, value in headers.items()}}
    return SITE.answer(Request(method=method, target=target, headers=found))


def status(*arguments: str, **headers: str) -> HTTPStatus:
    answer = ask(*arguments, **headers)
    assert isinstance(answer, Answer)
    return answer.status


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "127.0.0.1:8127", "localhost:9000", "LOCALHOST", "[::1]:8127", "127.1.2.3:8127"]
)
def test_names_of_the_loopback_address_are_answered(host: str) -> None:
    assert status(host=host) is HTTPStatus.OK


@pytest.mark.parametrize(
    "host",
    [
        "",
        "evil.example",
        "evil.example:8127",
        "127.0.0.1.evil.example",
        "localhost.evil.example",
        "10.0.0.1:8127",
        "0.0.0.0:8127",
        "[::]:8127",
        "2130706433",
        "127.0.0.1:8127@evil.example",
        "localhost:8127:1",
        "localhost, evil.example",
        "user@localhost",
        "[::1",
    ],
)
def test_other_names_are_not_answered_wherever_they_lead(host: str) -> None:
    assert status(host=host) is HTTPStatus.MISDIRECTED_REQUEST


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT", "get"])
def test_nothing_can_be_changed(method: str) -> None:
    assert status("/", method) is HTTPStatus.METHOD_NOT_ALLOWED


@pytest.mark.parametrize(
    "target",
    [
        "/stream",
        "/stream?",
        "/stream?other=secret",
        *(f"/stream?key={key}" for key in ("", "wrong", "secre", "s%C3%A9cret", "secret&key=wrong")),
    ],
)
def test_without_the_key_nothing_of_the_cluster_is_told(target: str) -> None:
    assert status(target) is HTTPStatus.FORBIDDEN


def test_a_cookie_is_no_key_because_browsers_send_it_to_all_ports() -> None:
    assert status("/stream", cookie="key=secret; gpushare-dashboard-8127=secret") is HTTPStatus.FORBIDDEN
    for target in ("/", "/?key=secret", "/app.js"):
        answer = ask(target)
        assert isinstance(answer, Answer)
        assert "Set-Cookie" not in answer.headers


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_what_another_site_asks_for_is_not_told_even_with_the_key(site: str) -> None:
    assert status("/app.js", sec_fetch_site=site) is HTTPStatus.FORBIDDEN
    assert status(STREAM, sec_fetch_site=site) is HTTPStatus.FORBIDDEN


def test_a_link_to_the_page_may_be_followed_from_anywhere() -> None:
    assert status("/", sec_fetch_site="cross-site") is HTTPStatus.OK


@pytest.mark.parametrize("target", ["/none", "/../etc/passwd", "//evil.example/", "/%2e%2e/x"])
def test_only_the_files_of_the_page_are_there(target: str) -> None:
    assert status(target) is HTTPStatus.NOT_FOUND


@pytest.mark.parametrize("target", ["http://evil.example/", "*", "", "/" + "x" * 5000])
def test_what_is_no_path_is_refused(target: str) -> None:
    assert status(target) is HTTPStatus.BAD_REQUEST


@pytest.mark.parametrize(
    ("last", "since"), [("", 0), ("run1.7", 7), ("run0.7", 0), ("run1.", 0), ("run1.-1", 0), ("x", 0), ("run1.7.7", 0)]
)
def test_a_stream_goes_on_where_this_process_stopped(last: str, since: int) -> None:
    assert ask(STREAM, last_event_id=last) == Stream(since=since)


@pytest.mark.parametrize("target", ["/stream", "/stream?key=of-an-earlier-run"])
def test_without_a_key_anyone_on_the_loopback_address_may_look(target: str) -> None:
    site = Site(assets=SITE.assets, key="", run="r")
    assert site.answer(Request(method="GET", target=target, headers=LOCAL)) == Stream(since=0)


def test_the_page_runs_no_script_but_its_own_files() -> None:
    policy = dict(part.strip().split(" ", 1) for part in routes.HEADERS["Content-Security-Policy"].split(";"))
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
    assert policy["frame-ancestors"] == policy["trusted-types"] == policy["base-uri"] == "'none'"
    assert "unsafe" not in routes.HEADERS["Content-Security-Policy"]


def test_the_files_of_the_page_ask_no_other_server_and_make_no_markup_of_text() -> None:
    for path, asset in server.assets().items():
        text = asset.body.decode().replace("http://www.w3.org/2000/svg", "")
        assert "http://" not in text, path
        assert "https://" not in text, path
        for sink in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "style=", "onclick"):
            assert sink not in text, (path, sink)
    kinds = [server.assets()[path].media.partition(";")[0] for path in ("/", "/app.js", "/style.css", "/icon.svg")]
    assert kinds == ["text/html", "text/javascript", "text/css", "image/svg+xml"]
