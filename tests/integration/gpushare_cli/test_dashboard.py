"""The dashboard and `top` follow an API server in memory, as far as their user may read it."""

import contextlib
import fcntl
import json
import os
import pty
import queue
import re
import signal
import socket
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import pytest
from urllib3 import HTTPConnectionPool, HTTPSConnectionPool

from gpushare.kube import api as kube
from gpushare.kube.api import KubeApi
from gpushare.runtime.clock import SystemClock
from gpushare.units import MemoryUnit
from gpushare.wire.claims import API
from gpushare_cli import demo
from gpushare_cli.console import Streams
from gpushare_cli.dashboard import command, views
from gpushare_cli.dashboard.command import Options
from gpushare_cli.dashboard.picture import Live, Picture
from testing import clusters
from testing.builders import Json, make_claim, make_inventory, make_node, make_pod
from testing.clock import ManualClock
from testing.fakes import http_server, kube_http
from testing.fakes.kube import FakeKube
from testing.tenant.changes import forged_events
from testing.webhook import authority_and_leaf

OWN = "research"
PICTURE = "/picture"
EVERYTHING = Options()


def of(api: KubeApi, options: Options = EVERYTHING) -> Live:
    return command.of_cluster(api, options, lambda: OWN, SystemClock())


class Followed:
    """A picture that threads keep equal to a cluster."""

    def __init__(self, api: KubeApi, stop: threading.Event, **options: Any) -> None:
        self.live, self._stop = of(api, Options(**options)), stop
        self.live.start(stop)

    def until(self, holds: Callable[[Picture], object]) -> Picture:
        """The first picture of which something holds; pytest ends a test that waits in vain."""
        while True:
            picture = self.live.picture
            if picture is not None and holds(picture):
                return picture
            self._stop.wait(0.02)


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeKube]:
    monkeypatch.setattr("gpushare_cli.dashboard.picture._TICK_S", 0.05)
    found = clusters.small()
    yield found
    found.close()


@pytest.fixture
def follow() -> Iterator[Callable[..., Followed]]:
    stop = threading.Event()
    yield partial(Followed, stop=stop)
    stop.set()


def blocks(picture: Picture) -> set[str]:
    shown = [block for node in picture.nodes.values() for card in node.cards for block in card.blocks]
    return {f"{block.namespace}/{block.name}" for block in shown}


def test_pods_come_and_go_in_the_picture(api: FakeKube, follow: Callable[..., Followed]) -> None:
    clusters.add_event(api, clusters.event(clusters.waiting("late", 3), "GpuShareOfTheFuture", "", minutes=-4))
    followed = follow(api)
    picture = followed.until(lambda picture: picture.overview.totals.used_mib)
    assert picture.overview.totals.used_mib == 11 * 1024
    assert [each.text[:21] for each in picture.happenings if "Event " in each.text] == ["Event GpuShareNoRoom:"]
    assert blocks(picture) == {"notebooks/notebook-ada", "research/train-resnet", "serving/embed-api"}
    clusters.add_pod(api, clusters.running("late", clusters.gpus(0, 2)[1].uuid, 5, on=clusters.name_of(0), minutes=1))
    followed.until(lambda picture: "research/late" in blocks(picture))
    api.vanish("/api/v1/namespaces/research/pods/late")
    picture = followed.until(lambda picture: "research/late" not in blocks(picture))
    told = {each.text for each in picture.happenings if each.subject == "research/late"}
    assert told == {"deleted from gpu-0000, and gave its GPU memory back", "got 5 GiB of GPU 1 on gpu-0000"}


@pytest.mark.parametrize("later", [timedelta(), timedelta(minutes=5)])
def test_forged_events_of_a_tenant_displace_none_of_others(
    api: FakeKube, follow: Callable[..., Followed], monkeypatch: pytest.MonkeyPatch, later: timedelta
) -> None:
    """Neither while they are to come, nor in the hour after that."""
    pod = clusters.running("forger", clusters.gpus(0, 2)[1].uuid, 1, on=clusters.name_of(0), namespace="forgers")
    clusters.add_pod(api, pod)
    now = datetime.now(UTC) + later
    monkeypatch.setattr(SystemClock, "now", lambda _: now)
    most = views._MOST_OF_ONE if later else 0

    def read(forged: int) -> Picture:
        return follow(api).until(lambda seen: seen.overview.totals.used_mib and len(seen.happenings) == 4 + forged)

    before = read(0)
    for event in forged_events(pod, now - later):
        clusters.add_event(api, event)
    after = read(most)
    forged = [each for each in after.happenings if each.subject == "forgers/forger"]
    assert [each for each in after.happenings if each not in forged] == list(before.happenings)
    assert len(forged) == most
    assert replace(after, happenings=before.happenings, version=before.version) == before, "and all that top draws"


def test_a_pod_waits_until_there_is_room(api: FakeKube, follow: Callable[..., Followed]) -> None:
    followed = follow(api)
    picture = followed.until(lambda picture: picture.waiting)
    assert picture.waiting[0].reason == "needs 14 GiB on one GPU; free per GPU on gpu-0000: 1, 11 GiB"
    api.vanish("/api/v1/namespaces/serving/pods/embed-api")
    followed.until(lambda picture: picture.waiting and picture.waiting[0].good)
    api.vanish("/api/v1/namespaces/research/pods/train-llm")
    followed.until(lambda picture: not picture.waiting)


def test_where_nodes_count_in_different_units_the_schedulers_words_are_told(
    api: FakeKube, follow: Callable[..., Followed]
) -> None:
    api.seed(clusters.NODES, make_node(make_inventory(15, node="other", unit=MemoryUnit(1))))
    [waits] = follow(api).until(lambda picture: picture.waiting).waiting
    assert waits.reason == "0/1 nodes are available: 1 needs 14 GiB on one GPU."


def test_nodes_come_and_go_and_a_gpu_that_fails_is_told(api: FakeKube, follow: Callable[..., Followed]) -> None:
    followed = follow(api)
    followed.until(bool)
    api.seed(clusters.NODES, make_node(make_inventory(15, node="other")))
    followed.until(lambda picture: "other" in picture.nodes)
    api.vanish("/api/v1/nodes/other")
    followed.until(lambda picture: "other" not in picture.nodes)
    faulty = {"metadata": {"name": "unhealthy-gpu-gpu-0000"}, "data": {"gpus": "1"}}
    api.seed("/api/v1/namespaces/kube-system/configmaps", faulty)
    picture = followed.until(lambda picture: picture.overview.totals.unhealthy)
    told = {each.subject for each in picture.happenings if each.subject.startswith("GPU ")}
    assert told == {"GPU 0 of other", "GPU 1 of gpu-0000"}
    api.vanish("/api/v1/namespaces/kube-system/configmaps/unhealthy-gpu-gpu-0000")
    followed.until(lambda picture: not picture.overview.totals.unhealthy)


def test_a_user_of_one_namespace_sees_no_name_of_anothers_pods(api: FakeKube, follow: Callable[..., Followed]) -> None:
    clusters.forbid(api, lambda path: path == "/api/v1/nodes" or path.startswith("/api/v1/pods"))
    clusters.forbid(api, lambda path: "/namespaces/" in path and f"/namespaces/{OWN}/" not in path)
    clusters.forbid(api, lambda path: path == "/api/v1/events")
    picture = follow(api).until(lambda picture: picture.nodes and picture.waiting)
    assert blocks(picture) == {"research/train-resnet"}
    assert [card.total_mib for node in picture.nodes.values() for card in node.cards] == [15 * 1024]
    assert picture.waiting[0].reason == "0/1 nodes are available: 1 needs 14 GiB on one GPU."
    assert not picture.overview.complete
    assert picture.overview.scope == (
        "only pods of research are shown; others may hold the rest of a GPU; nodes may not be read: only GPUs that"
        " these pods hold are shown"
    )
    for name in ("notebook-ada", "embed-api", "notebooks", "serving"):
        assert name not in repr(picture)


def test_a_user_who_may_list_nodes_sees_all_gpus_and_own_pods_or_those_asked_for(
    api: FakeKube, follow: Callable[..., Followed]
) -> None:
    clusters.forbid(api, lambda path: path.startswith("/api/v1/pods") or path.endswith("/events"))
    picture = follow(api).until(lambda picture: picture.nodes)
    assert (len(picture.nodes["gpu-0000"].cards), picture.overview.complete) == (2, False)
    assert blocks(picture) == {"research/train-resnet"}
    others = follow(api, namespace=("serving", "notebooks"))
    assert blocks(others.until(lambda picture: picture.overview.totals.pods == 2)) == {
        "serving/embed-api",
        "notebooks/notebook-ada",
    }


def test_who_may_read_nothing_is_told_at_once(api: FakeKube) -> None:
    clusters.forbid(api, lambda _: True)
    with pytest.raises(kube.ForbiddenError):
        of(api)


def test_settings_are_those_of_the_installation_or_there_is_no_picture(api: FakeKube) -> None:
    """It is kept for hours, and would leave out whole GPUs without a word."""

    def fail(error: kube.KubeError) -> None:
        api.fail_next(lambda call: call.path.endswith("/configmaps/gpushare-config"), error)

    fail(kube.ForbiddenError("configmaps is forbidden"))
    assert not of(api).notes
    fail(kube.ServerFaultError("etcd has no leader"))
    with pytest.raises(kube.ServerFaultError):
        of(api)
    odd = {"metadata": {"name": "gpushare-config"}, "data": {"GPUSHARE_MEMORY_UNIT": "ell"}}
    api.seed("/api/v1/namespaces/gpushare-system/configmaps", odd)
    [note] = of(api).notes
    assert note.endswith("its settings are not applied")


def listed(api: FakeKube) -> Live:
    """A picture without threads, of a cluster that was read."""
    live = of(api)
    for reflector in live.watched.reflectors.values():
        reflector._list()
    return live


def test_of_very_many_pods_that_wait_the_first_are_sent_and_all_are_counted(api: FakeKube) -> None:
    for number in range(250):
        clusters.add_pod(api, clusters.waiting(f"many-{number}", 14))
    live = listed(api)
    live.tick()
    picture = live.picture
    assert picture is not None
    assert (len(picture.waiting), picture.overview.totals.waiting) == (200, 251)


def test_why_the_cluster_cannot_be_read_is_told_in_the_picture(
    api: FakeKube, follow: Callable[..., Followed], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpushare_cli.dashboard.watching._TROUBLE_S", 0.0)
    followed = follow(api)
    followed.until(lambda picture: picture.overview.totals.pods == 3)
    clusters.forbid(api, lambda path: path == "/api/v1/pods")
    api.cut()
    told = followed.until(lambda picture: "forbidden" in picture.overview.stale).overview.stale
    assert told == "this may be old: pods cannot be read (nodes is forbidden)"
    api.calm()
    followed.until(lambda picture: not picture.overview.stale)


def test_plugins_are_asked_once_and_then_while_anyone_looks(api: FakeKube) -> None:
    live = listed(api)
    live.clock = clock = ManualClock()
    live.tick()
    assert live.use_is_due
    live.ask_use()
    assert not live.use_is_due
    live.page()
    clock.at += 80  # a page in the background asks once a minute
    assert live.use_is_due
    clock.at += 20
    assert not live.use_is_due
    live.look()
    assert live.use_is_due


def test_no_bar_waits_for_why_pods_wait_which_takes_a_sixth_of_the_time_at_most(
    api: FakeKube, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = listed(api)
    live.clock = clock = ManualClock()
    looked: list[tuple[float, int]] = []

    def reasons(*_: object) -> tuple[()]:
        looked.append((clock.monotonic(), len(blocks(live.picture)) if live.picture else 0))
        clock.at += 2
        return ()

    monkeypatch.setattr("gpushare_cli.dashboard.views.waiting", reasons)
    for _ in range(20):
        live.watched.mark([""], live._changes)
        live.tick()
        clock.at += 1
    [(first, shown), (second, _)] = looked
    assert (shown, second - first) == (3, 12.0)


@pytest.mark.parametrize("ends", [False, True])
def test_a_fault_is_told_unless_the_process_ends_and_the_next_try_is_no_sooner(
    ends: bool, api: FakeKube, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    live, stop, pauses = of(api), threading.Event(), queue.SimpleQueue[float]()

    def fails() -> float:
        if ends:
            stop.set()
        raise OSError("once")

    def wait(stop: threading.Event, seconds: float) -> None:
        pauses.put(seconds)
        stop.wait()

    for step in ("_tick_if_read", "_ask_if_due"):
        monkeypatch.setattr(live, step, fails)
    monkeypatch.setattr(live, "clock", SimpleNamespace(wait=wait))
    live.start(stop)
    found = sorted(pauses.get() for _ in range(1 if ends else 2))
    stop.set()
    told = {record.message for record in caplog.records} & {"picture failed", "use not read"}
    assert told == (set() if ends else {"picture failed", "use not read"})
    assert ends or found == [0.05, 10.0]


def test_objects_that_cannot_be_read_are_left_out(api: FakeKube, follow: Callable[..., Followed]) -> None:
    odd = make_pod(name="odd", node=clusters.name_of(0))
    odd["spec"]["containers"][0]["resources"] = "none"
    clusters.add_pod(api, odd)
    follow(api).until(lambda picture: picture.overview.totals.pods == 3)


# As a user starts it.


def until_sent(site: HTTPConnectionPool, name: str, known: dict[str, str]) -> tuple[str, Json]:
    """The tag of the first picture that has this node, and what it says of the cluster."""
    while True:
        answer = site.request("GET", PICTURE, headers=known)
        overview, *rest = map(json.loads, answer.data.splitlines() or [b"{}"])
        if name in [node["name"] for node in rest[2:]]:
            return answer.headers["ETag"], overview
        time.sleep(0.02)


@contextlib.contextmanager
def started(url: str, directory: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """The command, with a kubeconfig that names this API server."""
    config = directory / "config"
    config.write_text(kube_http.kubeconfig(url))
    argv = [sys.executable, "-m", "gpushare_cli", *arguments, "--kubeconfig", str(config)]
    env = os.environ | {"PYTHONUNBUFFERED": ""}
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env) as process:
        try:
            yield process
        finally:
            process.kill()


def test_the_command_prints_an_address_that_opens_the_page_and_ends_with_ctrl_c(api: FakeKube, tmp_path: Path) -> None:
    with kube_http.serving(api) as url, started(url, tmp_path, "dashboard", "--port", "0") as process:
        assert process.stdout is not None
        address = urlsplit(process.stdout.readline().strip())
        assert (address.scheme, address.hostname, address.path) == ("http", "127.0.0.1", "/")
        with HTTPConnectionPool(command.LOOPBACK, address.port, retries=False) as pool:
            assert b"<title>gpushare</title>" in pool.request("GET", "/").data
            assert pool.request("GET", PICTURE).status == 403
            known = {"Gpushare-Key": address.fragment.removeprefix("key=")}
            tag, overview = until_sent(pool, "gpu-0000", known)
            assert overview["server"] == "c"  # the context of the kubeconfig
            while pool.request("GET", PICTURE, headers={**known, "If-None-Match": tag}).status != 304:
                tag, _ = until_sent(pool, "gpu-0000", known)  # until use and reasons have come
            answer = pool.request("HEAD", PICTURE, headers=known)
            assert (answer.status, answer.data) == (200, b"")
            assert answer.headers.items() >= command.HEADERS.items()
        process.send_signal(signal.SIGINT)
        _, err = process.communicate()
    assert (process.returncode, err) == (0, "Open this address on this machine; Ctrl-C ends it.\n")


def test_users_sign_in_over_tls_with_tokens_that_are_sent_to_the_api_server_alone(
    api: FakeKube, tmp_path: Path
) -> None:
    authority, leaf = authority_and_leaf()
    for name, content in {"tls.crt": leaf.certificate, "tls.key": leaf.key, "ca.crt": authority.certificate}.items():
        (tmp_path / name).write_bytes(content)
    tokens: list[str] = []

    class Reviewing(kube_http.Handler):
        fake = api

        def do_POST(self) -> None:
            review = self._body()
            tokens.append(self.headers["Authorization"])
            if tokens[-1] != "Bearer good-one":
                self.send(401, b"{}")
                return
            asked = review["spec"]["resourceAttributes"]
            allowed = asked["resource"] == "nodes" or asked["namespace"] == OWN
            self.send(201, json.dumps({"status": {"allowed": allowed}}).encode())

    arguments = ["dashboard", "--sign-in", "--port=0", f"--cert-dir={tmp_path}", "--host=gpus.example"]
    with http_server.serving(Reviewing, api.close) as url, started(url, tmp_path, *arguments) as process:
        assert process.stdout is not None
        address = urlsplit(process.stdout.readline().strip())
        with HTTPSConnectionPool("localhost", address.port, ca_certs=str(tmp_path / "ca.crt")) as pool:
            assert pool.request("GET", "/", headers={"Host": "evil.example"}).status == 421
            assert pool.request("GET", "/", headers={"Host": "gpus.example"}).status == 200
            assert pool.request("GET", "/healthz", headers={"Host": "10.0.0.1:8127"}).status == 200
            assert pool.request("GET", PICTURE).status == 401
            assert tokens == []
            assert pool.request("GET", PICTURE, headers={"Authorization": "Bearer bad-one"}).status == 401
            good = {"Authorization": "Bearer good-one"}
            while not (found := pool.request("GET", PICTURE, headers=good)).data or found.status != 200:
                assert found.status in {200, 503}  # until the cluster is read, and then drawn
                time.sleep(0.1)
        (tmp_path / "tls.crt").write_bytes(b"cut off")
        with HTTPSConnectionPool("localhost", address.port, ca_certs=str(tmp_path / "ca.crt")) as pool:
            assert pool.request("GET", "/healthz").status == 200, "by the former certificate"
        process.send_signal(signal.SIGINT)
        out, err = process.communicate()
    assert "certificate not loaded" in err
    assert b"train-resnet" in found.data
    assert b"embed-api" not in found.data
    assert set(tokens) == {"Bearer bad-one", "Bearer good-one"}
    assert "Open this address on this machine" not in err
    assert [word for word in ("bad-one", "good-one") if word in out + err] == []


def test_what_is_shown_to_users_who_sign_in_is_not_limited_by_the_rights_of_the_dashboard(
    api: FakeKube, tmp_path: Path
) -> None:
    """Else they would see less than they may, and not be told."""
    clusters.forbid(api, lambda path: path == "/api/v1/nodes")
    with kube_http.serving(api) as url, started(url, tmp_path, "dashboard", "--sign-in") as process:
        _, err = process.communicate()
    assert (process.returncode, "must be allowed to list nodes" in err) == (2, True), err


@pytest.mark.parametrize("wrong", ["--sign-in -n=a", "--sign-in --demo", "--host=x", "--cert-dir=x"])
def test_arguments_that_have_no_meaning_together_are_told_before_the_cluster_is_asked(
    wrong: str, tmp_path: Path
) -> None:
    with started(f"http://{command.LOOPBACK}:1", tmp_path, "dashboard", *wrong.split()) as process:
        _, err = process.communicate()
    assert (process.returncode, "--sign-in" in err) == (2, True), err


@pytest.fixture
def ended_by_ctrl_c() -> Iterator[None]:
    """SIGINT ends processes that are started: a shell has it ignored for what it starts in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("ended_by_ctrl_c")
@pytest.mark.parametrize("arguments", [["dashboard", "--port", "0"], ["top", "--once"]])
def test_ctrl_c_ends_it_also_while_the_api_server_does_not_answer(arguments: list[str], tmp_path: Path) -> None:
    with socket.create_server((command.LOOPBACK, 0)) as silent:
        url = f"http://{command.LOOPBACK}:{silent.getsockname()[1]}"
        with started(url, tmp_path, *arguments) as process, silent.accept()[0] as asked:
            asked.recv(1)
            process.send_signal(signal.SIGINT)
            out, err = process.communicate()
    assert (process.returncode, out, err) == (130, "", "")


def test_a_port_that_is_taken_is_told(api: FakeKube, capsys: pytest.CaptureFixture[str]) -> None:
    live = of(api)
    with socket.create_server((command.LOOPBACK, 0)) as taken:
        asked, streams = Options(port=taken.getsockname()[1]), Streams(out=sys.stdout, err=sys.stderr)
        assert command.run(live, streams, asked, SystemClock(), lambda: True) == 1
    problem = f"error: port {asked.port} cannot be used: Address already in use; give --port 0 for any other\n"
    assert capsys.readouterr() == ("", problem)


OPEN, CLOSE = b"\x1b[?1049h", b"\x1b[?1049l"
COLOUR = re.compile(rb"\x1b\[[0-9]+m")
ESCAPE = re.compile(rb"\x1b\[[?0-9]*[A-Za-z]")


@pytest.fixture
def argv(api: FakeKube, tmp_path: Path) -> Iterator[list[str]]:
    config = tmp_path / "config"
    with kube_http.serving(api) as url:
        config.write_text(kube_http.kubeconfig(url))
        yield [sys.executable, "-m", "gpushare_cli", "top", "--kubeconfig", str(config)]


class Terminal:
    """A program in a terminal of 80 columns and 24 lines."""

    def __init__(self, argv: list[str], **variables: str) -> None:
        self._mine, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        kept = {name: value for name, value in os.environ.items() if name not in {"COLUMNS", "LINES", "NO_COLOR"}}
        environ = {**kept, "TERM": "xterm", "PYTHONIOENCODING": "utf-8", **variables}
        self.process = subprocess.Popen(argv, stdin=theirs, stdout=theirs, stderr=subprocess.DEVNULL, env=environ)
        os.close(theirs)
        self.seen = b""

    def resize(self, lines: int, columns: int) -> None:
        """As a user who drags its corner."""
        fcntl.ioctl(self._mine, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def until(self, words: str) -> bytes:
        """Everything up to the moment at which it shows this."""
        while words.encode() not in ESCAPE.sub(b"", self.seen):
            self.seen += os.read(self._mine, 65536)
        return self.seen

    def end(self) -> bytes:
        """Tell it to end; all that it has shown."""
        self.process.send_signal(signal.SIGINT)
        while True:
            try:
                self.seen += os.read(self._mine, 65536)
            except OSError:  # the other end is closed
                break
        self.process.wait()
        os.close(self._mine)
        return self.seen


def test_in_a_terminal_it_follows_the_cluster_and_leaves_the_screen_as_it_was(api: FakeKube, argv: list[str]) -> None:
    terminal = Terminal(argv, NO_COLOR="")
    terminal.until("14/15 GiB")
    terminal.until("research/train-llm")
    clusters.add_pod(api, clusters.running("late", clusters.gpus(0, 2)[1].uuid, 5, on=clusters.name_of(0)))
    terminal.until("9/15 GiB")
    seen = terminal.end()
    assert terminal.process.returncode == 0
    assert seen.startswith(OPEN)
    assert seen.endswith(CLOSE)
    assert COLOUR.search(seen)
    screens = ESCAPE.sub(b"", seen).decode().split("\r\n")
    assert max(map(len, screens)) <= 160  # the last line of a screen and the first of the next one are not apart


def test_what_a_low_terminal_cuts_off_is_not_that_it_shows_a_demonstration() -> None:
    terminal = Terminal([sys.executable, "-m", "gpushare_cli", "top", "--demo"])
    terminal.resize(12, 80)  # before anything is drawn
    terminal.until("more lines: name a NODE")
    assert demo.NOTE.encode() in terminal.end()
    assert terminal.process.returncode == 0


@pytest.mark.parametrize(
    ("variables", "command"), [({"NO_COLOR": "1"}, COLOUR), ({"TERM": "dumb"}, re.compile(b"\x1b"))]
)
def test_a_terminal_gets_only_what_it_takes(
    variables: dict[str, str], command: re.Pattern[bytes], argv: list[str]
) -> None:
    terminal = Terminal(argv, **variables)
    terminal.until("14/15 GiB")
    assert not command.search(terminal.end())


def printed(argv: list[str]) -> tuple[str, str]:
    done = subprocess.run(argv, capture_output=True, check=True, text=True)
    return done.stdout, done.stderr


def test_in_a_pipe_it_prints_once_and_plainly_also_while_watches_fail(api: FakeKube, argv: list[str]) -> None:
    api.fail_next(lambda call: call.verb == "watch", kube.ServerFaultError("not now"), times=1000)
    out, err = printed(argv)
    assert ("\x1b" in out, err) == (False, "")
    for words in ("14/15 GiB", "used 11", "needs 14 GiB on one GPU; free per GPU on gpu-0000: 1, 11 GiB"):
        assert words in out


def test_nodes_that_are_named_are_shown_alone(argv: list[str]) -> None:
    out, err = printed([*argv, "none"])
    assert ("gpu-0000  " in out, err) == (False, "note: node none is not among those that share GPUs\n")


def test_a_terminal_that_gets_narrower_has_no_line_that_is_wider(argv: list[str]) -> None:
    terminal = Terminal(argv)
    terminal.until("14/15 GiB")
    terminal.resize(24, 40)
    terminal.seen = b""
    terminal.until("free; USED where")
    last = terminal.end().split(b"\x1b[H")[-1]
    assert max(len(line.decode()) for line in ESCAPE.sub(b"", last).splitlines()) <= 40


def test_gpus_that_claims_share_are_cards_whose_pods_are_those_of_the_claims(
    api: FakeKube, follow: Callable[..., Followed]
) -> None:
    inventory = make_inventory(15, 15, node="given")
    api.seed("/api/v1/nodes", make_node(replace(inventory, gpus=inventory.gpus[1:], dra=inventory.gpus[:1])))
    owner = {"kind": "Pod", "name": "web", "uid": "uid-of-web", "controller": True}
    claim = make_claim("web-gpu", node="given", GPU_0="3Gi")
    claim["metadata"] |= {"namespace": "team", "ownerReferences": [owner]}
    api.seed(f"{API}/namespaces/team/resourceclaims", claim)
    following = follow(api)
    view = following.until(lambda picture: "given" in picture.nodes).nodes["given"]
    assert [(card.label, card.total_mib, card.granted_mib) for card in view.cards] == [
        ("0", 15360, 3072),
        ("1", 15360, 0),
    ]
    assert [(block.namespace, block.name, block.granted_mib) for block in view.cards[0].blocks] == [
        ("team", "web", 3072)
    ]
    assert view.claimed == ()
    api.delete(f"{API}/namespaces/team/resourceclaims/web-gpu")
    following.until(lambda picture: not picture.nodes["given"].cards[0].blocks)


def test_who_may_not_read_claims_is_told_how_many_gpus_they_share(
    api: FakeKube, follow: Callable[..., Followed]
) -> None:
    inventory = make_inventory(15, node="given")
    api.seed("/api/v1/nodes", make_node(replace(inventory, gpus=(), dra=inventory.gpus)))
    api.fail_next(lambda call: call.path == f"{API}/resourceclaims", kube.ForbiddenError("no"), times=99)
    picture = follow(api).until(lambda picture: "given" in picture.nodes)
    assert "nodes that share all of their GPUs by ResourceClaims: 1; see gpushare inspect" in picture.overview.notes
    assert picture.nodes["given"].claimed == ("GPU-0",)
