"""The cluster of `--demo`, and that both commands show it on a machine that has nothing, and is no Linux."""

import re
import signal
import subprocess
import sys
import threading
import urllib.request
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import cast

import pytest

from gpushare.kube.api import GoneError, KubeApi
from gpushare.model.gpu import GpuHealth
from gpushare.runtime.clock import SystemClock
from gpushare.units import GIB
from gpushare.wire import allocations, pods as pods_wire
from gpushare_cli import __main__ as cli, demo, holders
from gpushare_cli.dashboard import command
from gpushare_cli.dashboard.picture import Live, Picture
from testing.builders import Json

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
ELSEWHERE = """
import os, select, signal, socket, sys, time
sys.modules |= dict.fromkeys(("fcntl", "grp", "mmap", "pty", "pwd", "resource", "syslog", "termios", "tty"))
gone = {os: "fork sched_ getuid geteuid kill memfd_ eventfd", select: "poll epoll", signal: "SIGHUP SIGUSR pthread_",
        socket: "TCP_KEEPIDLE AF_UNIX SO_REUSEPORT", time: "clock_gettime CLOCK_"}
for module, begins in gone.items():
    for name in [name for name in vars(module) if name.startswith(tuple(begins.split()))]:
        delattr(module, name)
socket.TCP_KEEPALIVE = 1
from gpushare_cli.__main__ import main
sys.exit(main())
"""


def stepped(steps: int, seed: int = 1) -> Iterator[demo.MemoryApi]:
    """After each step."""
    api = demo.MemoryApi()
    script = demo.Script(api, seed)
    for i in range(steps):
        script.step(BEGIN + timedelta(seconds=i * demo.STEP_S))
        yield api


def gpu_pods(api: demo.MemoryApi) -> list[Json]:
    return [pod for pod in api.listed("pods") if "annotations" in pod["metadata"]]


def test_no_gpu_is_granted_beyond_its_memory_and_everything_that_can_be_shown_happens() -> None:
    seen = Counter[str]()
    for api in stepped(500, seed=7):
        report = holders.build(api.listed("nodes"), gpu_pods(api), {})
        for row in (gpu for node in report.nodes for gpu in node.gpus):
            assert row.used_mib <= row.total_mib
            seen[row.gpu.health.value] += 1
        seen.update(pod["status"]["phase"] for pod in gpu_pods(api))
        assert not report.notes
    seen.update(event["reason"] for event in api.listed("events"))
    named = {pod["metadata"]["name"] for pod in gpu_pods(api)}
    assert seen.keys() >= {"Pending", "Running", "Succeeded", "GpuShareUnschedulable", "GpuShareOverGrant"}
    assert seen.keys() >= {each.value for each in GpuHealth}
    assert max(int(name.rpartition("-")[2]) for name in named) > 3 * len(named), "pods go, too"
    assert all(allocations.granted(pod, GIB) for pod in gpu_pods(api) if pods_wire.node_of(pod))


def test_the_same_seed_makes_the_same_cluster_and_another_one_another() -> None:
    first, again, other = ([*stepped(40, seed)][-1] for seed in (1, 1, 2))
    assert first.pages == again.pages != other.pages
    for resource in ("nodes", "pods", "events"):
        assert first.listed(resource) == again.listed(resource)


def test_a_watch_gives_what_has_changed_since_and_is_told_if_that_is_no_longer_known() -> None:
    [*_, api] = stepped(3)
    version = api.list_page("/api/v1/pods", keep=lambda _: None).version
    api.put("pods", {"metadata": {"name": "a", "namespace": "research"}})
    api.put("pods", {"metadata": {"name": "b", "namespace": "vision"}})
    watch = api.watch("/api/v1/namespaces/vision/pods", {"resourceVersion": version}, timeout_s=0.01)
    found = [(event["type"], event["object"]["metadata"].get("name")) for event in watch]
    assert found == [("MODIFIED", "b"), ("BOOKMARK", None)]
    for _ in range(1000):
        api.put("nodes", {"metadata": {"name": "c"}})
    with pytest.raises(GoneError):
        next(api.watch("/api/v1/pods", {"resourceVersion": version}, timeout_s=0.01))


@pytest.mark.parametrize(("namespaces", "complete"), [((), True), (("research", "vision"), False)])
def test_the_picture_has_pods_of_the_namespaces_that_are_asked_for_and_why_they_wait(
    namespaces: tuple[str, ...], complete: bool
) -> None:
    [*_, api] = stepped(60)
    picture = drawn(command.of_cluster(cast("KubeApi", api), command.Options(namespace=namespaces), str, SystemClock()))
    blocks = [block for node in picture.nodes.values() for card in node.cards for block in card.blocks]
    known = {pod["metadata"]["namespace"] for pod in gpu_pods(api)}
    assert {block.namespace for block in blocks} == set(namespaces or known)
    assert all(block.used_mib for block in blocks)
    assert (picture.overview.complete, len(picture.nodes), picture.overview.notes) == (complete, 4, ())
    assert picture.waiting
    for waits in picture.waiting:
        assert re.search(r"needs .*; free per GPU on .*\d", waits.reason), waits.reason


def drawn(live: Live) -> Picture:
    stop = threading.Event()
    live.start(stop)
    live.asked.wait()
    stop.set()
    assert live.picture is not None
    return live.picture


@pytest.mark.parametrize("flag", ["--kubeconfig", "--context", "--installation"])
@pytest.mark.parametrize("name", ["top", "dashboard"])
def test_a_demonstration_of_a_certain_cluster_is_a_contradiction(
    name: str, flag: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([name, "--demo", flag, "x"]) == 2
    said = f"error: {flag} has no meaning with --demo, which reads no cluster; leave one of them out\n"
    assert capsys.readouterr() == ("", said)


def test_a_demonstration_has_no_users_who_could_sign_in(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["dashboard", "--demo", "--sign-in"]) == 2
    assert "leave --demo and -n out" in capsys.readouterr().err


def started(*arguments: str) -> "subprocess.Popen[str]":
    words = [sys.executable, "-c", ELSEWHERE, *arguments]
    return subprocess.Popen(words, env={}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_top_needs_neither_a_cluster_nor_an_environment_nor_linux() -> None:
    out, err = started("top", "--demo", "--once").communicate()
    assert err == f"note: {demo.NOTE}\n"
    assert out.startswith("11 GPUs on 4 nodes")
    assert "free per GPU on" in out


def test_the_dashboard_needs_no_more_and_keeps_its_key() -> None:
    with started("dashboard", "--demo", "--port", "0") as process:
        assert process.stdout is not None
        address, _, key = process.stdout.readline().strip().partition("#key=")
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/", address)
        asked, body = urllib.request.Request(f"{address}picture", headers={command.KEY: key}), b""
        while not body:
            with urllib.request.urlopen(asked) as answer:
                body = answer.read()
        assert demo.NOTE.encode() in body
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate()
    assert (process.returncode, err.splitlines()[0]) == (0, f"note: {demo.NOTE}")
