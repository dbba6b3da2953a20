"""A new leader sees every Binding of the leader before it, also where the API server's cache does not yet."""

import threading
from dataclasses import dataclass

import pytest

from controller.watches import NodeSink, PodSink
from gpushare.cluster import node_records
from gpushare.cluster.records import AnyPod
from gpushare.kube.watch import Reflector
from testing.controller.world import NODES, PODS, World

CROWD = 600  # more than a page


@dataclass(frozen=True)
class Once(PodSink):
    """Ends its reflector after the first list."""

    stop: threading.Event

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
        NodeSink(world.state).upsert(node_records.read(node))
    Reflector(api=world.api, path=PODS, sink=Once(world.state, stop), clock=world.clock).run(stop)
    assert world.bind(second).error != ""
    assert world.held_by(second) is None
    assert world.state.cache.snapshot().differences() == []
