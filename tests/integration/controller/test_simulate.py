"""`gpushare simulate` against the controller, which looks at the cluster by the clock, and kube-scheduler's scores."""

from typing import Any

import pytest

from bench.scheduling import configuration
from bench.scheduling.scheduler import Scheduler
from gpushare.kube.api import JsonObject
from gpushare.resource_config import ResourceConfig
from gpushare.wire import host
from gpushare_cli.schedconfig import ServerVersion
from testing import mix
from testing.cli.simulating import listed, simulate
from testing.controller.world import NODES, World

TICK_S = 0.2
SERVER = "1.20"


class Cluster:
    """A controller and its kube-scheduler."""

    def __init__(self) -> None:
        self._world = World()
        self._world.start_controller(ResourceConfig(whole_gpus=True))
        for name in mix.NODES:
            self._world.api.seed(NODES, mix.node(name))
        self._world.list_all()
        self._world.outlooks.tick()
        has = host.allocatable(mix.node(mix.NODES[0]))
        assert has is not None
        printed = configuration.printed(SERVER)
        self._scheduler = Scheduler(
            names=mix.NODES, has=[has] * len(mix.NODES), configuration=printed, transport=self, seed=1
        )
        self.placed = 0

    def ask(self, path: str, body: bytes) -> bytes:
        return self._world.client().post(path, body).body

    def bind(self, pod: JsonObject, node: str) -> None:
        self._world.edit_pod(pod, lambda found: found["spec"].update(nodeName=node))

    def create(self, pod: JsonObject) -> None:
        made = self._world.api.seed("/api/v1/namespaces/team/pods", pod)
        self._world.see()
        self.placed += self._scheduler.schedule(made, host.counted(made)).node is not None
        self._world.see()

    def wait(self, seconds: float) -> None:
        end = self._world.clock.at + seconds
        while self._world.clock.at // TICK_S < end // TICK_S:
            self._world.clock.at += min(TICK_S, end - self._world.clock.at)
            self._world.outlooks.tick()
        self._world.clock.at = end

    def allocated_percent(self) -> float:
        ledgers = self._world.truth().values()
        has = sum(gpu.memory_mib for ledger in ledgers for gpu in ledger.inventory.gpus)
        return 100 * sum(sum(ledger.used_mib.values()) for ledger in ledgers) / has


@pytest.fixture(scope="module")
def said() -> Any:
    """What simulate says for several seeds."""
    nodes, wanted = listed(*map(mix.node, mix.NODES)), listed(*mix.pods("dense"))
    server = ServerVersion.parse(SERVER)
    how: dict[str, Any] = {"policies": ["dense"], "seeds": range(1, 13), "server": server, "whole_gpus": True}
    return simulate(nodes, wanted, as_json=True, **how).value["runs"]


@pytest.mark.parametrize("pods_per_s", [0.5, 5, 100])
def test_pods_end_where_simulate_says_however_fast_they_come(said: Any, pods_per_s: float) -> None:
    cluster = Cluster()
    for pod in mix.pods("dense"):
        cluster.create(pod)
        cluster.wait(1 / pods_per_s)

    mix.assert_agrees(cluster.placed, cluster.allocated_percent(), said)
