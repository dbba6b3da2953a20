"""A slow or silent API server: binds end before kube-scheduler gives up, and nothing else waits for them."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from itertools import islice
from typing import Any

import orjson
import pytest

from controller.extender import app
from controller.extender.bind import Outcome
from gpushare import names
from gpushare.kube import api as kube
from gpushare.kube.api import JsonObject
from testing.controller.world import World, bind_args, uid_of
from testing.fakes.kube import Call, Delayed

THREADS = 32  # of the server, by default
BUSY = "this replica of the gpushare controller is binding as many pods as it can; try again"


def is_binding(call: Call) -> bool:
    return call.path.endswith("/binding")


def bind_body(pod: JsonObject, node: str = "node-a") -> bytes:
    args = bind_args(pod, node)
    return orjson.dumps({"PodName": args.name, "PodNamespace": args.namespace, "PodUID": args.uid, "Node": args.node})


@pytest.fixture
def silent(world: World) -> Iterator[threading.Event]:
    """The API server answers no Binding until the event is set."""
    answers = threading.Event()
    world.api.fail_next(is_binding, Delayed(answers), times=1000)
    yield answers
    answers.set()


def test_while_binds_wait_for_the_api_server_everything_else_is_answered(world: World, silent: threading.Event) -> None:
    world.add_node("node-c", 100, 100)
    pods = [world.add_pod(1) for _ in range(150)]
    world.see()
    client = world.client()
    node_args = orjson.dumps({"Pod": pods[0], "NodeNames": ["node-c"]})

    def post(verb: str, body: bytes) -> Any:
        return orjson.loads(client.post(f"/gpushare-scheduler/{verb}", body).body)

    def status(path: str) -> int:
        return client.get(path).status

    with ThreadPoolExecutor(THREADS) as server:
        try:
            binds = [server.submit(post, "bind", bind_body(pod, "node-c")) for pod in pods]
            probes = [server.submit(status, path) for path in ("/readyz", "/healthz", "/metrics")]
            assert [probe.result(timeout=30) for probe in probes] == [200] * 3
            assert server.submit(post, "filter", node_args).result(timeout=30)["NodeNames"] == ["node-c"]
            ended = islice(as_completed(binds, timeout=30), len(pods) - app.BINDS)
            assert {bind.result()["Error"] for bind in ended} == {BUSY}
        finally:
            silent.set()
        errors = [bind.result(timeout=30)["Error"] for bind in binds]
    assert world.api.count("create") == errors.count("") == app.BINDS
    assert set(errors) == {"", BUSY}


def test_binds_that_have_ended_make_room_for_others(world: World) -> None:
    for _ in range(app.BINDS + 1):
        assert world.post("bind", orjson.loads(bind_body(world.add_pod(0))))["Error"] != ""
    assert world.post("bind", orjson.loads(bind_body(world.add_pod(1))))["Error"] == ""


def test_a_bind_of_which_the_scheduler_has_given_up_is_not_sent(world: World) -> None:
    """It has waited in the server's queue; that it was taken from there does not make it new."""
    pod = world.add_pod(3)
    world.see()
    answer = world.client().post("/gpushare-scheduler/bind", bind_body(pod), received=world.clock.at - 5)
    assert (
        orjson.loads(answer.body)["Error"]
        == "there was no time left to bind the pod before kube-scheduler gives up; try again"
    )
    assert world.api.count("create") == 0
    assert world.used() == {}


def test_a_bind_is_not_sent_when_preparing_it_took_too_long(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    pod, create = world.add_pod(3), world.api.create
    world.see()

    def slow(*args: Any, **options: Any) -> JsonObject:
        world.clock.at += 4  # the token, or the connection
        return create(*args, **options)

    monkeypatch.setattr(world.api, "create", slow)
    assert world.bind(pod).outcome is Outcome.OUT_OF_TIME
    assert world.api.count("create") == 0
    assert world.used() == {}


@pytest.mark.parametrize("read_s", [0.1, 1.4])
def test_all_steps_of_a_bind_end_before_the_scheduler_gives_up(
    world: World, monkeypatch: pytest.MonkeyPatch, read_s: float
) -> None:
    """The watch lags, the pod is read slowly, the Binding gets no answer, and the pod cannot be read then."""
    pod, get, allowed = world.add_pod(3), world.api.get, []

    def slow_get(*args: Any, timeout_s: float) -> JsonObject:
        if world.api.count("create"):
            return silence(timeout_s=timeout_s)
        world.clock.at += read_s
        return get(*args, timeout_s=timeout_s)

    def silence(*_args: Any, timeout_s: float, **_options: Any) -> JsonObject:
        world.clock.at += timeout_s
        allowed.append(timeout_s)
        raise kube.UnreachableError("timed out")

    world.api.fail_next(is_binding, "lost-request")
    create = world.api.create

    def silent_create(*args: Any, **options: Any) -> JsonObject:
        assert options["precondition"]()
        try:
            return create(*args, **options)
        except kube.UnreachableError:
            return silence(**options)

    monkeypatch.setattr(world.api, "get", slow_get)
    monkeypatch.setattr(world.api, "create", silent_create)
    started = world.clock.at
    assert world.bind(pod).outcome is Outcome.IN_DOUBT
    assert world.clock.at - started <= names.EXTENDER_TIMEOUT_S - 1
    assert allowed
    assert world.api.count("create") == 1
    assert world.state.cache.reserved_on(uid_of(pod)) == {"node-a"}
