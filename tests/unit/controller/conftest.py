from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from gpushare import names
from gpushare.kube.api import JsonObject
from gpushare.model.ledger import NodeLedger, Verdict
from gpushare.model.request import RequestShape
from gpushare.placement.place import place
from gpushare.placement.policies import Policies
from testing.builders import make_container, make_inventory, make_node, make_pod
from testing.controller.world import World

Lets = Callable[[Callable[[], object]], None]


def lines(caplog: pytest.LogCaptureFixture, event: str) -> list[dict[str, object]]:
    """Fields of what was logged under this name."""
    return [record.__dict__["gpushare_fields"] for record in caplog.records if record.getMessage() == event]


def node(name: str, *gib: int, cpu: int = 32, model: str = "") -> JsonObject:
    """With a host of so many CPUs, and 4 GiB for each; without GPUs if there are no sizes."""
    inventory = make_inventory(*gib, node=name)
    if model:
        inventory = replace(inventory, gpus=tuple(replace(gpu, model=model) for gpu in inventory.gpus))
    made = make_node(inventory) if gib else make_node(name=name)
    made["status"]["allocatable"] |= {"cpu": str(cpu), "memory": f"{4 * cpu}Gi"}
    return made


def pod(name: str, *, gib: int = 0, cpu: str = "1", on: str | None = None, **annotations: str) -> JsonObject:
    amounts: dict[str, Any] = {"requests": {"cpu": cpu, "memory": "1Gi"}}
    if gib:
        amounts["limits"] = {names.GPU_MEM: gib}
    notes = {f"gpushare.dev/{key.replace('_', '-')}": value for key, value in annotations.items()}
    return make_pod(make_container(resources=amounts), name=name, namespace="team", node=on, annotations=notes)


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
