"""The webhook's real process under the manifest's limit: the worst that an API server and others can send, at once."""

import concurrent.futures
import contextlib
import json
import re
import select
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from testing.reviews import ALL, Json, container, encoded, pod, review
from testing.webhook import Server, running
from tests.memory import groups

MIB = 2**20
_IDLE = 100
_HERE = b'"HERE"'
_HERE_FIELD = b'"HERE":"x"'
_DEFAULTS = (
    b'{"name":"","resources":{},"terminationMessagePath":"/dev/termination-log",'
    b'"terminationMessagePolicy":"File","imagePullPolicy":"Always"}'
)


def filled(obj: Json, entry: str, count: int) -> bytes:
    return encoded(obj).replace(_HERE, b",".join([entry.encode()] * count))


def listed(entry: str, count: int, field: str) -> bytes:
    """A review of a pod whose only container has so many equal entries in this list."""
    return filled(review(pod(container("a", **{field: ["HERE"]}))), entry, count)


def updated(obj: bytes) -> bytes:
    """A review of an update, with the object twice."""
    body = encoded(review("HERE", operation="UPDATE", old="HERE"))
    return body.replace(_HERE, obj)


def annotated(count: int) -> bytes:
    fields = b",".join(b'"devices.gpushare.dev/%x":""' % i for i in range(count))
    return encoded(review(pod(container("a"), annotations={"HERE": "x"}))).replace(_HERE_FIELD, fields)


def deep(depth: int) -> bytes:
    name, nested = b'"name":"p","namespace"', b'{"f:a":' * depth + b"{}" + b"}" * depth
    body = encoded(review(pod(container("a", env=[ALL]))))
    return body.replace(name, b'"managedFields":[{"f":' + nested + b"}]," + name)


def pod_with(entry: str, count: int) -> bytes:
    return filled(pod(container("a"), tolerations=["HERE"]), entry, count)


@dataclass(frozen=True)
class Sent:
    path: str
    body: bytes
    allowed: bool | None
    """None if no API server writes such a body."""


WORST: dict[str, Callable[[], Sent]] = {
    # 3 MiB of `{}` with the API server's defaults.
    "ports": lambda: Sent("/isolate", listed('{"containerPort":0,"protocol":"TCP"}', 10**6, "ports"), False),
    "containers": lambda: Sent(
        "/mutate",
        encoded(review(pod(container("HERE")))).replace(encoded(container("HERE")), b",".join([_DEFAULTS] * 500_000)),
        False,
    ),
    "env": lambda: Sent("/isolate", listed('{"name":"a"}', 400_000, "env"), False),
    # Just below what is refused.
    "largest env": lambda: Sent("/isolate", listed('{"name":"a"}', 130_000, "env"), True),
    "largest ports": lambda: Sent("/isolate", listed('{"containerPort":1}', 100_000, "ports"), True),
    "largest annotations": lambda: Sent("/isolate", annotated(130_000), True),
    "largest string": lambda: Sent("/isolate", listed('"' + "a" * (5 * MIB) + '😀"', 1, "args"), True),
    "deep managed fields": lambda: Sent("/isolate", deep(120_000), True),
    "update": lambda: Sent("/validate", updated(pod_with('{"operator":"Exists"}', 200_000)), True),
    "update of empty terms": lambda: Sent("/validate", updated(pod_with("{}", 780_000)), True),
    "no review": lambda: Sent("/isolate", b"[" + b"[]," * (37 * MIB // 3) + b"[]]", None),
    "no review of medium size": lambda: Sent("/validate", b"[" + b'{"":{}},' * (15 * MIB // 8) + b"0]", None),
}


def ask(server: Server, sent: Sent) -> Json:
    """The answer, with the HTTP status. Like an API server, it stops sending when the answer comes."""
    head = f"POST {sent.path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    left = memoryview(f"{head}Content-Length: {len(sent.body)}\r\n\r\n".encode() + sent.body)
    received = b""
    with contextlib.closing(server.connect(60.0)) as connection:
        connection.connect()
        connection.sock.setblocking(False)
        while (answer := complete(received)) is None:
            ready = select.select([connection.sock], [connection.sock] if left else [], [], 60.0)
            assert any(ready), f"no answer; {len(left)} bytes not sent"
            left = sent_some(connection.sock, left)
            with contextlib.suppress(ssl.SSLWantReadError):
                piece = connection.sock.recv(2**20)
                assert piece, f"the connection ended without an answer; {len(left)} bytes not sent"
                received += piece
    return answer


def sent_some(connection: ssl.SSLSocket, left: memoryview) -> memoryview:
    """What is left to send; nothing if the server takes no more."""
    try:
        return left[connection.send(left[:65536]) :] if left else left
    except (ssl.SSLWantWriteError, ssl.SSLWantReadError):
        return left
    except OSError:
        return left[:0]


def complete(received: bytes) -> Json | None:
    head, _, body = received.partition(b"\r\n\r\n")
    length = re.search(rb"Content-Length: (\d+)", head)
    if length is None or len(body) < int(length[1]):
        return None
    return {"status": int(head.split()[1]), **json.loads(body)}


def is_busy(answer: Json) -> bool:
    return bool(answer.get("response", {}).get("status", {}).get("code") == 503)


@pytest.fixture
def limited(tmp_path: Path) -> Iterator[tuple[Server, groups.MemoryGroup]]:
    with (
        groups.limited("webhook", groups.manifest_limit("gpushare-webhook", "webhook")) as group,
        running(tmp_path, enter=group.enter) as server,
    ):
        yield server, group


def test_every_worst_review_is_answered_as_it_should_be(limited: tuple[Server, groups.MemoryGroup]) -> None:
    server, group = limited
    for name, make in WORST.items():
        sent = make()
        answer = ask(server, sent)
        if sent.allowed is None:
            assert answer["status"] == 413, (name, answer)
        else:
            assert answer["response"]["allowed"] == sent.allowed, (name, str(answer)[:500])
            assert sent.allowed or "too large for gpushare-webhook" in str(answer), name
    assert group.kills() == 0, group.report()


@pytest.mark.timeout(900)  # most of it is the machine's share of the processors
def test_all_of_them_at_once_from_everywhere_end_nothing(limited: tuple[Server, groups.MemoryGroup]) -> None:
    """With idle connections, while ordinary pods are created."""
    server, group = limited
    before = group_pids(group)
    bodies = [make() for make in WORST.values()]
    stop, ordinary = threading.Event(), list[Any]()

    def create_pods() -> None:
        body = Sent("/isolate", encoded(review(pod(container("a", env=[ALL])))), True)
        while not stop.is_set():
            ordinary.append(ask(server, body)["response"])
            time.sleep(0.05)

    with contextlib.ExitStack() as idle, concurrent.futures.ThreadPoolExecutor(13) as pool:
        for _ in range(_IDLE):
            idle.enter_context(kept_alive(server))
        creator = pool.submit(create_pods)
        try:
            answers = list(pool.map(lambda sent: (sent, ask(server, sent)), bodies))
        finally:
            stop.set()
        creator.result()
    assert group.kills() == 0, group.report()
    assert group_pids(group) == before
    judged = [(sent, answer) for sent, answer in answers if sent.allowed is not None and not is_busy(answer)]
    assert judged
    for sent, answer in judged:
        assert answer["response"]["allowed"] == sent.allowed
    assert ordinary
    assert all(response["allowed"] and response["patchType"] == "JSONPatch" for response in ordinary)


def test_an_idle_connection_takes_little(limited: tuple[Server, groups.MemoryGroup]) -> None:
    server, group = limited
    with contextlib.ExitStack() as idle:
        idle.enter_context(kept_alive(server))
        before = group.anonymous()
        for _ in range(_IDLE):
            idle.enter_context(kept_alive(server))
        assert group.anonymous() - before < _IDLE * 100 * 1024


def group_pids(group: groups.MemoryGroup) -> list[str]:
    return sorted((group.directory / "cgroup.procs").read_text().split())


@contextlib.contextmanager
def kept_alive(server: Server) -> Iterator[None]:
    """A connection that has asked something and may ask again."""
    with contextlib.closing(server.connect(60.0)) as connection:
        connection.request("GET", "/healthz")
        assert connection.getresponse().read() == b"ok"
        yield
