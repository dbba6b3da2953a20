"""The inventory on the Node object."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from deviceplugin.inventory import InventoryFeed
from deviceplugin.node import Publisher
from gpushare.kube import api as kube
from gpushare.model.gpu import HandOver, NodeInventory
from gpushare.runtime.clock import SystemClock
from gpushare.wire import inventory as wire
from testing.builders import Json, make_inventory, make_node
from testing.deviceplugin.build import NODE, fields_of
from testing.deviceplugin.running import feed_with, in_threads
from testing.fakes.kube import FakeKube
from testing.fakes.kubelet import wait_until

PATH = "/api/v1/nodes/node-a"
AMOUNTS = {"aliyun.com/gpu-count": "2", "aliyun.com/gpu-core.percentage": "200"}


@pytest.fixture
def api() -> FakeKube:
    fake = FakeKube()
    fake.seed(PATH, make_node(name="node-a"))
    return fake


@contextmanager
def publishing(
    api: FakeKube, feed: InventoryFeed | None = None, recheck_s: float = 300.0, **more: Any
) -> Iterator[Publisher]:
    """Until the inventory has been published, unless the test gives a feed itself."""
    is_known, feed = feed is None, feed or feed_with()
    publisher = Publisher(api=api, feed=feed, clock=SystemClock(), node=NODE, recheck_s=recheck_s, **more)
    with in_threads(publisher.run, wake=feed.wake):
        if is_known:
            publisher.published.wait()
        yield publisher


def node(api: FakeKube) -> Json:
    return api.read(PATH)


def test_the_inventory_and_the_number_of_gpus_are_written_beside_what_others_wrote(api: FakeKube) -> None:
    api.edit(PATH, lambda found: found["status"].update(capacity={"cpu": "4"}))
    with publishing(api):
        pass
    found = node(api)
    assert wire.of_node(found) == make_inventory(4, 4)
    assert (found["status"]["capacity"], found["status"]["allocatable"]) == ({"cpu": "4"} | AMOUNTS, AMOUNTS)
    assert [call.verb for call in api.calls] == ["patch", "patch"]


def test_what_is_not_final_is_not_told(api: FakeKube) -> None:
    """How GPUs are handed over is a guess until the Node was read."""
    guess, final = (replace(make_inventory(15), hand_over=way) for way in (HandOver.CDI, HandOver.ENVVAR))
    feed, asked = feed_with(guess), threading.Event()

    def is_final(inventory: NodeInventory) -> bool:
        if inventory == guess:
            asked.set()
        return inventory == final

    with publishing(api, feed, final=is_final) as publisher:
        assert asked.wait()
        assert not publisher.published.is_set()
        feed.post(final)
        assert publisher.published.wait()
    assert wire.of_node(node(api)) == final
    assert [call.verb for call in api.calls] == ["patch", "patch"]


def test_what_somebody_changed_is_put_right(api: FakeKube, caplog: pytest.LogCaptureFixture) -> None:
    with publishing(api, recheck_s=0.05):
        api.edit(PATH, lambda found: found["metadata"]["annotations"].clear())
        wait_until(lambda: wire.of_node(node(api)) == make_inventory(4, 4))
    assert fields_of(caplog, "inventory was changed by others")


@pytest.mark.parametrize(("gpus", "count", "core"), [(10, "10", "1k"), (0, "0", "0")])
def test_a_check_writes_no_amount_that_is_as_the_api_server_spells_it(
    api: FakeKube, gpus: int, count: str, core: str
) -> None:
    with publishing(api, feed_with(make_inventory(*[15] * gpus))) as publisher:
        publisher.published.wait()
        publisher.recheck()
        wait_until(lambda: api.count("get"))
    assert node(api)["status"]["capacity"] == dict(zip(AMOUNTS, (count, core), strict=True))
    assert api.count("patch") == 2


def forget(kept: dict[str, str], found: Json) -> None:
    found["status"].update(capacity=kept, allocatable=kept)


def test_amounts_that_a_kubelet_forgot_are_written_again(api: FakeKube) -> None:
    first, second = ({name: amount} for name, amount in AMOUNTS.items())
    with publishing(api) as publisher:
        for kept in (first, second, {}):
            api.edit(PATH, partial(forget, kept))
            publisher.recheck()
            wait_until(lambda: node(api)["status"]["capacity"] == AMOUNTS)


def test_a_check_that_fails_is_made_again_soon(api: FakeKube) -> None:
    with publishing(api) as publisher:
        api.edit(PATH, lambda found: found["metadata"]["annotations"].clear())
        api.fail_next(lambda call: call.verb == "get", kube.ServerFaultError("etcd is slow"))
        publisher.recheck()
        wait_until(lambda: wire.of_node(node(api)) == make_inventory(4, 4))


def test_nothing_is_written_before_the_gpus_are_known(api: FakeKube) -> None:
    with publishing(api, InventoryFeed(), recheck_s=0.01) as publisher:
        publisher.recheck()
        assert not publisher.published.wait(0.1)
    assert api.calls == []


RIGHTS = "the plugin's ClusterRole needs get and patch on nodes and patch on nodes/status"


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (kube.ForbiddenError("nodes is forbidden"), f"nodes is forbidden; {RIGHTS}"),
        (kube.NotFoundError('nodes "x" not found'), 'nodes "x" not found; is --node-name the name of this Node?'),
        (kube.ServerFaultError("etcd is slow"), "etcd is slow"),
    ],
)
def test_a_failure_says_what_to_do_and_is_tried_again(
    api: FakeKube, caplog: pytest.LogCaptureFixture, error: kube.KubeError, message: str
) -> None:
    api.fail_next(lambda call: call.verb == "patch", error, times=2)
    with publishing(api):
        pass
    assert [line["error"] for line in fields_of(caplog, "not published")] == [message] * 2
