"""Text from a real socket: the endpoint's own words are told from the API server's."""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime

import orjson
import pytest

from gpushare.kube import api as kube
from gpushare.kube.api import Reply
from gpushare.kube.client import RestClient
from gpushare.kube.credentials import Credentials
from testing.fakes import http_server

Sent = tuple[int, bytes, str]
Serve = Callable[[Sent], RestClient]
DATE = "Fri, 01 May 2026 12:00:00 GMT"
AT = datetime(2026, 5, 1, 12, tzinfo=UTC)


@pytest.fixture
def serve() -> Iterator[Serve]:
    """A client of a server that always gives the same answer: status, body and the header Date."""
    replies: list[Sent] = []

    class Handler(http_server.Handler):
        def do_GET(self) -> None:
            status, body, date = replies[-1]
            self.send_response_only(status)
            if date:
                self.send_header("Date", date)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    with http_server.serving(Handler) as url:
        client = RestClient(Credentials(server=url))

        def start(reply: Sent) -> RestClient:
            replies.append(reply)
            return client

        yield start
        client.close()


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        ((200, b"ok\n", DATE), Reply(status=200, text="ok\n", at=AT)),
        ((200, b"ok", ""), Reply(status=200, text="ok")),
        ((200, b"ok", "yesterday"), Reply(status=200, text="ok")),
        ((503, b"not yet", DATE), Reply(status=503, text="not yet", at=AT)),
        ((200, b'{"gitVersion": "v1.30.0"}', DATE), Reply(status=200, text='{"gitVersion": "v1.30.0"}', at=AT)),
        ((500, b'{"kind": "Sta', DATE), Reply(status=500, text='{"kind": "Sta', at=AT)),
        ((404, b"\xff", DATE), Reply(status=404, text="�", at=AT)),
    ],
)
def test_what_the_endpoint_says_is_an_answer(reply: Sent, expected: Reply, serve: Serve) -> None:
    assert serve(reply).ask("/proxy/readyz") == expected


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (403, kube.ForbiddenError),
        (404, kube.NotFoundError),
        (503, kube.ServerFaultError),
        (401, kube.UnauthorizedError),
    ],
)
def test_what_the_api_server_refuses_is_an_error(status: int, error: type[kube.KubeError], serve: Serve) -> None:
    body = orjson.dumps({"kind": "Status", "status": "Failure", "message": "because", "code": status})

    with pytest.raises(error, match=r"^because$"):
        serve((status, body, DATE)).ask("/proxy/readyz")


def test_older_api_servers_say_in_plain_text_that_they_do_not_reach_an_endpoint(serve: Serve) -> None:
    with pytest.raises(kube.ServerFaultError, match="dial tcp"):
        serve((503, b"Error trying to reach service: 'dial tcp 10.0.0.1:8443: i/o timeout'", DATE)).ask("/proxy/readyz")


def test_a_server_that_is_away_is_unreachable() -> None:
    client = RestClient(Credentials(server="http://127.0.0.1:1"))

    with pytest.raises(kube.UnreachableError):
        client.ask("/version", timeout_s=1)


def test_an_answer_in_short_is_one_line() -> None:
    assert Reply(status=503, text=" a\n\tb ").brief == "a b"
    assert Reply(status=503, text="").brief == "HTTP 503"
    assert len(Reply(status=503, text="x" * 1000).brief) == 200


def test_the_path_of_a_service() -> None:
    assert (
        kube.proxy_path("ns", "https:web:443", "readyz") == "/api/v1/namespaces/ns/services/https:web:443/proxy/readyz"
    )
