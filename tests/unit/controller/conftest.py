from collections.abc import Callable

import pytest

from gpushare.model.ledger import NodeLedger, Verdict
from gpushare.model.request import RequestShape
from gpushare.placement.place import place
from gpushare.placement.policies import Policies
from testing.controller.world import World

Lets = Callable[[Callable[[], object]], None]


@pytest.fixture
def world() -> World:
    """Two nodes with two GPUs of 10 GiB each, and a controller that has read them."""
    world = World()
    world.add_node("node-a", 10, 10)
    world.add_node("node-b", 10, 10)
    world.list_all()
    world.api.calls.clear()
    return world


@pytest.fixture
def during_a_search(monkeypatch: pytest.MonkeyPatch) -> Lets:
    """Lets something happen during the next search for GPUs of a node, which holds no lock."""

    def lets(happen: Callable[[], object]) -> None:
        def placing(shape: RequestShape, ledger: NodeLedger, policies: Policies) -> Verdict:
            monkeypatch.setattr("gpushare.cluster.node_ledger.place", place)
            happen()
            return place(shape, ledger, policies)

        monkeypatch.setattr("gpushare.cluster.node_ledger.place", placing)

    return lets
