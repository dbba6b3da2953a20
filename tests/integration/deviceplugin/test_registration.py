"""The plugin and a kubelet find each other, whatever is restarted."""

import json
import logging
import socket
import threading
from pathlib import Path

import pytest

from deviceplugin import resources, server
from deviceplugin.inventory_feed import InventoryFeed
from deviceplugin.registrar import Registrar
from gpushare.runtime.clock import SystemClock
from testing.builders import make_inventory
from testing.deviceplugin.running import feed_with, running, show, start_all
from testing.fakes.kubelet import FakeKubelet, wait_until


def test_it_serves_before_it_registers_and_offers_one_device_for_each_unit(kubelet: FakeKubelet) -> None:
    with running(directory=kubelet.directory):
        plugin = kubelet.wait_for_devices()
        (request,) = kubelet.registrations
        assert (request.version, request.endpoint, request.resource_name) == (
            "v1beta1",
            "gpushare.sock",
            "aliyun.com/gpu-mem",
        )
        assert request.options.pre_start_required
        assert plugin.options.pre_start_required
        assert not plugin.options.get_preferred_allocation_available
        assert list(plugin.lists[0].values()) == ["Healthy"] * 8


def test_a_change_of_health_reaches_the_kubelet_at_once(kubelet: FakeKubelet) -> None:
    feed = feed_with(make_inventory(2, 3))
    with running(directory=kubelet.directory, feed=feed):
        plugin = kubelet.wait_for_devices()
        show(feed, make_inventory(2, 3, 1))
        wait_until(lambda: len(plugin.lists) == 2)
        assert [len(devices) for devices in plugin.lists] == [5, 6]
        assert len(kubelet.registrations) == 1


def test_a_restarted_kubelet_is_noticed_though_its_socket_has_the_same_inode(kubelet: FakeKubelet) -> None:
    with running(directory=kubelet.directory):
        first = kubelet.wait_for_devices()
        inode = kubelet.socket.stat().st_ino
        kubelet.restart_with_the_same_inode()
        second = kubelet.wait_for_devices(2)
        assert kubelet.socket.stat().st_ino == inode
        assert first.ended.is_set()
        assert len(second.lists[0]) == 8


def test_a_kubelet_that_was_replaced_gets_a_new_registration(directory: Path) -> None:
    old, new = FakeKubelet(directory), FakeKubelet(directory)
    old.start()
    with running(directory=directory):
        old.wait_for_devices()
        old.stop()
        new.start()
        new.wait_for_devices()
    new.stop()


def test_a_kubelet_that_comes_late_is_waited_for(directory: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    late, beats = FakeKubelet(directory), list[bool]()
    with running(directory=directory, on_beat=beats.append):
        wait_until(lambda: len(beats) >= 3)
        late.start()
        late.wait_for_devices()
    late.stop()
    assert caplog.messages.count("no kubelet") == 1


def test_a_removed_plugin_socket_is_served_and_registered_again(kubelet: FakeKubelet, directory: Path) -> None:
    with running(directory=directory):
        first = kubelet.wait_for_devices()
        (directory / "gpushare.sock").unlink()
        kubelet.wait_for_devices(2)
        wait_until(first.ended.is_set)
        assert (directory / "gpushare.sock").exists()


def test_a_registration_that_no_one_follows_up_is_repeated(kubelet: FakeKubelet) -> None:
    kubelet.dials_back = False
    with running(directory=kubelet.directory, lonely_s=0.3):
        wait_until(lambda: len(kubelet.registrations) >= 2)
        kubelet.dials_back = True
        kubelet.wait_for_devices()


def test_a_lost_stream_of_devices_leads_to_a_new_registration(kubelet: FakeKubelet) -> None:
    with running(directory=kubelet.directory, lonely_s=0.3):
        kubelet.wait_for_devices().close()
        kubelet.wait_for_devices(2)


def test_a_refused_registration_is_logged_with_its_reason_and_tried_again(
    kubelet: FakeKubelet, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    kubelet.refuses = "requested API version is not supported"
    with running(directory=kubelet.directory):
        wait_until(lambda: len(kubelet.registrations) >= 2)
        kubelet.refuses = ""
        kubelet.wait_for_devices()
    fields = [record.__dict__["gpushare_fields"] for record in caplog.records if record.message == "not registered"]
    assert fields[0] == {
        "resource": "aliyun.com/gpu-mem",
        "error": "INVALID_ARGUMENT: requested API version is not supported",
    }


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


def test_a_socket_that_an_earlier_process_left_is_replaced(kubelet: FakeKubelet, directory: Path) -> None:
    (directory / "gpushare.sock").write_text("stale")
    with running(directory=directory):
        kubelet.wait_for_devices()


def test_a_directory_in_the_place_of_the_socket_is_reported_and_waited_out(
    kubelet: FakeKubelet, directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (directory / "gpushare.sock").mkdir()
    with running(directory=directory):
        wait_until(lambda: "not serving" in caplog.messages)
        (directory / "gpushare.sock").rmdir()
        kubelet.wait_for_devices()
    error = next(r.__dict__["gpushare_fields"]["error"] for r in caplog.records if r.message == "not serving")
    assert error.startswith(f"cannot serve on {directory}/gpushare.sock: ")


def test_stopping_ends_the_stream_and_removes_the_socket(kubelet: FakeKubelet, directory: Path) -> None:
    beats: list[bool] = []
    with running(directory=directory, on_beat=beats.append):
        plugin = kubelet.wait_for_devices()
        wait_until(lambda: True in beats)
    wait_until(plugin.ended.is_set)
    assert not (directory / "gpushare.sock").exists()
    assert beats[-1] is False


def test_nothing_is_registered_before_the_gpus_are_known(kubelet: FakeKubelet) -> None:
    feed, beats = InventoryFeed(), list[bool]()
    with running(directory=kubelet.directory, feed=feed, on_beat=beats.append):
        wait_until(lambda: beats)
        assert kubelet.registrations == []
        show(feed, make_inventory(4))
        kubelet.wait_for_devices()


def test_it_waits_for_the_inventory_to_be_published(kubelet: FakeKubelet) -> None:
    published = threading.Event()
    clock = SystemClock()
    with running(directory=kubelet.directory, ready=published.is_set, ready_by=clock.monotonic() + 300.0):
        assert not clock.wait(threading.Event(), 0.2)
        assert kubelet.registrations == []
        published.set()
        kubelet.wait_for_devices()


def test_it_registers_though_the_inventory_cannot_be_published(kubelet: FakeKubelet) -> None:
    registered = threading.Event()
    ready_by = SystemClock().monotonic() + 0.1
    with running(directory=kubelet.directory, ready=lambda: False, ready_by=ready_by, on_registered=registered.set):
        kubelet.wait_for_devices()
        wait_until(registered.is_set)


def test_a_link_that_is_stopped_before_it_began_does_nothing(directory: Path) -> None:
    stop = threading.Event()
    stop.set()
    Registrar(
        resource=resources.MEMORY,
        directory=directory,
        feed=InventoryFeed(),
        start_check=start_all,
        clock=SystemClock(),
    ).run(stop)
    assert list(directory.iterdir()) == []


def test_allocate_answers_the_same_to_everybody(kubelet: FakeKubelet) -> None:
    constant = {"NVIDIA_VISIBLE_DEVICES": "void"}
    with running(directory=kubelet.directory):
        plugin = kubelet.wait_for_devices()
        first, second, third = list(plugin.lists[0])[:3]
        assert plugin.allocate([first]) == [constant]
        assert plugin.allocate([first, second], [third]) == [constant, constant]


@pytest.mark.parametrize(
    ("requests", "answers"),
    [
        ([], 0),  # no container
        ([[]], 1),  # a container without IDs
        ([["no-such-id"]], 1),
        ([["g000", "g000"]], 1),
        ([[json.dumps({"a": 1}), "\x00", "é" * 500]], 1),
    ],
)
def test_allocate_answers_also_what_makes_no_sense(
    kubelet: FakeKubelet, requests: list[list[str]], answers: int
) -> None:
    with running(directory=kubelet.directory):
        plugin = kubelet.wait_for_devices()
        assert len(plugin.allocate(*requests)) == answers


def test_a_server_leaves_a_socket_alone_that_another_process_made_in_its_place(directory: Path) -> None:
    own = server.PluginServer(
        server.Servicer(resource=resources.MEMORY, feed=feed_with(), start_check=start_all),
        directory / "gpushare.sock",
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
    monkeypatch.setattr("deviceplugin.registrar._STEADY_S", 0.0)
    with running(directory=directory):
        for times in range(1, 5):
            kubelet.wait_for_devices(times)
            (directory / "gpushare.sock").unlink()
        kubelet.wait_for_devices(5)
