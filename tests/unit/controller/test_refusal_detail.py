"""With `--refusal-detail=reduced`, nothing that is written about a pod tells what others have."""

from dataclasses import replace
from typing import Any

import pytest

from controller.reconcile.node_requests import ASK_AFTER_S, Limits
from controller.reconcile.placeholders import Placeholders
from controller.reconcile.waiting import SETTLE_S
from gpushare import names
from gpushare.identity import NodeName
from gpushare.model.gpu import GpuHealth, HandOver
from gpushare.model.ledger import RefusalReason, Refused
from gpushare.model.request import Choice, GpuSelector, RequestShape
from gpushare.placement import explain, search
from gpushare.units import GIB, MemoryUnit, ResourceConfig
from testing.builders import make_inventory, make_node, make_shape
from testing.controller.bypassing import REPLICA_SET, add_bypassed, run_containers, said, tick
from testing.controller.world import NODES, World, is_binding, path_of

FULL, UNKNOWN = "node-f81", "node-u99"
OF_OTHERS = ("node-", "secret", "Tesla", "T4", "GPU-", "MiB")
SHAPES = {
    "memory": make_shape(3),
    "compute": replace(make_shape(1), containers=(replace(make_shape(1).containers[0], compute_percent=40),)),
    "whole": replace(
        make_shape(1), containers=(replace(make_shape(1).containers[0], memory_mib=0, whole=True, gpu_count=2),)
    ),
    "model": replace(make_shape(3), gpus=GpuSelector(models=Choice(wanted=("H100",)))),
    "several": make_shape((3, 4)),
    "only CDI": replace(make_shape(3), only_cdi=True),
    "long search": make_shape(1, 1),
}


def tells_of_others(text: str, shape: RequestShape, *own: str) -> bool:
    """Beside the pod's request and these words of its own."""
    for known in (explain.needs(shape, GIB), str(shape.gpus), *own):
        text = text.replace(known, "") if known else text
    return any(word in text for word in OF_OTHERS) or any(map(str.isdigit, text))


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    """A node for each reason to refuse a pod; pods of a namespace `secret` hold GPUs of some."""
    monkeypatch.setattr(search, "MAX_STEPS", 1)
    world = World()
    world.start_controller(ResourceConfig(whole_gpus=True), reduced=True)

    def add(name: str, *gib: int, why: str = "", **fields: Any) -> None:
        inventory = make_inventory(*gib, node=name)
        health = GpuHealth.UNHEALTHY if why else GpuHealth.HEALTHY
        gpus = tuple(replace(gpu, health=health, reason=why) for gpu in inventory.gpus)
        world.api.seed(NODES, make_node(replace(inventory, gpus=gpus, **fields)))

    add(FULL, 10, 10)
    add("node-e80", 9)
    add("node-i82", 7, why="secret Xid 79")
    add("node-m83", 7, unit=MemoryUnit(256))
    add("node-c84", 7, hand_over=HandOver.ENVVAR)
    for name in ("node-r85", "node-g86"):
        add(name, 7)
    broken = make_node(name="node-b87")
    broken["metadata"]["annotations"] = {names.ANNOTATION_INVENTORY: "secret 7"}
    world.api.seed(NODES, broken)
    world.list_all()
    for number in range(2):
        world.add_bound(8, node=FULL, namespace="secret", name=f"secret-{number}")
    held = world.add_bound(6, node="node-r85", namespace="secret", name="secret-7")
    busy = world.add_pod(1, namespace="secret")
    many = {"limits": {names.GPU_MEM: 1, names.GPU_CORE: 90}}
    world.edit_pod(busy, lambda pod: pod["spec"]["containers"][0].update(resources=many))
    assert world.bind(world.api.read(path_of(busy)), "node-e80").error == ""
    world.see()
    bad = {names.ANNOTATION_ALLOCATION: "[]", f"{names.PREFIX_MEMORY}c0": "x"}
    world.edit_pod(held, lambda pod: pod["metadata"].update(annotations=bad))
    world.see()
    foreign = add_bypassed(world, 0, node="node-g86", name="secret-foreign", mutated=False)
    limits = {"limits": {names.GPU: "1"}}
    world.edit_pod(foreign, lambda pod: pod["spec"]["containers"][0].update(resources=limits))
    run_containers(world, foreign, "c0")
    world.see()
    return world


def test_a_refusal_has_the_pods_request_and_the_kind_of_reason(world: World) -> None:
    told = set()
    asked = [*world.snapshot().ledgers, NodeName(UNKNOWN)]
    for shape in SHAPES.values():
        reasons = {text: reason for reason, text in explain.reduced(shape, GIB).items()}
        found = world.table.filter(shape, asked)
        for text in (*found.failed.values(), *found.unresolvable.values()):
            told.add(reasons[text])
            assert not tells_of_others(text, shape), text
    assert told == set(RefusalReason)


def test_what_bind_answers_has_no_more(world: World) -> None:
    pod = world.add_pod(3, name="own")
    assert world.bind(pod, FULL).error == explain.reduced(SHAPES["memory"], GIB)[RefusalReason.INSUFFICIENT_GPU_MEMORY]
    world.api.fail_next(is_binding, "lost-request")
    world.bind(pod, "node-e80")
    world.api.vanish(f"{NODES}/node-e80")
    world.add_node("node-e80")
    world.see()
    assert world.bind(pod, "node-e80").error.endswith("; the node has no healthy GPU for it"), "it may be bound there"


def test_nor_what_a_pod_on_its_node_is_told_that_is_outrun(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    full = Refused(RefusalReason.INSUFFICIENT_GPU_MEMORY, "free per GPU on node-e80: secret")
    monkeypatch.setattr(world.state, "reserve", lambda *_, **__: full)
    add_bypassed(world, 3, node="node-e80")
    tick(world)
    [text] = [text for reason, text in said(world) if reason == "GpuShareWaiting"]
    assert not tells_of_others(text, SHAPES["memory"], "node-e80"), text


def test_no_event_has_more(world: World) -> None:
    limits, by = Limits(most=1, life_s=10_000.0), {names.ANNOTATION_HAND_OVER: HandOver.CDI.value}
    asks = Placeholders(
        writer=world.writer, state=world.state, table=world.table, refusals=world.refusals, limits=limits
    )
    world.reconciler.others = (asks.tick,)
    add_bypassed(world, 8, node=FULL)
    waits = world.add_waiting(9)
    world.add_waiting(9, annotations=by, ownerReferences=[REPLICA_SET])
    world.post("filter", {"Pod": waits, "NodeNames": [FULL, "node-e80"]})
    tick(world)
    world.api.seed(NODES, make_node(replace(make_inventory(11, node="node-k89"), hand_over=HandOver.ENVVAR)))
    tick(world, max(SETTLE_S, ASK_AFTER_S), times=3)
    told, own = said(world), (FULL, "needs 9 GiB on one GPU", waits["metadata"]["uid"])
    texts = {reason: {text for each, text in told if each == reason} for reason, _ in told}
    assert len(texts.pop("GpuShareUnschedulable")) == 3
    assert texts.keys() == {"GpuShareWaiting", "GpuShareNodeRequested", "GpuShareNotMutated"}
    for _, text in told:
        assert not tells_of_others(text, make_shape(8), *own), text
