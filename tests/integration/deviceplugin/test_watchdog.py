"""The watchdog over real processes and the real NVML binding; only the cgroups of the processes are made up."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from deviceplugin import pods
from deviceplugin.inventory import InventoryFeed
from deviceplugin.nvml.driver import NvmlProcesses
from deviceplugin.pods import PodCache
from deviceplugin.refusals import Refusals
from deviceplugin.usage.loop import UsageLoop
from deviceplugin.usage.procfs import Procfs
from deviceplugin.usage.values import WatchdogPolicy
from deviceplugin.usage.watchdog import Namespaces, Watchdog
from gpushare.runtime.clock import SystemClock
from testing.builders import make_grant, make_inventory
from testing.clock import ManualClock
from testing.deviceplugin.usage import container_id, current_usage, running_pod, uid
from testing.fakes.kube import FakeKube
from testing.nvml.stub import MIB, Stub

OBEYS = "import sys, time; print(flush=True); time.sleep(3600)"
IGNORES = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + OBEYS


class Scene:
    """Pods 1 and 2 hold 3 GiB of GPU-0 each; pod 1 has a process that obeys SIGTERM and one that does not."""

    def __init__(self, proc: Path, nvml: Any, stub: Stub, stack: ExitStack) -> None:
        self.proc, self.stub = proc, stub
        self.mild, self.hard, self.other = (
            self.start(stack, code, pod) for code, pod in ((OBEYS, 1), (IGNORES, 1), (OBEYS, 2))
        )
        stub.add_gpu(16384, uuid="GPU-0")
        inventory, feed = make_inventory(16), InventoryFeed()
        feed.post(inventory)
        self.clock, api = ManualClock(SystemClock().monotonic()), FakeKube()
        api.seed("/api/v1/namespaces/default", {"metadata": {"name": "default"}})
        cache = PodCache(self.clock)
        for number in (1, 2):
            cache.upsert(pods.reduce(running_pod(number, make_grant(0), ids={"main": number})))
        self.table = Procfs(proc)
        self.dog = Watchdog(
            policy=WatchdogPolicy.KILL,
            grace_s=10.0,
            gap_s=20.0,
            tolerance_mib=0,
            api=api,
            table=self.table,
            events=Refusals(api=api, clock=self.clock),
            namespaces=Namespaces(api=api, clock=self.clock),
            clock=self.clock,
        )
        self.current = current_usage(feed, cache, self.clock, stale_s=60.0)
        self.loop = UsageLoop(
            lists=NvmlProcesses(nvml), table=self.table, current=self.current, watchdog=self.dog, interval_s=5.0
        )

    def start(self, stack: ExitStack, code: str, pod: int) -> subprocess.Popen[bytes]:
        child = stack.enter_context(subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE))
        stack.callback(child.kill)
        assert child.stdout
        child.stdout.readline()  # it runs, and ignores what it should
        directory = self.proc / str(child.pid)
        directory.mkdir()
        (directory / "stat").symlink_to(f"/proc/{child.pid}/stat")
        (directory / "cgroup").write_text(f"0::/kubepods/pod{uid(pod)}/{container_id(pod)}\n")
        return child

    def use(self, *mib: int) -> None:
        """What the three processes use."""
        children = (self.mild, self.hard, self.other)
        entries = [f"{child.pid} {amount * MIB}" for child, amount in zip(children, mib, strict=True)]
        self.stub.set({"0.compute": " ".join(entries)})

    def look(self, times: int = 1) -> None:
        for _ in range(times):
            self.clock.at += 5.0
            self.loop.look()


@pytest.fixture
def scene(tmp_path: Path, nvml_binding: Any, nvml_stub: Stub) -> Iterator[Scene]:
    (tmp_path / "proc").mkdir()
    with ExitStack() as stack:
        yield Scene(tmp_path / "proc", nvml_binding, nvml_stub, stack)


def test_processes_above_their_grant_are_ended_and_no_other(scene: Scene) -> None:
    scene.use(2000, 2000, 3072)
    scene.look(2)
    assert scene.dog.actions == {}
    scene.look()
    assert scene.mild.wait() == -signal.SIGTERM
    assert scene.hard.poll() is None
    assert scene.dog.actions == {("report", "done"): 1, ("terminate", "done"): 2}
    scene.use(2000, 4000, 3072)  # the driver's list still has the one that has ended
    scene.look()
    assert scene.dog.actions == {("report", "done"): 1, ("terminate", "done"): 2}
    scene.look()
    assert scene.hard.wait() == -signal.SIGKILL
    assert scene.other.poll() is None
    view = scene.current.view()
    assert view is not None
    assert [(row.pod.name, row.used) for row in view.rows] == [("pod-1", 4000 * MIB), ("pod-2", 3072 * MIB)]
