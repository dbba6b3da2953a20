"""What `gpushare dashboard` says in the terminal, what a page is sent, and who is answered."""

import io
import json
import stat
import subprocess
import sys
import threading
import webbrowser
from collections.abc import Iterator
from dataclasses import replace
from http import HTTPStatus
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock
from urllib.parse import unquote, urlsplit

import pytest

from gpushare.runtime.clock import SystemClock
from gpushare.runtime.pages import Request, Response
from gpushare_cli import top
from gpushare_cli.console import Streams
from gpushare_cli.dashboard import command, views, watching
from gpushare_cli.dashboard.access import Scope
from gpushare_cli.dashboard.command import Site
from gpushare_cli.dashboard.picture import Live, Picture
from gpushare_cli.dashboard.views import NodeView, Overview, Totals
from gpushare_cli.dashboard.watching import Watched
from testing import clusters
from testing.builders import make_grant
from testing.cli.podding import bound

ADDRESS = "http://127.0.0.1:8127/#key=secret&x"


class Troubled:
    """A picture whose cluster cannot be read for a while."""

    scope = Scope()
    notes = ()

    def __init__(self, *problems: str) -> None:
        self._problems: Iterator[str] = iter(problems)
        self.ended = False
        self.watched = self

    def start(self, stop: threading.Event) -> None:
        stop.set()  # so that nothing waits

    def page(self) -> tuple[str, bytes]:
        raise AssertionError

    @property
    def problem(self) -> str:
        found = next(self._problems, None)
        self.ended = found is None
        return found or ""


def test_that_the_cluster_cannot_be_read_is_told_once_and_so_is_the_end_of_that() -> None:
    live, err = Troubled("", "pods cannot be read", "pods cannot be read", "", ""), io.StringIO()
    streams, asked = Streams(out=io.StringIO(), err=err), command.Options(port=0)
    assert command.run(cast("Live", live), streams, asked, SystemClock(), lambda: live.ended) == 0
    assert err.getvalue().splitlines()[1:] == ["note: pods cannot be read", "note: the cluster can be read again"]


def test_the_image_has_none_of_the_libraries_that_other_commands_need() -> None:
    missing = ("rich", "shtab", "matplotlib", "kubernetes")
    script = f"import sys; sys.modules.update(dict.fromkeys({missing})); from gpushare_cli.__main__ import main; main()"
    done = subprocess.run([sys.executable, "-c", script, "dashboard", "--help"], capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")


def test_a_browser_gets_a_file_because_everyone_may_read_its_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    called = threading.Event()

    def open_it(uri: str) -> None:
        opened.append(uri)
        called.set()

    monkeypatch.setattr(webbrowser, "get", lambda: SimpleNamespace(open=open_it))
    with command.showing(ADDRESS) as shown:
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


def made() -> Live:
    return command.of_cluster(clusters.small(), top.Options(), lambda: "default", SystemClock())


@pytest.fixture
def live() -> Iterator[Live]:
    """Has read the cluster, and does nothing by itself."""
    stop = threading.Event()
    found = made()
    found.watched.start(stop)
    while not found.watched.is_read:
        stop.wait(0.01)
    yield found
    stop.set()


def used(live: Live) -> int | None:
    assert live.picture is not None
    return live.picture.overview.totals.used_mib


@pytest.mark.parametrize("meanwhile", ["take_changes", "mark"])
def test_use_is_not_said_to_be_known_before_its_nodes_are_drawn_again(
    meanwhile: str, live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes while a picture is drawn, or is drawn before its nodes are marked."""
    do = getattr(Watched, meanwhile)

    def overtaken(watched: Watched, *arguments: Any) -> Any:
        if meanwhile == "mark":
            live.tick()
        done = do(watched, *arguments)
        if meanwhile == "take_changes":
            live.ask_use()
        return done

    live.tick()
    with monkeypatch.context() as overtaking:
        overtaking.setattr(Watched, meanwhile, overtaken)
        (live.ask_use if meanwhile == "mark" else live.tick)()
    assert (live.asked.is_set(), used(live)) == (False, None)
    live.tick()
    assert (live.asked.is_set(), used(live)) == (True, 11 * 1024)


def test_a_pod_is_gone_once_it_is_deleted_and_not_when_it_has_changed() -> None:
    watched = Watched(clusters.small(), Scope(namespaces=("default",)), SystemClock())
    told, sink = watched.follow(Scope()), watched.reflectors["pods of default"].sink
    pod = bound("a", make_grant(0))
    before = watching.reduced_pod(pod)
    gone = []
    for tell, each in (
        (sink.upsert, {**pod, "spec": {**pod["spec"], "nodeName": "b"}}),
        (sink.upsert, pod),
        (sink.remove, pod),
    ):
        tell(sink.read(each))
        gone.append(watched.take_changes(told)[1])
    assert gone == [[], [], [before]]


def test_what_comes_again_as_it_was_is_no_change_and_a_new_list_removes_the_rest() -> None:
    watched = Watched(clusters.small(), Scope(), SystemClock())
    told, sink = watched.follow(Scope()), watched.reflectors["nodes"].sink
    nodes = [sink.read({"metadata": {"name": name}}) for name in "ab"]
    sink.replace(nodes)
    assert watched.take_changes(told)[0] == {"a", "b"}
    sink.upsert(nodes[0])
    assert not watched.take_changes(told)[0]
    sink.replace(nodes[:1])
    assert watched.take_changes(told)[0] == {"b"}
    assert watched.node("b", Scope())[0] is None


def test_what_was_not_drawn_for_a_fault_is_drawn_next(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as faulty:
        faulty.setattr(views, "of_node", Mock(side_effect=RuntimeError))
        with pytest.raises(RuntimeError):
            live.tick()
    live.tick()
    assert live.page()[1].count(b"notebook-ada") > 0


def test_events_stay_when_they_expire_and_of_each_namespace_the_latest_are_kept() -> None:
    watched = Watched(clusters.small(), Scope(), SystemClock())
    sink = watched.reflectors["Events"].sink

    def read(number: int, namespace: str = "noisy") -> Any:
        about = {"involvedObject": {"namespace": namespace}}
        return sink.read({"metadata": {"uid": f"{namespace}{number}"}, "reason": "GpuShareX", **about})

    sink.replace([read(0, "quiet")])
    sink.remove(read(0, "quiet"))
    sink.replace([read(i) for i in range(2 * watching._MOST_EVENTS)])
    kept = [each["metadata"]["uid"] for each in watched.events(Scope())]
    assert kept == ["quiet0", *(f"noisy{i}" for i in range(3900, 4000))]


OVERVIEW = Overview(server="s", complete=True, scope="", totals=Totals())


def node(name: str) -> NodeView:
    return NodeView(name=name, address="a", known=True, cards=())


def picture(*nodes: NodeView, overview: Overview = OVERVIEW) -> Picture:
    return Picture(version=1, nodes={each.name: each for each in nodes}, overview=overview)


def test_a_page_is_lines_of_json_of_the_cluster_and_of_each_node() -> None:
    overview, waiting, happenings, *nodes = map(json.loads, picture(node("b"), node("a")).page.split(b"\n"))
    assert (overview["server"], waiting, happenings, [each["name"] for each in nodes]) == ("s", [], [], ["a", "b"])


def test_every_version_has_a_tag_that_no_other_process_has(live: Live) -> None:
    first, empty = live.page()
    live.tick()
    tag, body = live.page()
    assert (empty, live.page()[0], len({first, tag, made().page()[0]})) == (b"", tag, 3)
    assert live.page()[1] is body, "it is in memory once for all who read it"


@pytest.mark.parametrize("mib", [0, 3 * 2**63])
def test_characters_that_hide_are_shown_beside_numbers_that_only_a_forged_pod_has_too(mib: int) -> None:
    notes = ("a\u202eb\u009bc\u00ad\u00e9",)
    overview = replace(OVERVIEW, totals=Totals(granted_mib=mib), notes=notes)
    sent: Any = json.loads(picture(overview=overview).page.split(b"\n")[0])
    assert (sent["totals"]["granted_mib"], sent["notes"]) == (mib, ["a\\u202eb\\u009bc\u00ad\u00e9"])


SITE = Site(assets={"/": Response(200, b"page", "text/html")}, picture=lambda _: ("", b""))
PICTURE = "/picture"
KEYED = {"gpushare-key": "secret"}
OK, FORBIDDEN, MISDIRECTED = HTTPStatus.OK, HTTPStatus.FORBIDDEN, HTTPStatus.MISDIRECTED_REQUEST
LOOPBACKS = ("127.0.0.1", "127.0.0.1:8127", "localhost:9000", "LOCALHOST", "[::1]:8127", "127.1.2.3:8127")
OTHERS = "evil.example evil.example:8127 127.0.0.1.evil.example localhost.evil.example 10.0.0.1:8127 0.0.0.0:8127"
ODD = "[::]:8127 2130706433 127.0.0.1:8127@evil.example localhost:8127:1 user@localhost [::1"


def ask(path: str = "/", method: str = "GET", *, key: str = "secret", **headers: str) -> Response:
    given = {"host": "127.0.0.1:8127", **headers}
    environ = {f"HTTP_{name.upper().replace('-', '_')}": value for name, value in given.items()}
    request = Request(method=method, path=path, length=0, body=io.BytesIO(), received=0.0, environ=environ)
    answer = replace(SITE, picture=command.keyed(key, lambda: ('"run.7"', b"lines"))).respond(request)
    assert answer.headers.items() >= command.HEADERS.items(), "every answer has the policy"
    return answer


@pytest.mark.parametrize(
    ("status", "host"),
    [*((OK, host) for host in LOOPBACKS), *((MISDIRECTED, host) for host in ("", "localhost, evil.example"))]
    + [(MISDIRECTED, host) for host in (*OTHERS.split(), *ODD.split())],
)
def test_names_of_the_loopback_address_are_answered_and_others_not_wherever_they_lead(
    status: HTTPStatus, host: str
) -> None:
    assert ask(host=host).status == status


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT", "get"])
def test_nothing_can_be_changed(method: str) -> None:
    assert ask("/", method).status is HTTPStatus.METHOD_NOT_ALLOWED


@pytest.mark.parametrize(
    "headers",
    [
        *({"gpushare-key": key} for key in ("", "wrong", "secre", "s\u00e9cret", "secret,wrong")),
        {"cookie": "key=secret; gpushare-key=secret"},  # which browsers send to all ports
        *(KEYED | {"sec-fetch-site": site} for site in ("cross-site", "same-site")),
        {},
    ],
)
def test_without_the_key_or_for_another_site_nothing_of_the_cluster_is_told(headers: dict[str, str]) -> None:
    answer = ask(PICTURE, if_none_match='"run.7"', **headers)
    assert (answer.status, b"lines" in answer.body, answer.headers) == (FORBIDDEN, False, command.HEADERS)
    is_other_site = "sec-fetch-site" in headers
    assert ask("/app.js", **headers).status == (FORBIDDEN if is_other_site else HTTPStatus.NOT_FOUND)
    assert ask("/", **headers).status == OK, "a link may be followed from anywhere"


def test_only_the_files_of_the_page_are_there() -> None:
    for target in ("/none", "/../etc/passwd", "//evil.example/", "/%2e%2e/x"):
        assert ask(target).status is HTTPStatus.NOT_FOUND, target
    for target in ("http://evil.example/", "*", "", "/" + "x" * 5000):
        assert ask(target).status is HTTPStatus.BAD_REQUEST, target


@pytest.mark.parametrize(
    ("known", "expected"), [("", b"lines"), ('"run.6"', b"lines"), ('"run0.7"', b"lines"), ('"run.7"', b"")]
)
def test_a_picture_is_sent_to_who_does_not_have_it(known: str, expected: bytes) -> None:
    answer = ask(PICTURE, gpushare_key="secret", if_none_match=known)
    assert (answer.body, answer.headers["ETag"]) == (expected, '"run.7"')
    assert answer.status is (OK if expected else HTTPStatus.NOT_MODIFIED)


def test_without_a_key_anyone_on_the_loopback_address_may_look() -> None:
    for key in ("", "of-an-earlier-run"):
        assert ask(PICTURE, key="", gpushare_key=key).body == b"lines"


def test_the_page_runs_no_script_but_its_own_files() -> None:
    policy = dict(part.strip().split(" ", 1) for part in command.HEADERS["Content-Security-Policy"].split(";"))
    assert command.HEADERS["X-Content-Type-Options"] == "nosniff"
    assert command.HEADERS["Cache-Control"] == "no-store"
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
    assert policy["frame-ancestors"] == policy["trusted-types"] == policy["base-uri"] == "'none'"
    assert "unsafe" not in command.HEADERS["Content-Security-Policy"]


def test_the_files_of_the_page_ask_no_other_server_and_make_no_markup_of_text() -> None:
    for path, asset in command.assets().items():
        text = asset.body.decode().replace("http://www.w3.org/2000/svg", "")
        assert "http://" not in text, path
        assert "https://" not in text, path
        for sink in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "style=", "onclick"):
            assert sink not in text, (path, sink)
    kinds = [
        command.assets()[path].content_type.partition(";")[0] for path in ("/", "/app.js", "/style.css", "/icon.svg")
    ]
    assert kinds == ["text/html", "text/javascript", "text/css", "image/svg+xml"]
