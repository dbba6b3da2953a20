"""The client of the API server: whose credentials it has, and what it makes of answers."""

import contextlib
import json
import os
import re
import socket
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from unittest.mock import Mock

import pytest

from gpushare.errors import SettingsError
from gpushare.kube import api, client, credentials, transport
from gpushare.kube.api import PatchKind, Reply
from gpushare.kube.client import RestClient
from gpushare.kube.credentials import Credentials
from testing.clock import ManualClock
from testing.fakes import http_server, kube_http
from testing.fakes.kube import FakeKube

DATE, AT = "Fri, 01 May 2026 12:00:00 GMT", datetime(2026, 5, 1, 12, tzinfo=UTC)


class Server:
    """Answers with what the test says and remembers what it was asked."""

    url: str

    def __init__(self) -> None:
        self.reply: Callable[[], tuple[int, bytes]] = lambda: (200, b"{}")
        self.date = ""
        self.asked: list[tuple[str, str, str, str, bytes]] = []


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()

    class Handler(http_server.Handler):
        def _answer(self) -> None:
            kind, auth = self.headers.get("Content-Type", ""), self.headers.get("Authorization", "")
            server.asked.append((self.command, self.path, kind, auth, self.body()))
            status, body = server.reply()
            self.send_response_only(status)
            if server.date:
                self.send_header("Date", server.date)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _answer

    with http_server.serving(Handler) as server.url:
        yield server


@pytest.fixture
def rest(server: Server) -> Iterator[RestClient]:
    rest = RestClient(Credentials(server=server.url, token_source=lambda: "secret"))
    yield rest
    rest.close()


def test_verbs_paths_and_bodies_reach_the_server(server: Server, rest: RestClient) -> None:
    rest.get("/a", {"limit": "5"})
    rest.create("/b", {"x": 1}, params={"timeout": "3s"})
    rest.replace("/c", {})
    rest.patch("/d", {"y": 2})
    rest.patch("/e", [{"op": "test"}], kind=PatchKind.JSON)
    rest.delete("/f")
    assert [(verb, path, kind) for verb, path, kind, _, _ in server.asked] == [
        ("GET", "/a?limit=5", ""),
        ("POST", "/b?timeout=3s", "application/json"),
        ("PUT", "/c", "application/json"),
        ("PATCH", "/d", "application/merge-patch+json"),
        ("PATCH", "/e", "application/json-patch+json"),
        ("DELETE", "/f", ""),
    ]
    assert {auth for _, _, _, auth, _ in server.asked} == {"Bearer secret"}
    assert server.asked[1][4] == b'{"x":1}'


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        *((400, api.BadRequestError), (401, api.UnauthorizedError), (403, api.ForbiddenError)),
        *((404, api.NotFoundError), (409, api.ConflictError), (410, api.GoneError), (415, api.BadRequestError)),
        *((422, api.BadRequestError), (429, api.TooManyRequestsError), (500, api.ServerFaultError)),
        (503, api.ServerFaultError),
    ],
)
def test_a_status_becomes_an_error_with_the_servers_words(
    server: Server, rest: RestClient, status: int, kind: type[api.KubeError]
) -> None:
    server.reply = lambda: (status, json.dumps({"kind": "Status", "message": "why not"}).encode())
    read = partial(rest.read_object, keep=lambda obj: obj)
    for ask in (rest.get, read, partial(rest.watch, params={}, timeout_s=1)):
        with pytest.raises(kind, match=r"^why not$"):
            ask("/x")


@pytest.mark.parametrize("body", [b"<html>secret</html>", b'{"kind":"Secret","message":"secret"}', b"[]"])
def test_what_is_no_status_never_reaches_a_message(server: Server, rest: RestClient, body: bytes) -> None:
    server.reply = lambda: (502, body)
    with pytest.raises(api.ServerFaultError, match=r"^HTTP 502$"):
        rest.get("/x")


def test_an_answer_that_is_no_object_is_the_servers_fault(server: Server, rest: RestClient) -> None:
    for body, problem in ((b"no json", "invalid literal"), (b"[]", "expected an object, found a list")):
        server.reply = Mock(return_value=(200, body))
        with pytest.raises(api.ServerFaultError, match=rf"^GET /x: unreadable answer \({problem}"):
            rest.get("/x")


def test_no_answer_is_unreachable_and_a_server_that_is_not_there_not_said_to_be_slow(
    server: Server, rest: RestClient
) -> None:
    release = threading.Event()
    server.reply = lambda: (release.wait(), (200, b"{}"))[1]
    with pytest.raises(api.UnreachableError, match=r"^GET /slow: the server did not answer in time$"):
        rest.get("/slow", timeout_s=0.1)
    release.set()
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    nowhere = Credentials(server=f"http://127.0.0.1:{port}", token_source=lambda: None)
    with contextlib.closing(RestClient(nowhere)) as gone:
        for ask in (gone.get, gone.ask, lambda path: gone.list_page(path, keep=lambda obj: obj)):
            with pytest.raises(api.UnreachableError, match=r"^GET /x: .*Connection refused$"):
                ask("/x")


def test_a_server_that_accepts_no_connection_or_has_vanished_is_given_up_soon(rest: RestClient) -> None:
    assert rest._transport._streams.connection_pool_kw["socket_options"] == transport._KEEPALIVE
    assert [transport._timeout(seconds).connect_timeout for seconds in (30, 3)] == [5, 3]


def test_large_objects_are_parsed_and_reduced_one_at_a_time(server: Server, rest: RestClient) -> None:
    """Many at once, such as on many binds, would take more memory than a process has."""
    large, small = b'{"pad":"' + b"x" * 2**20 + b'"}', b'{"pad":"x"}'
    inside, entered, leave = list[str](), threading.Event(), threading.Event()

    def keep(obj: api.JsonObject) -> None:
        inside.append(threading.current_thread().name)
        entered.set()
        leave.wait(10)

    server.reply = lambda: (200, large)
    threads = [threading.Thread(target=rest.read_object, args=("/x",), kwargs={"keep": keep}) for _ in range(3)]
    for thread in threads:
        thread.start()
    assert entered.wait(10)
    while len(server.asked) < 3:  # all have asked, and one is inside
        threads[0].join(0.01)
    server.reply = lambda: (200, small)
    assert rest.read_object("/y", keep=lambda obj: obj) == {"pad": "x"}  # no one waits for a small one
    assert len(inside) == 1
    leave.set()
    for thread in threads:
        thread.join(10)
    assert len(inside) == 3


def test_a_watch_gives_events_until_the_stream_ends(server: Server, rest: RestClient) -> None:
    events = [{"type": "ADDED", "object": {"metadata": {"name": str(i)}}} for i in range(3)]
    server.reply = lambda: (200, b"\n".join(json.dumps(event).encode() for event in events) + b"\n")
    assert list(rest.watch("/w", {"resourceVersion": "5"}, timeout_s=7)) == events
    assert server.asked[0][1] == "/w?resourceVersion=5&watch=true&timeoutSeconds=7"


def test_lines_that_are_broken_or_no_object_are_the_servers_fault(server: Server, rest: RestClient) -> None:
    """Resumed at the same version as after a cut, the same line would come again."""
    server.reply = lambda: (200, b"{broken\n")
    with pytest.raises(api.ServerFaultError, match="watch /w: unreadable event"):
        list(rest.watch("/w", {}, timeout_s=1))
    server.reply = lambda: (200, b"[]\n")
    problem = r"watch /w: unreadable event \(expected an object, found a list\); is there a proxy in between"
    with pytest.raises(api.ServerFaultError, match=problem):
        list(rest.watch("/w", {}, timeout_s=1))


def test_managed_fields_that_nest_too_deep_hide_nothing(server: Server, rest: RestClient) -> None:
    """A tenant may nest them as deep as the API server reads, far deeper than any parser here."""
    deep = b'[{"fieldsV1":' + b'{"f:]":' * 3000 + b"{}" + b"}" * 3000 + b"}]"
    item = b'{"metadata":{"name":"a","managedFields" : ' + deep + b',"uid":"1"},"spec":{}}'
    plain = {"metadata": {"name": "a", "managedFields": None, "uid": "1"}, "spec": {}}
    server.reply = lambda: (200, b'{"items":[' + item + b"," + item + b"]}")
    assert rest.get("/x") == {"items": [plain, plain]}
    server.reply = lambda: (200, b'{"type":"ADDED","object":' + item + b"}\n")
    assert list(rest.watch("/w", {}, timeout_s=1)) == [{"type": "ADDED", "object": plain}]


@pytest.mark.parametrize(
    ("status", "body", "date", "expected"),
    [
        (200, b"ok\n", DATE, Reply(status=200, text="ok\n", at=AT)),
        (200, b"ok", "", Reply(status=200, text="ok")),
        (200, b"ok", "yesterday", Reply(status=200, text="ok")),
        (503, b"not yet", DATE, Reply(status=503, text="not yet", at=AT)),
        (200, b'{"gitVersion": "v1.30.0"}', "", Reply(status=200, text='{"gitVersion": "v1.30.0"}')),
        (200, b'{"kind": "Status"}', "", Reply(status=200, text='{"kind": "Status"}')),
        (500, b'{"kind": "Sta', "", Reply(status=500, text='{"kind": "Sta')),
        (404, b"\xff", "", Reply(status=404, text="�")),
    ],
)
def test_what_an_endpoint_says_is_an_answer(
    server: Server, rest: RestClient, status: int, body: bytes, date: str, expected: Reply
) -> None:
    server.reply, server.date = lambda: (status, body), date
    assert rest.ask("/proxy/readyz") == expected


@pytest.mark.parametrize(
    ("status", "body", "error", "message"),
    [
        (403, b'{"kind":"Status","status":"Failure","message":"because"}', api.ForbiddenError, "^because$"),
        (503, b'{"kind":"Status","status":"Failure","message":"because"}', api.ServerFaultError, "^because$"),
        # Of older API servers.
        (503, b"Error trying to reach service: 'dial tcp 10.0.0.1:1: timeout'", api.ServerFaultError, "dial tcp"),
    ],
)
def test_what_the_api_server_says_of_an_endpoint_is_an_error(
    server: Server, rest: RestClient, status: int, body: bytes, error: type[api.KubeError], message: str
) -> None:
    server.reply = lambda: (status, body)
    with pytest.raises(error, match=message):
        rest.ask("/proxy/readyz")


def test_an_answer_in_short_is_one_line_and_a_service_has_a_path() -> None:
    assert Reply(status=503, text=" a\n\tb ").brief == "a b"
    assert Reply(status=503, text="").brief == "HTTP 503"
    assert len(Reply(status=503, text="x" * 1000).brief) == 200
    path = "/api/v1/namespaces/ns/services/https:web:443/proxy/readyz"
    assert api.proxy_path("ns", "https:web:443", "readyz") == path


def write(path: Path, name: str, *, is_current: bool = True, host: str = "") -> str:
    """A file with one cluster, user and context of that name."""
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": name, "cluster": {"server": f"http://{host or name}:1"}}],
        "users": [{"name": name, "user": {"token": f"token-of-{host or name}", "client-certificate": str(path)}}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
        "current-context": name if is_current else "",
    }
    path.write_text(json.dumps(content))
    return str(path)


def joined(*paths: str) -> str:
    return os.pathsep.join(paths)


def test_contexts_of_all_files_can_be_chosen_and_the_first_current_one_counts(tmp_path: Path) -> None:
    paths = joined(write(tmp_path / "1", "a", is_current=False), write(tmp_path / "2", "b"), write(tmp_path / "3", "c"))
    assert credentials.of_kubeconfig(paths).server == "http://b:1"
    chosen = credentials.of_kubeconfig(paths, "c")
    assert (chosen.server, chosen.token_source()) == ("http://c:1", "token-of-c")
    secure = tmp_path / "3"
    secure.write_text(secure.read_text().replace("http:", "https:"))
    assert credentials.of_kubeconfig(paths, "c").cert_file == str(secure)


def test_the_first_of_two_entries_with_one_name_counts_and_missing_files_are_left_out(tmp_path: Path) -> None:
    paths = joined(write(tmp_path / "1", "a", host="first"), write(tmp_path / "2", "a", host="second"))
    assert credentials.of_kubeconfig(paths).server == "http://first:1"
    paths = joined(f"{tmp_path}/none", "", write(tmp_path / "1", "a"))
    assert credentials.of_kubeconfig(paths).server == "http://a:1"
    with pytest.raises(SettingsError, match=re.escape(f"kubeconfig {tmp_path}/x:{tmp_path}/y: no such file")):
        credentials.of_kubeconfig(joined(f"{tmp_path}/x", f"{tmp_path}/y"))


def test_a_file_that_is_no_kubeconfig_or_names_no_context_is_named(tmp_path: Path) -> None:
    file = tmp_path / "config"
    reads = credentials.of_kubeconfig, credentials.namespace, credentials.context_name
    for content, readers in [
        *((content, reads) for content in ("{", "[]", "text")),
        *((content, reads[:2]) for content in ("", "clusters: 5", "contexts: [{}]\ncurrent-context: a")),
    ]:
        file.write_text(content)
        for read in readers:
            with pytest.raises(SettingsError, match=re.escape(f"kubeconfig {file}: ")):
                read(str(file))


def test_the_namespace_is_the_contexts_as_kubectl_takes_it(tmp_path: Path) -> None:
    first, second = write(tmp_path / "a", "a"), write(tmp_path / "b", "b", is_current=False)
    content = json.loads(Path(first).read_text())
    content["contexts"][0]["context"]["namespace"] = "ml"
    Path(first).write_text(json.dumps(content))
    both = joined(first, second)
    assert [credentials.context_name(*given) for given in ((both,), (both, "b"), ())] == ["a", "b", ""]
    assert credentials.namespace(both) == "ml"
    assert credentials.namespace(both, "b") == "default"


def test_a_kubeconfig_is_used_with_its_credentials_and_a_context_that_is_missing_is_named(tmp_path: Path) -> None:
    with kube_http.serving(FakeKube()) as url:
        (tmp_path / "config").write_text(kube_http.kubeconfig(url))
        with contextlib.closing(client.connect(f"{tmp_path}/config")) as rest:
            assert rest.get("/api/v1/nodes")["items"] == []
    with pytest.raises(SettingsError, match=re.escape(f"kubeconfig {tmp_path}/config: ")):
        client.connect(f"{tmp_path}/config", "no-such-context")


def test_a_pods_token_is_read_again_after_a_minute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "token").write_text("one\n")
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "fd00::1")
    monkeypatch.delenv("KUBERNETES_SERVICE_PORT", raising=False)
    clock = ManualClock(0)
    found = credentials.of_pod(str(tmp_path), clock=clock)
    assert (found.server, found.ca_file) == ("https://[fd00::1]:443", str(tmp_path / "ca.crt"))
    assert found.token_source() == "one"
    (tmp_path / "token").write_text("two")
    clock.at = 59
    assert found.token_source() == "one"
    clock.at = 61
    assert found.token_source() == "two"


def test_outside_of_a_cluster_the_fix_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(SettingsError, match="not in a cluster: KUBERNETES_SERVICE_HOST is not set; give --kubeconfig"):
        client.connect()
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    with pytest.raises(SettingsError, match="no service account token; is automountServiceAccountToken off"):
        credentials.of_pod(str(tmp_path))
