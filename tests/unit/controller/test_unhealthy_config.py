"""Aliyun's ConfigMaps of unhealthy GPUs keep new pods away, whatever is in them."""

import logging
import threading
from typing import Any

import pytest

from controller import unhealthy
from controller.unhealthy import PATH
from gpushare import names
from gpushare.kube import api as kube
from gpushare.model.gpu import GpuHealth
from testing.clock import ManualClock, ending
from testing.controller.world import NODES, World


def call_ill(world: World, value: object, node: str = "node-a") -> None:
    name = f"unhealthy-gpu-{node}"
    if any(found["metadata"]["name"] == name for found in world.api.objects(PATH)):
        world.api.edit(f"{PATH}/{name}", lambda found: found.update(data={"gpus": value}))
    else:
        world.api.seed(PATH, {"metadata": {"name": name}, "data": {"gpus": value}})
    world.see()


def health(world: World, node: str = "node-a") -> list[GpuHealth]:
    return [gpu.health for gpu in world.ledger(node).inventory.gpus]


OK, ILL, CORDONED = GpuHealth.HEALTHY, GpuHealth.UNHEALTHY, GpuHealth.CORDONED


@pytest.mark.parametrize(
    "obj",
    [
        {"metadata": 3},
        {"metadata": {"name": "unhealthy-gpu-a"}, "data": "0"},
        {"metadata": {"name": "unhealthy-gpu-a"}, "data": {"gpus": 7}},
    ],
)
def test_what_is_no_config_map_is_left_out(world: World, obj: Any, caplog: pytest.LogCaptureFixture) -> None:
    assert world.unhealthy_sink.read(obj) is None
    assert caplog.messages == ["object left out"]


def test_a_gpu_that_is_called_unhealthy_takes_no_new_pod_until_it_is_not(world: World) -> None:
    call_ill(world, "0")
    assert health(world) == [ILL, OK]
    assert health(world, "node-b") == [OK, OK]
    pod = world.add_pod(3)
    assert world.bind(pod).error == ""
    assert world.gpus_of(pod) == ["GPU-1"]
    call_ill(world, "")
    assert health(world) == [OK, OK]
    assert world.state.cache.snapshot().differences() == []


def test_pods_on_it_keep_what_they_have(world: World) -> None:
    world.add_bound(3)
    call_ill(world, "0,1")
    assert world.used() == {"GPU-0": 3}
    assert world.bind(world.add_pod(3)).error.startswith("node-a has no healthy GPU")
    assert world.state.cache.snapshot().differences() == []


def test_without_its_config_map_a_node_is_as_its_plugin_says(world: World) -> None:
    call_ill(world, "0")
    world.api.vanish(f"{PATH}/unhealthy-gpu-node-a")
    world.see()
    assert health(world) == [OK, OK]
    call_ill(world, "0")
    world.api.vanish(f"{PATH}/unhealthy-gpu-node-a")
    world.list_all()
    assert health(world) == [OK, OK]


def test_marks_that_went_while_they_must_not_be_read_are_cleared(world: World) -> None:
    call_ill(world, "0")
    stop = threading.Event()

    def look(_at: float) -> None:
        if not world.api.objects(PATH):
            stop.set()
        else:
            assert health(world) == [ILL, OK]
            world.api.vanish(f"{PATH}/unhealthy-gpu-node-a")

    world.api.fail_next(lambda call: call.verb == "watch", kube.ForbiddenError("no"))
    world.api.close()
    unhealthy.watch(api=world.api, state=world.state, clock=ManualClock(on_wait=look)).run(stop)
    assert health(world) == [OK, OK]


def test_a_node_that_comes_later_has_what_was_said_before() -> None:
    world = World()
    world.list_all()
    call_ill(world, "1", "node-c")
    assert world.state.cache.snapshot().ledgers == {}
    world.add_node("node-c", 10, 10)
    world.see()
    assert health(world, "node-c") == [OK, ILL]
    world.api.vanish(f"{NODES}/node-c")
    world.see()
    world.add_node("node-c", 10, 10)
    world.see()
    assert health(world, "node-c") == [OK, ILL]


def test_a_cordon_and_an_ill_gpu_add_up(world: World) -> None:
    call_ill(world, "0")
    world.api.edit(
        f"{NODES}/node-a", lambda node: node["metadata"]["annotations"].update({names.ANNOTATION_CORDON: "GPU-1, 0"})
    )
    world.see()
    assert health(world) == [ILL, CORDONED]
    call_ill(world, "")
    assert health(world) == [CORDONED, CORDONED]
    assert world.bind(world.add_pod(3)).error != ""


def test_a_complaint_is_logged_once_until_it_changes(world: World, caplog: pytest.LogCaptureFixture) -> None:
    for value in ("0,x", "0,x", "x,1"):
        call_ill(world, value)
        world.list_all()
    assert caplog.messages.count("unhealthy GPUs unreadable") == 1
    call_ill(world, "y")
    call_ill(world, "1")
    call_ill(world, "y")
    assert caplog.messages.count("unhealthy GPUs unreadable") == 3


def test_numbers_that_no_gpu_has_are_logged_once(world: World, caplog: pytest.LogCaptureFixture) -> None:
    call_ill(world, "0,7")
    world.api.edit(
        f"{NODES}/node-b", lambda node: node["metadata"]["annotations"].update({names.ANNOTATION_CORDON: "GPU-9,1"})
    )
    world.see()
    for _ in range(3):
        world.reconciler.tick()
    found = [record.__dict__["gpushare_fields"] for record in caplog.records if record.message == "no such GPUs"]
    assert found == [{"node": "node-a", "gpus": "7"}, {"node": "node-b", "gpus": "GPU-9"}]
    assert health(world) == [ILL, OK]
    call_ill(world, "0,8")
    world.reconciler.tick()
    assert caplog.messages.count("no such GPUs") == 3


def test_freed_gpus_let_waiting_pods_try_again(world: World) -> None:
    call_ill(world, "0,1")
    before = world.state.cache.freed
    call_ill(world, "1")
    assert world.state.cache.freed > before


def test_without_the_right_to_read_them_the_controller_goes_on(world: World, caplog: pytest.LogCaptureFixture) -> None:
    stop = threading.Event()
    watch = unhealthy.watch(api=world.api, state=world.state, clock=ending(stop))
    assert not watch.settled()
    world.api.fail_next(lambda call: call.path == PATH, kube.ForbiddenError("configmaps is forbidden"))
    with caplog.at_level(logging.WARNING):
        watch.run(stop)
    assert watch.settled()
    fields = caplog.records[-1].__dict__["gpushare_fields"]
    assert fields["fix"] == "grant the controller list and watch of configmaps in namespace kube-system"
    assert fields["effect"] == "ConfigMaps unhealthy-gpu-NODE keep no GPU from being used"


def test_the_watch_feeds_the_ledger(world: World) -> None:
    world.api.seed(PATH, {"metadata": {"name": "unhealthy-gpu-node-a"}, "data": {"gpus": "1"}})
    world.api.seed(PATH, {"metadata": {"name": "kube-root-ca.crt"}, "data": {"ca.crt": "x"}})
    world.api.close()
    stop = threading.Event()
    watch = unhealthy.watch(api=world.api, state=world.state, clock=ending(stop))
    watch.run(stop)
    assert watch.settled()
    assert health(world) == [OK, ILL]
