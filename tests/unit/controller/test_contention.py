"""A long search stops no one, and what changes meanwhile is not overlooked; names of nodes do not pile up."""

import contextlib
import http.client
import os
import signal
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any
from unittest.mock import Mock

import orjson
import pytest

from controller import state
from controller.extender.bind import Outcome
from controller.main import Server
from controller.settings import Settings
from controller.state import AlreadyBound, Reserved
from controller.watches import NodeSink, PodSink
from gpushare import names
from gpushare.cluster import node_ledger, node_records
from gpushare.cluster.pod_records import AnyPod
from gpushare.identity import NodeName
from gpushare.kube import api as kube
from gpushare.kube.api import JsonObject
from gpushare.kube.watch import Reflector
from gpushare.model.ledger import NodeLedger, RefusalReason, Refused, Verdict
from gpushare.model.request import PodRequest, RequestShape
from gpushare.placement.policies import Policies
from gpushare.runtime.pages import Request, Response
from gpushare.wire import pods as pods_wire
from testing.builders import make_ref, make_shape
from testing.controller.world import NODES, PODS, World, bind_request, is_binding, uid_of
from testing.fakes.kube import Delayed
from tests.unit.controller.conftest import Lets

A = NodeName("node-a")


def request(name: str, *gib: int) -> PodRequest:
    return PodRequest(pod=make_ref(name), shape=make_shape(*gib))


def restless(world: World, monkeypatch: pytest.MonkeyPatch, wanted: RequestShape, *others: int) -> list[int]:
    """During each search for a pod another one, of so many GiB, is bound, which a lock would hold up. Those left."""
    real, left = node_ledger.verdict, list(others)

    def verdict(shape: RequestShape, ledger: NodeLedger, policies: Policies) -> Verdict:
        found = real(shape, ledger, policies)
        if shape == wanted and left:
            world.state.reserve(request(f"other-{len(left)}", left.pop(0)), A, now=0)
        return found

    monkeypatch.setattr(node_ledger, "verdict", verdict)
    return left


def test_a_choice_from_an_outdated_ledger_is_made_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    restless(world, monkeypatch, make_shape(8, 2), 8)
    assert isinstance(world.state.reserve(request("pod", 8, 2), A, now=0), Reserved)
    assert (sorted(world.used().values()), world.ledger().over_committed()) == ([8, 10], {})


def test_a_pod_that_was_bound_elsewhere_is_not_given_more(world: World, during_a_search: Lets) -> None:
    pod = world.add_pod(3)
    during_a_search(lambda: world.bind(pod, "node-b"))
    wanted = PodRequest(pod=pods_wire.ref(pod), shape=make_shape(3))
    assert world.state.reserve(wanted, A, now=0) == AlreadyBound(node=NodeName("node-b"), granted=True)
    assert world.used() == {}


def test_many_containers_are_tried_again_on_a_restless_node(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    left = restless(world, monkeypatch, make_shape(1, 1), *[1] * 12)
    message = "node-a changed 5 times while GPUs were chosen for default/pod; it is tried again"
    refused = Refused(RefusalReason.SEARCH_TOO_LONG, message)
    assert (world.state.reserve(request("pod", 1, 1), A, now=0), len(left)) == (refused, 12 - state.TRIES)


@pytest.mark.parametrize("last", [1, 10])
def test_one_container_fits_a_restless_ledger(world: World, monkeypatch: pytest.MonkeyPatch, last: int) -> None:
    others = [*[1] * (state.TRIES - 1), last]
    restless(world, monkeypatch, make_shape(2), *others)
    assert isinstance(world.state.reserve(request("pod", 2), A, now=0), Reserved)
    assert sum(world.used().values()) == sum(others) + 2


def test_names_of_nodes_that_are_gone_are_forgotten(world: World) -> None:
    verdicts, shape = world.table.verdicts, make_shape(30)
    for i in range(10):
        world.add_node(f"new-{i}", 10)
        world.see()
        assert f"new-{i}" in verdicts(shape)
        world.api.vanish(f"/api/v1/nodes/new-{i}")
        world.see()
        assert set(verdicts(shape)) == {"node-a", "node-b"}
    table = world.table._table
    assert (set(table.rows), len(table.ledgers)) == ({"node-a", "node-b"}, 1 + 2 + 1)
    assert {row for words in world.table._words.values() for row in words} == set(table.rows.values())


def test_binds_that_wait_for_the_api_server_are_all_done_and_hold_nothing_else_up(world: World) -> None:
    answers = threading.Event()
    world.api.fail_next(is_binding, Delayed(answers), times=1000)
    world.add_node("node-c", 100, 100)
    pods = [world.add_pod(1) for _ in range(150)]
    world.see()
    sent = threading.Semaphore(0)

    def post(verb: str, body: JsonObject) -> JsonObject:
        connection = http.client.HTTPConnection("127.0.0.1", server.listener.getsockname()[1], timeout=30)
        with contextlib.closing(connection):
            connection.request("POST", f"{names.EXTENDER_PREFIX}/{verb}", orjson.dumps(body))
            sent.release()
            answer: JsonObject = orjson.loads(connection.getresponse().read())
            return answer

    def handler(request: Request) -> Response:
        return world.client().handler(replace(request, received=world.clock.at))

    def ask() -> list[str]:
        try:
            with ThreadPoolExecutor(len(pods)) as scheduler:
                binds = [scheduler.submit(post, "bind", bind_request(pod, "node-c")) for pod in pods]
                try:
                    assert all(sent.acquire(timeout=30) for _ in pods), "all binds are there first"
                    assert post("filter", {"Pod": pods[0], "NodeNames": ["node-c"]})["NodeNames"] == ["node-c"]
                finally:
                    answers.set()
                return [bind.result()["Error"] for bind in binds]
        finally:
            os.kill(os.getpid(), signal.SIGTERM)

    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    server = Server(Settings(bind_address="127.0.0.1", port=0), os.getppid())
    interval = sys.getswitchinterval()
    try:
        with ThreadPoolExecutor(1) as thread:
            asked = thread.submit(ask)
            server.serve(lambda: Mock(handler=handler), lambda: None)
        assert asked.result() == [""] * len(pods)
    finally:
        server.listener.close()
        sys.setswitchinterval(interval)
        for number, previous in before.items():
            signal.signal(number, previous)
    assert world.api.count("create") == len(pods)


def test_a_bind_of_which_the_scheduler_has_given_up_is_not_sent(world: World) -> None:
    """It has waited in the server's queue; that it was taken from there does not make it new."""
    pod = world.add_pod(3)
    world.see()
    body = orjson.dumps(bind_request(pod))
    answer = world.client().post("/gpushare-scheduler/bind", body, received=world.clock.at - 5)
    why = "there was no time left to bind the pod before kube-scheduler gives up; try again"
    assert (orjson.loads(answer.body), world.api.count("create")) == ({"Error": why}, 0)
    assert world.used() == {}


@pytest.mark.parametrize("slow", [0.1, 0.9])
def test_a_bind_ends_before_the_scheduler_gives_up(world: World, monkeypatch: pytest.MonkeyPatch, slow: float) -> None:
    """The watch lags, the pod is read slowly, the Binding gets no answer, and the pod cannot be read then."""
    pod, get, allowed = world.add_pod(3), world.api.get, []

    def slow_get(*args: Any, timeout_s: float) -> JsonObject:
        if world.api.count("create"):
            return silence(timeout_s=timeout_s)
        world.clock.at += slow * timeout_s
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
    assert 0.02 in world.clock.waits, "the watch is given some time"
    assert world.api.count("create") == 1
    assert world.state.index.reserved_on(uid_of(pod)) == {"node-a"}


CROWD = 600  # more than a page


@dataclass(frozen=True)
class Once(PodSink):
    """Ends its reflector after the first list."""

    stop: threading.Event = field(default_factory=threading.Event)

    def replace(self, found: list[AnyPod]) -> None:
        super().replace(found)
        self.stop.set()


@pytest.mark.parametrize("catches_up", [False, True], ids=["the cache stays behind", "the cache catches up"])
def test_a_stale_cache_does_not_grant_a_gpu_twice(catches_up: bool) -> None:
    world = World()
    world.add_node("node-a", 8)
    for i in range(CROWD):
        world.add_pod(0, name=f"crowd-{i}")
    first, second = world.add_pod(6, name="first"), world.add_pod(6, name="second")
    world.list_all()
    world.api.freeze_cache(PODS)
    assert world.bind(first).error == ""
    if catches_up:
        world.api.freeze_cache(PODS)

    world.start_controller()  # the next leader
    stop = threading.Event()
    for node in world.api.objects(NODES):
        NodeSink(world.state.index).upsert(node_records.read(node))
    Reflector(api=world.api, path=PODS, sink=Once(world.state.index, stop=stop), clock=world.clock).run(stop)
    assert world.bind(second).error != ""
    assert world.held_by(second) is None
    assert world.audit() == []
