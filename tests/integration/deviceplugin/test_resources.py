"""Several resources of one plugin: each has its own life with the kubelet, all show the same GPUs."""

import logging
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from deviceplugin.health import HealthLoop
from deviceplugin.inventory_feed import InventoryFeed
from deviceplugin.probe import Probe
from deviceplugin.renewal import Renewal
from deviceplugin.simulated import SimulatedSource
from gpushare.runtime.clock import SystemClock
from gpushare.units import GIB
from testing.builders import make_inventory
from testing.deviceplugin.build import NODE
from testing.deviceplugin.running import EVERYTHING, feed_with, running_all, show
from testing.fakes.kubelet import FakeKubelet, Plugin, wait_until

MEMORY, PERCENT, WHOLE = NAMES = ("aliyun.com/gpu-mem", "nano-gpu/gpu-percent", "nvidia.com/gpu")
SOCKETS = {MEMORY: "gpushare.sock", PERCENT: "gpushare-percent.sock", WHOLE: "gpushare-whole.sock"}


def connected(kubelet: FakeKubelet, registrations: int = 1) -> Mapping[str, Plugin]:
    return {name: kubelet.wait_for_devices(registrations, name) for name in NAMES}


def healths(plugin: Plugin) -> Mapping[str, int]:
    return Counter(plugin.lists[-1].values())


def test_each_resource_registers_on_its_own_socket(kubelet: FakeKubelet) -> None:
    with running_all(*EVERYTHING, directory=kubelet.directory):
        plugins = connected(kubelet)
        assert {request.resource_name: request.endpoint for request in kubelet.registrations} == SOCKETS
        assert all(request.options.pre_start_required for request in kubelet.registrations)
        assert {name: len(plugin.lists[0]) for name, plugin in plugins.items()} == {MEMORY: 8, PERCENT: 200, WHOLE: 2}
        assert len({device for plugin in plugins.values() for device in plugin.lists[0]}) == 210
    assert [file.name for file in kubelet.directory.iterdir()] == ["kubelet.sock"]


def test_allocate_answers_the_same_for_every_resource(kubelet: FakeKubelet) -> None:
    with running_all(*EVERYTHING, directory=kubelet.directory):
        for plugin in connected(kubelet).values():
            device = next(iter(plugin.lists[0]))
            assert plugin.allocate([device]) == [{"NVIDIA_VISIBLE_DEVICES": "void"}]


def test_a_change_of_health_reaches_the_kubelet_for_all_resources(kubelet: FakeKubelet) -> None:
    feed = feed_with(make_inventory(2, 3))
    with running_all(*EVERYTHING, directory=kubelet.directory, feed=feed):
        plugins = connected(kubelet)
        show(feed, make_inventory(2, 3, 1))
        wait_until(lambda: all(len(plugin.lists) == 2 for plugin in plugins.values()))
        assert {name: len(plugin.lists[-1]) for name, plugin in plugins.items()} == {MEMORY: 6, PERCENT: 300, WHOLE: 3}
        assert len(kubelet.registrations) == 3


def test_after_a_restart_of_the_kubelet_all_register_again(kubelet: FakeKubelet) -> None:
    with running_all(*EVERYTHING, directory=kubelet.directory):
        before = connected(kubelet)
        kubelet.restart_with_the_same_inode()
        after = connected(kubelet, 2)
        assert all(plugin.ended.is_set() for plugin in before.values())
        assert {name: plugin.lists[-1] for name, plugin in after.items()} == {
            name: plugin.lists[-1] for name, plugin in before.items()
        }


@pytest.mark.parametrize("lost", NAMES)
def test_a_socket_that_was_removed_disturbs_no_other_resource(kubelet: FakeKubelet, lost: str) -> None:
    with running_all(*EVERYTHING, directory=kubelet.directory):
        before = connected(kubelet)
        (kubelet.directory / SOCKETS[lost]).unlink()
        kubelet.wait_for_devices(2, lost)
        wait_until(before[lost].ended.is_set)
        assert len(kubelet.registrations) == 4
        assert not any(plugin.ended.is_set() for name, plugin in before.items() if name != lost)


def test_a_resource_that_the_kubelet_refuses_holds_up_no_other(
    kubelet: FakeKubelet, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    kubelet.refused = {WHOLE: "the ResourceName is not allowed"}
    with running_all(*EVERYTHING, directory=kubelet.directory):
        kubelet.wait_for_devices(1, MEMORY)
        kubelet.wait_for_devices(1, PERCENT)
        wait_until(lambda: "not registered" in caplog.messages)
        kubelet.refused = {}
        kubelet.wait_for_devices(1, WHOLE)
        assert len(kubelet.of(MEMORY)) == len(kubelet.of(PERCENT)) == 1
    fields = [record.__dict__["gpushare_fields"] for record in caplog.records if record.message == "not registered"]
    assert fields[0] == {"resource": WHOLE, "error": "INVALID_ARGUMENT: the ResourceName is not allowed"}


def test_the_plugin_is_registered_when_all_its_resources_are(kubelet: FakeKubelet) -> None:
    clock = SystemClock()
    state = Probe(port=0, clock=clock, parts=NAMES)
    kubelet.refused = {PERCENT: "not yet"}

    with running_all(*EVERYTHING, directory=kubelet.directory) as registrars:
        for registrar in registrars:
            registrar.on_beat = partial(state.beat, registrar.resource.name)
        kubelet.wait_for_devices(1, MEMORY)
        kubelet.wait_for_devices(1, WHOLE)
        assert not state.registered()
        kubelet.refused = {}
        wait_until(state.registered)
        (kubelet.directory / SOCKETS[WHOLE]).unlink()
        wait_until(lambda: not state.registered())
        wait_until(state.registered)


GPUS = "gpus:\n  - {model: Tesla T4, memoryMiB: 4096, count: 2}\n"
FAULT = "faults:\n  - {gpu: 1, kind: KIND, recoversAfterPolls: 10}\n"


@contextmanager
def reading(profile: Path, feed: InventoryFeed) -> Iterator[None]:
    """The GPUs of a profile, read again and again."""
    clock, stop = SystemClock(), threading.Event()
    source = SimulatedSource(path=profile, node=NODE, clock=clock)
    loop = HealthLoop(
        source=source,
        feed=feed,
        clock=clock,
        node=NODE,
        unit=GIB,
        offered=EVERYTHING,
        poll_s=0.2,
        renewal=Renewal(clock=clock, works=lambda: False),
    )
    thread = threading.Thread(target=loop.run, args=(stop,))
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


@pytest.mark.parametrize("kind", ["xid", "ecc", "lost"])
def test_a_gpu_that_dies_and_comes_back_does_so_for_all_resources(
    kubelet: FakeKubelet, tmp_path: Path, kind: str
) -> None:
    feed, profile = InventoryFeed(), tmp_path / "profile.yaml"
    profile.write_text(GPUS)
    with reading(profile, feed), running_all(*EVERYTHING, directory=kubelet.directory, feed=feed):
        plugins = connected(kubelet)
        first = {name: plugin.lists[-1] for name, plugin in plugins.items()}
        profile.write_text(GPUS + FAULT.replace("KIND", kind))
        wait_until(lambda: all(len(plugin.lists) >= 3 for plugin in plugins.values()))
        died = {name: Counter(plugin.lists[1].values()) for name, plugin in plugins.items()}
        assert died == {
            MEMORY: {"Healthy": 4, "Unhealthy": 4},
            PERCENT: {"Healthy": 100, "Unhealthy": 100},
            WHOLE: {"Healthy": 1, "Unhealthy": 1},
        }
        assert {name: plugin.lists[2] for name, plugin in plugins.items()} == first
        assert [healths(plugin) for plugin in plugins.values()] == [
            {"Healthy": 8},
            {"Healthy": 200},
            {"Healthy": 2},
        ]
        assert len(kubelet.registrations) == 3
