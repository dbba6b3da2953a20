"""The plugin and a kubelet find each other, whatever is restarted: each resource has its own life with the kubelet."""

import logging
import socket
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from deviceplugin import resources, server
from deviceplugin.decide import Accept, Decision
from deviceplugin.inventory import InventoryFeed
from deviceplugin.ports import Probe
from deviceplugin.resources import Resource
from gpushare.runtime.clock import SystemClock
from testing.builders import make_inventory
from testing.deviceplugin.build import fields_of
from testing.deviceplugin.running import EVERYTHING, feed_with, no_devices, running, running_all, start_all
from testing.fakes.kubelet import FakeKubelet, Plugin, wait_until

MEMORY, PERCENT, WHOLE = NAMES = ("aliyun.com/gpu-mem", "nano-gpu/gpu-percent", "nvidia.com/gpu")
SOCKETS = {MEMORY: "gpushare.sock", PERCENT: "gpushare-percent.sock", WHOLE: "gpushare-whole.sock"}


def connected(kubelet: FakeKubelet, registrations: int = 1) -> Mapping[str, Plugin]:
    return {name: kubelet.wait_for_devices(registrations, name) for name in NAMES}


def sizes(plugins: Mapping[str, Plugin]) -> list[int]:
    """How many devices each resource has now."""
    return [len(plugin.lists[-1]) for plugin in plugins.values()]


def test_each_resource_serves_on_its_own_socket_before_it_registers(kubelet: FakeKubelet) -> None:
    with running_all(*EVERYTHING, directory=kubelet.directory):
        plugins = connected(kubelet)
        assert {request.resource_name: request.endpoint for request in kubelet.registrations} == SOCKETS
        assert all(
            request.version == "v1beta1" and request.options.pre_start_required for request in kubelet.registrations
        )
        assert all(plugin.options.pre_start_required for plugin in plugins.values())
        assert not any(plugin.options.get_preferred_allocation_available for plugin in plugins.values())
        assert sizes(plugins) == [8, 200, 2]
        assert {device for plugin in plugins.values() for device in plugin.lists[0].values()} == {"Healthy"}
        assert len({device for plugin in plugins.values() for device in plugin.lists[0]}) == 210
    assert [file.name for file in kubelet.directory.iterdir()] == ["kubelet.sock"]


def test_a_change_of_health_reaches_the_kubelet_for_all_resources(kubelet: FakeKubelet) -> None:
    feed = feed_with(make_inventory(2, 3))
    with running_all(*EVERYTHING, directory=kubelet.directory, feed=feed):
        plugins = connected(kubelet)
        feed.post(make_inventory(2, 3, 1))
        wait_until(lambda: all(len(plugin.lists) == 2 for plugin in plugins.values()))
        assert sizes(plugins) == [6, 300, 3]
        assert len(kubelet.registrations) == 3


def test_a_restarted_kubelet_is_noticed_though_its_socket_has_the_same_inode(kubelet: FakeKubelet) -> None:
    with running_all(*EVERYTHING, directory=kubelet.directory):
        before = connected(kubelet)
        inode = kubelet.socket.stat().st_ino
        kubelet.restart_with_the_same_inode()
        after = connected(kubelet, 2)
        assert kubelet.socket.stat().st_ino == inode
        assert all(plugin.ended.is_set() for plugin in before.values())
        assert [after[name].lists[-1] for name in NAMES] == [before[name].lists[-1] for name in NAMES]


def test_a_kubelet_that_comes_late_is_waited_for_and_one_that_replaces_it_is_registered_with(
    directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    late, new, beats = FakeKubelet(directory), FakeKubelet(directory), list[bool]()
    with running(directory=directory, on_beat=beats.append):
        wait_until(lambda: len(beats) >= 3)
        late.start()
        late.wait_for_devices()
        assert caplog.messages.count("no kubelet") == 1
        late.stop()
        new.start()
        new.wait_for_devices()
    new.stop()


@pytest.mark.parametrize("lost", NAMES)
def test_a_socket_that_was_removed_is_served_again_and_disturbs_no_other_resource(
    kubelet: FakeKubelet, lost: str
) -> None:
    with running_all(*EVERYTHING, directory=kubelet.directory):
        before = connected(kubelet)
        (kubelet.directory / SOCKETS[lost]).unlink()
        kubelet.wait_for_devices(2, lost)
        wait_until(before[lost].ended.is_set)
        assert (kubelet.directory / SOCKETS[lost]).exists()
        assert len(kubelet.registrations) == 4
        assert not any(plugin.ended.is_set() for name, plugin in before.items() if name != lost)


def test_a_registration_that_no_one_follows_up_or_whose_stream_is_lost_is_repeated(kubelet: FakeKubelet) -> None:
    kubelet.dials_back = False
    with running(directory=kubelet.directory, lonely_s=0.3):
        wait_until(lambda: len(kubelet.registrations) >= 2)
        kubelet.dials_back = True
        kubelet.wait_for_devices().close()
        kubelet.wait_for_devices(2)


def test_the_plugin_is_registered_when_all_its_resources_are_and_one_that_is_refused_holds_up_no_other(
    kubelet: FakeKubelet, caplog: pytest.LogCaptureFixture
) -> None:
    state = Probe(port=0, clock=SystemClock(), parts=NAMES)
    kubelet.refused = {PERCENT: "not yet"}
    with running_all(*EVERYTHING, directory=kubelet.directory) as registrars:
        for registrar in registrars:
            registrar.on_beat = partial(state.beat, registrar.resource.name)
        kubelet.wait_for_devices(1, MEMORY)
        kubelet.wait_for_devices(1, WHOLE)
        wait_until(lambda: "not registered" in caplog.messages)
        assert fields_of(caplog, "not registered")[0] == {"resource": PERCENT, "error": "INVALID_ARGUMENT: not yet"}
        assert not state.registered()
        kubelet.refused = {}
        wait_until(state.registered)
        (kubelet.directory / SOCKETS[WHOLE]).unlink()
        wait_until(lambda: not state.registered())
        wait_until(state.registered)


def test_a_dead_kubelet_that_left_its_socket_is_tried_until_it_is_back(
    directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(directory / "kubelet.sock"))
    alive = FakeKubelet(directory)
    with running(directory=directory):
        wait_until(lambda: "not registered" in caplog.messages)
        alive.start()
        alive.wait_for_devices()
    alive.stop()


def test_a_directory_in_the_place_of_the_socket_is_reported_and_waited_out(
    kubelet: FakeKubelet, directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (directory / "gpushare.sock").mkdir()
    with running(directory=directory):
        wait_until(lambda: "not serving" in caplog.messages)
        (directory / "gpushare.sock").rmdir()
        kubelet.wait_for_devices()
    error = fields_of(caplog, "not serving")[0]["error"]
    assert error.startswith(f"cannot serve on {directory}/gpushare.sock: ")
    (directory / "gpushare.sock").write_text("stale")  # of an earlier process
    with running(directory=directory):
        kubelet.wait_for_devices(2)


def test_nothing_is_registered_before_the_gpus_are_known_and_stopping_ends_the_stream(kubelet: FakeKubelet) -> None:
    feed, beats = InventoryFeed(), list[bool]()
    with running(directory=kubelet.directory, feed=feed, on_beat=beats.append):
        wait_until(lambda: beats)
        assert kubelet.registrations == []
        feed.post(make_inventory(4))
        plugin = kubelet.wait_for_devices()
        wait_until(lambda: True in beats)
    wait_until(plugin.ended.is_set)
    assert beats[-1] is False


def test_it_waits_for_the_inventory_to_be_published_but_not_forever(kubelet: FakeKubelet) -> None:
    published, registered, clock = threading.Event(), threading.Event(), SystemClock()
    with running(directory=kubelet.directory, ready=published.is_set, ready_by=clock.monotonic() + 300.0):
        assert not clock.wait(threading.Event(), 0.2)
        assert kubelet.registrations == []
        published.set()
        kubelet.wait_for_devices()
    ready_by = clock.monotonic() + 0.1
    with running(directory=kubelet.directory, ready=lambda: False, ready_by=ready_by, on_registered=registered.set):
        kubelet.wait_for_devices(2)
        wait_until(registered.is_set)


ODD: list[list[list[str]]] = [[], [[]], [["no-such-id"]], [["g000", "g000"]], [['{"a": 1}', "\x00", "é" * 500]]]


def test_allocate_answers_the_same_to_everybody_and_also_what_makes_no_sense(kubelet: FakeKubelet) -> None:
    constant = {"NVIDIA_VISIBLE_DEVICES": "void"}
    with running_all(*EVERYTHING, directory=kubelet.directory):
        for plugin in connected(kubelet).values():
            first, second = list(plugin.lists[0])[:2]
            assert plugin.allocate([first]) == [constant]
            assert plugin.allocate([first, second], [second]) == [constant, constant]
            for requests in ODD:
                assert plugin.allocate(*requests) == [constant] * len(requests)


def test_a_server_leaves_a_socket_alone_that_another_process_made_in_its_place(directory: Path) -> None:
    own = server.PluginServer(
        resource=resources.MEMORY, directory=directory, feed=feed_with(), start_check=start_all, answer=no_devices
    )
    own.start()
    assert own.intact()
    (directory / "gpushare.sock").unlink()
    (directory / "gpushare.sock").mkdir()
    assert not own.intact()
    own.stop()
    assert (directory / "gpushare.sock").is_dir()


def test_a_socket_that_is_removed_every_now_and_then_is_served_again_at_once(
    kubelet: FakeKubelet, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("deviceplugin.server._STEADY_S", 0.0)
    with running(directory=directory):
        for times in range(1, 5):
            kubelet.wait_for_devices(times)
            (directory / "gpushare.sock").unlink()
        kubelet.wait_for_devices(5)


def test_allocate_answers_while_all_starts_wait(kubelet: FakeKubelet) -> None:
    waiting, go = threading.Semaphore(0), threading.Event()

    def check(_resource: Resource, _ids: Sequence[str]) -> Decision:
        waiting.release()
        go.wait()
        return Accept(())

    resource = replace(resources.MEMORY, starts=2)
    with running(directory=kubelet.directory, resource=resource, start_check=check):
        plugin = kubelet.wait_for_devices()
        starts = [threading.Thread(target=plugin.start, args=("g000",)) for _ in range(resource.starts)]
        for start in starts:
            start.start()
        for _ in starts:
            waiting.acquire()
        assert len(plugin.allocate(["g001"])) == 1
        go.set()
        for start in starts:
            start.join()
