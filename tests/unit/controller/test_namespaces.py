"""The policy of a namespace counts for its pods that name none, for the node that they get and for their GPU."""

import logging
import threading
from typing import Any

import pytest

from controller import namespaces
from controller.namespaces import NamespaceSink, Policies
from gpushare import names
from gpushare.model.request import Policy
from gpushare.runtime.clock import SystemClock
from testing.controller.world import World
from testing.fakes.kube import FakeKube

NODES = ["node-a", "node-b"]


def namespace(name: str, policy: str) -> dict[str, Any]:
    return {"metadata": {"name": name, "labels": {names.LABEL_POLICY: policy}}}


def followed(*objects: dict[str, Any]) -> NamespaceSink:
    sink = NamespaceSink(Policies())
    sink.replace([each for each in map(sink.read, objects) if each is not None])
    return sink


def upsert(sink: NamespaceSink, obj: dict[str, Any]) -> None:
    found = sink.read(obj)
    assert found is not None
    sink.upsert(found)


def test_the_sink_follows_the_collection() -> None:
    sink = followed(namespace("a", "spread"), namespace("b", "dense"))
    assert sink.policies.by_namespace == {"a": Policy.SPREAD, "b": Policy.DENSE}
    upsert(sink, namespace("a", "binpack"))
    upsert(sink, namespace("c", "fgd"))
    gone = sink.read(namespace("b", "dense"))
    assert gone is not None
    sink.remove(gone)
    assert sink.policies.by_namespace == {"a": Policy.BINPACK, "c": Policy.FGD}
    assert sink.policies.of("b") is None


def test_a_label_that_names_no_policy_has_no_effect_and_is_told(caplog: pytest.LogCaptureFixture) -> None:
    sink = followed(namespace("a", "spread"))
    upsert(sink, namespace("a", "fast"))
    assert sink.policies.by_namespace == {}
    [line] = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert line.gpushare_fields == {  # type: ignore[attr-defined]  # set by `logs.event`
        "namespace": "a",
        "error": "'fast' is no policy; write binpack, spread, dense or fgd",
    }


@pytest.mark.parametrize("obj", [{"metadata": 3}, {"metadata": {"labels": []}}, {"metadata": {"name": ["x"]}}])
def test_what_is_no_namespace_is_left_out(obj: dict[str, Any]) -> None:
    assert NamespaceSink(Policies()).read(obj) is None


def test_only_namespaces_with_the_label_are_read() -> None:
    api, known, stop = FakeKube(), Policies(), threading.Event()
    api.seed("/api/v1/namespaces", namespace("a", "spread"))
    api.seed("/api/v1/namespaces", {"metadata": {"name": "b"}})
    api.close()

    class Once(SystemClock):
        def wait(self, stop: threading.Event, seconds: float) -> bool:
            stop.set()
            return True

    namespaces.watch(api=api, clock=Once(), known=known).run(stop)
    assert known.by_namespace == {"a": Policy.SPREAD}
    assert {call.params["labelSelector"] for call in api.calls if call.params.get("limit") != "1"} == {
        names.LABEL_POLICY
    }


def test_pods_that_name_no_policy_have_that_of_their_namespace(world: World) -> None:
    world.bind(world.add_pod(3), "node-a")
    world.see()
    scores = {"team": 10, "apart": 1}
    world.state.policies.by_namespace = {"apart": Policy.SPREAD}
    for namespace, score in scores.items():
        pod = world.add_pod(3, namespace=namespace)
        answer = world.post("prioritize", {"Pod": pod, "NodeNames": NODES})
        assert {each["Host"]: each["Score"] for each in answer}["node-a"] == score
        world.bind(pod, "node-a")
        world.see()
    assert world.used() == {"GPU-0": 6, "GPU-1": 3}
    own = world.add_pod(4, namespace="apart", annotations={names.ANNOTATION_POLICY: "binpack"})
    world.bind(own)
    assert world.used() == {"GPU-0": 10, "GPU-1": 3}
