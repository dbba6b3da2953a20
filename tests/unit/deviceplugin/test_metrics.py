"""What the device plugin tells: its inventory on the Node, probes and Prometheus."""

import errno
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from threading import Event
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from deviceplugin import metrics, ports
from deviceplugin.causes import Cause, Code
from deviceplugin.inventory import InventoryFeed
from deviceplugin.metrics import MOST_ROWS
from deviceplugin.node import Publisher
from deviceplugin.ports import Probe
from deviceplugin.usage.join import GpuTotal, NodeUsage, Row, UsageReading
from gpushare.identity import ContainerName, GpuUuid
from gpushare.kube import api as kube
from gpushare.model.gpu import GpuHealth, HandOver, LeftOut, Limit, NodeInventory
from gpushare.runtime.clock import SystemClock
from gpushare.runtime.pages import Response
from gpushare.wire import inventory as wire
from testing.builders import Json, make_gpu, make_inventory, make_node, make_ref
from testing.clock import ManualClock, ending
from testing.deviceplugin.build import NODE, fields_of
from testing.deviceplugin.running import feed_with, in_threads
from testing.fakes.http_server import free_port
from testing.fakes.kube import FakeKube
from testing.fakes.kubelet import wait_until

MIB = 1024 * 1024
HERE = {"node": NODE}
GPUS = (
    replace(make_gpu(0, 16), limit=Limit.CGROUP),
    replace(make_gpu(1, 16), limit=Limit.CGROUP),
    replace(make_gpu(2, 8, health=GpuHealth.UNHEALTHY), reason=Cause(f"{Code.XID}79", "Xid 79: off the bus")),
)
MIG = (replace(make_gpu(0, 3), limit=Limit.MIG), replace(make_gpu(1, 4), limit=Limit.MIG))


def row(pod: str = "p", *, gpu: int = 0, used: int | None = None, peak: int | None = None) -> Row:
    uuid, name = GpuUuid(f"GPU-{gpu}"), ContainerName("main")
    return Row(pod=make_ref(pod), container=name, gpu=uuid, granted_mib=3072, used=used, peak=peak)


def at(gpu: int) -> dict[str, str]:
    return {"node": "node-a", "UUID": f"GPU-{gpu}", "gpu": str(gpu)}


def usage(**fields: Any) -> NodeUsage:
    return NodeUsage(**{"node": NODE, "gpus": GPUS, "foreign": {}} | fields)


def samples(
    usage: NodeUsage | None, starts: Mapping[tuple[str, str], int] | None = None
) -> dict[str, list[tuple[Mapping[str, str], float]]]:
    found: dict[str, list[tuple[Mapping[str, str], float]]] = {}
    for family in text_string_to_metric_families(metrics.page(usage, starts or {}, {}, NODE).decode()):
        for each in family.samples:
            if each.name.startswith("gpushare_plugin_"):
                found.setdefault(each.name.removeprefix("gpushare_plugin_"), []).append((each.labels, each.value))
    return found


def test_gpus_are_counted_by_health_and_limit() -> None:
    found = samples(usage(left_out=(LeftOut(index=3, reason="a sentence of no code"),), foreign={GPUS[0].uuid: 5}))
    assert found["gpus"] == [
        ({**HERE, "health": "Healthy", "limit": "cgroup"}, 2.0),
        ({**HERE, "health": "Unhealthy", "limit": "advisory"}, 1.0),
    ]
    assert found["gpu_memory_bytes"][-1] == ({**at(2), "model": "Tesla T4", "limit": "advisory"}, 8192 * MIB)
    assert found["gpu_foreign_bytes"] == [(at(0), 5.0)]
    assert [value for _, value in found["gpu_healthy"]] == [1.0, 1.0, 0.0]
    assert found["gpu_unhealthy"] == [
        ({**at(2), "reason": "Xid79"}, 1.0),
        ({"node": "node-a", "UUID": "", "gpu": "3", "reason": "Other"}, 1.0),
    ]


def test_of_every_gpu_it_is_told_what_is_granted_and_used() -> None:
    totals = {
        GPUS[0].uuid: GpuTotal(usable_mib=16384, granted_mib=4096, granted_percent=25, pods=2, used=7),
        GPUS[1].uuid: GpuTotal(usable_mib=16384),
    }
    found = samples(usage(totals=totals, measured={GPUS[1].uuid: {"utilization_ratio": 0.5, "power_watts": 70.5}}))
    assert found["gpu_utilization_ratio"] == [(at(1), 0.5)]
    assert found["gpu_power_watts"] == [(at(1), 70.5)]
    assert "gpu_temperature_celsius" not in found, "what is not known has no series"
    expected = {
        "memory_usable_bytes": (16384 * MIB, 16384 * MIB, 0),
        "memory_granted_bytes": (4096 * MIB, 0, 0),
        "compute_granted_ratio": (0.25, 0, 0),
        "pods": (2, 0, 0),
    }
    for name, values in expected.items():
        assert found[f"gpu_{name}"] == [(at(number), value) for number, value in enumerate(values)]
    assert found["gpu_memory_used_bytes"] == [(at(0), 7.0)]


def test_what_holds_limits_is_told_with_why_it_is_not_stronger() -> None:
    weak = replace(GPUS[2], limit=Limit.MPS, limit_reason=Cause(Code.DRIVER_OLD, "cgroup: the driver is old"))
    assert samples(usage(gpus=(GPUS[0], weak)))["gpu_limit_info"] == [
        ({**at(0), "limit": "cgroup", "enforced": "true", "reason": ""}, 1.0),
        ({**at(2), "limit": "mps", "enforced": "false", "reason": "DriverTooOld"}, 1.0),
    ]


def test_it_is_told_whether_use_is_read_and_whose_processes_are_known() -> None:
    found = samples(usage(reading=UsageReading.ON, processes=(2, 3)))
    assert found["usage_info"] == [({**HERE, "reading": "on"}, 1.0)]
    assert found["gpu_processes"] == [({**HERE, "known": "true"}, 2.0), ({**HERE, "known": "false"}, 3.0)]
    unknown = samples(usage(reading=UsageReading.SILENT))
    assert unknown["usage_info"] == [({**HERE, "reading": "no-answer"}, 1.0)]
    assert "gpu_processes" not in unknown


def test_containers_have_what_is_known_of_them() -> None:
    rows = (row("a", used=7, peak=9), row("b", gpu=9), row("c", gpu=2, peak=4))
    found = samples(usage(rows=rows))
    place = {"namespace": "default", "container": "main"}
    a, b, c = ({**place, **at(gpu), "pod": pod} for pod, gpu in (("a", 0), ("b", 9), ("c", 2)))
    b["gpu"] = ""
    assert found["container_granted_bytes"] == [
        ({**a, "limit": "cgroup"}, 3072 * MIB),
        ({**b, "limit": ""}, 3072 * MIB),
        ({**c, "limit": "advisory"}, 3072 * MIB),
    ]
    assert found["container_used_bytes"] == [(a, 7.0)]
    assert found["container_peak_bytes"] == [(a, 9.0), (c, 4.0)]
    odd = replace(row("p", used=1), container=ContainerName(""))  # one that holds nothing of the GPU
    [(labels, _)] = samples(usage(rows=(odd,)))["container_used_bytes"]
    assert labels["container"] == "_others", "Prometheus would write the name of its target into an empty label"
    parts = samples(usage(gpus=MIG, rows=(row("all"), row("part", gpu=1))))["container_granted_bytes"]
    assert [labels["limit"] for labels, _ in parts] == ["mig", "advisory"], "mig holds no part of an instance"
    assert found["containers_left_out"] == [(HERE, 0.0)]


def test_a_pod_with_very_many_containers_hides_no_other_one() -> None:
    many = [replace(row("a"), container=ContainerName(f"c{number}")) for number in range(MOST_ROWS + 9)]
    rows = (*many, row("b"), row("c"))
    found = samples(usage(rows=rows))["container_granted_bytes"]
    assert len(found) == MOST_ROWS
    assert [labels["pod"] for labels, _ in found[-2:]] == ["b", "c"]


LONG = "c" * 200_000
ODD = ('a"} 1\ngpushare_plugin_gpus{node="b', "\\", "\\n", '"', "\n# EOF", "{}", " ", "\u202eé" * 300, "_others", "")


def test_ten_thousand_pods_with_odd_names_write_no_line_of_their_own_and_none_is_long() -> None:
    """Their names come from annotations, which a tenant may have written past the API server's rules for names."""
    names = [f"{ODD[number % len(ODD)]}{number}" for number in range(9_999)] + [LONG]
    rows = tuple(replace(row(name, used=1, peak=1), container=ContainerName(name)) for name in reversed(names))
    text = metrics.page(usage(rows=rows), {}, {}, NODE).decode()
    lines = [line for line in text.split("\n") if line and not line.startswith("#")]
    assert len(lines) <= 10 * len(GPUS) + 3 * MOST_ROWS + 100
    assert max(map(len, lines)) < 1000
    found = samples(usage(rows=rows))
    told = {labels["container"] for labels, _ in found["container_used_bytes"]}
    assert told <= {name[:253] for name in names}
    assert found["containers_left_out"] == [(HERE, 10_000.0 - MOST_ROWS)]
    assert found["gpus"] == samples(usage())["gpus"]


def test_starts_are_shown_by_outcome_and_reason() -> None:
    found = samples(None, {("accepted", ""): 2, ("refused", "GpuGone"): 1})["starts_total"]
    assert [(labels["outcome"], labels["reason"], value) for labels, value in found] == [
        ("accepted", "", 2.0),
        ("refused", "GpuGone", 1.0),
    ]


def test_a_port_that_is_taken_is_logged_and_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    stop = Event()

    clock = ending(stop, 2)
    with socket.create_server(("", 0)) as taken:
        port = int(taken.getsockname()[1])
        ports.serve_metrics(stop, port=port, make=lambda: Response(200, b""), clock=clock)
    assert clock.waits == [30.0, 30.0]
    error = f"--metrics-port {port}: Address already in use"
    assert [found["error"] for found in fields_of(caplog, "metrics not served")] == [error] * 2


@pytest.fixture
def port() -> int:
    return free_port()


def test_it_takes_connections_while_the_plugin_is_registered_and_closes_them_unread(port: int) -> None:
    served = Probe(port=port, clock=SystemClock(), parts=["m"])
    with in_threads(served.run):
        for _ in range(2):
            served.beat("m", True)
            wait_until(lambda: not ports.problem(port))
            with socket.create_connection(("127.0.0.1", port), 10.0) as connection:
                assert connection.recv(10) == b""
            served.beat("m", False)
            wait_until(lambda: ports.problem(port))


def test_all_parts_have_to_be_registered_and_to_say_so_again_whatever_the_wall_clock_says() -> None:
    clock, usable = ManualClock(), [True]
    served = Probe(port=1, clock=clock, parts=["memory", "percent"], usable=lambda: usable[0])
    served.beat("memory", True)
    assert not served.registered()
    served.beat("percent", True)
    clock.at += 29.0
    served.beat("memory", True)
    assert served.registered()
    clock.at += 1.0
    assert not served.registered()
    served.beat("percent", True)
    assert served.registered()
    usable[0] = False  # only a new process can read the GPUs
    assert not served.registered()
    usable[0] = True
    served.beat("percent", False)
    assert not served.registered()


def test_a_process_that_stands_still_is_found(port: int) -> None:
    """A listening socket from which nothing is taken, as when the process hangs."""
    server = Probe(port=port, clock=ManualClock(), parts=[])._listen()
    assert server is not None

    def connect(held: ExitStack) -> None:
        for _ in range(5):  # more than wait to be taken
            held.enter_context(socket.create_connection(("127.0.0.1", port), 0.3))

    with server, ExitStack() as held, pytest.raises(TimeoutError):
        connect(held)


def test_without_a_free_file_descriptor_it_waits_instead_of_spinning() -> None:
    clock, stop = ManualClock(), threading.Event()
    served = Probe(port=1, clock=clock, parts=[])

    class Exhausted(socket.socket):
        accepts = 0

        def accept(self) -> Any:
            self.accepts += 1
            if self.accepts == 5:
                stop.set()
            raise OSError(errno.EMFILE, "Too many open files")

    with Exhausted() as server:
        served._take(server, stop)
    assert sum(clock.waits) >= 4 * 0.5


def test_a_port_that_is_taken_is_reported_once(port: int, caplog: pytest.LogCaptureFixture) -> None:
    served = Probe(port=port, clock=SystemClock(), parts=[])
    with socket.create_server(("", port)):
        assert served._listen() is None
        assert served._listen() is None
    assert [(found["port"], "in use" in found["error"]) for found in fields_of(caplog, "probes not served")] == [
        (port, True)
    ]


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


def test_the_inventory_and_the_number_of_gpus_are_written_beside_what_others_wrote(api: FakeKube) -> None:
    api.edit(PATH, lambda found: found["status"].update(capacity={"cpu": "4"}))
    with publishing(api):
        pass
    found = api.read(PATH)
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
    assert wire.of_node(api.read(PATH)) == final
    assert [call.verb for call in api.calls] == ["patch", "patch"]


def test_what_somebody_changed_is_put_right_also_after_a_check_that_fails(
    api: FakeKube, caplog: pytest.LogCaptureFixture
) -> None:
    with publishing(api, recheck_s=0.05):
        for _ in range(2):
            api.edit(PATH, lambda found: found["metadata"]["annotations"].clear())
            wait_until(lambda: wire.of_node(api.read(PATH)) == make_inventory(4, 4))
            api.fail_next(lambda call: call.verb == "get", kube.ServerFaultError("etcd is slow"))
    assert fields_of(caplog, "inventory was changed by others")


@pytest.mark.parametrize(("gpus", "count", "core"), [(10, "10", "1k"), (0, "0", "0")])
def test_a_check_writes_no_amount_that_is_as_the_api_server_spells_it(
    api: FakeKube, gpus: int, count: str, core: str
) -> None:
    with publishing(api, feed_with(make_inventory(*[15] * gpus))) as publisher:
        publisher.published.wait()
        publisher.recheck()
        wait_until(lambda: api.count("get"))
    assert api.read(PATH)["status"]["capacity"] == dict(zip(AMOUNTS, (count, core), strict=True))
    assert api.count("patch") == 2


def forget(kept: dict[str, str], found: Json) -> None:
    found["status"].update(capacity=kept, allocatable=kept)


def test_amounts_that_a_kubelet_forgot_are_written_again(api: FakeKube) -> None:
    first, second = ({name: amount} for name, amount in AMOUNTS.items())
    with publishing(api) as publisher:
        for kept in (first, second, {}):
            api.edit(PATH, partial(forget, kept))
            publisher.recheck()
            wait_until(lambda: api.read(PATH)["status"]["capacity"] == AMOUNTS)


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


def test_what_claims_have_is_of_their_gpus() -> None:
    text = metrics.page(None, {}, {}, NODE, [(GPUS[0], 3 << 30)], {"prepared": 2}).decode()
    assert f'gpushare_plugin_claimed_bytes{{UUID="{GPUS[0].uuid}",gpu="0",node="node-a"}} 3.221225472e+09' in text
    assert 'gpushare_plugin_claims_total{node="node-a",outcome="prepared"} 2.0' in text
