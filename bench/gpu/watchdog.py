"""The watchdog over two real programs on a GPU, of which one is above its grant. Ends with 1 unless that one is ended.

    python -m bench.gpu.watchdog [--gpu UUID] [--cgroups DIRECTORY] [--grant-mib 2048]

Root is needed for the programs' cgroups, which are made as the kubelet names them, below a directory of their own.
Says how much memory CUDA's context takes, too: `--watchdog-tolerance-mib` is to be larger than that.
"""

import argparse
import subprocess
import sys
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from bench.gpu import machine
from bench.gpu.cuda import MIB
from deviceplugin import cgroups, pods
from deviceplugin.cgroups import Procfs, Sent
from deviceplugin.inventory import InventoryFeed
from deviceplugin.node import Refusals
from deviceplugin.nvml import driver
from deviceplugin.nvml.driver import NvmlProcesses
from deviceplugin.pods import PodCache
from deviceplugin.settings import Settings
from deviceplugin.usage.join import NodeUsage, WatchdogPolicy
from deviceplugin.usage.loop import UsageLoop, Watchdog
from gpushare import names
from gpushare.identity import ContainerName, PodRef, PodUid
from gpushare.model.gpu import Gpu, NodeInventory
from gpushare.model.ledger import Allocation, Grant
from gpushare.runtime.clock import SystemClock
from gpushare.wire import allocations
from testing.builders import Json, make_container, make_pod
from testing.deviceplugin.usage import usage_loop
from testing.fakes.kube import FakeKube

ENTER = 'echo $$ > "$0/cgroup.procs" && exec "$@"'
NAMES = ("within", "above")
INTERVAL_S, GRACE_S, LOOKS, SIGNAL_S = 0.5, 2.0, 60, 10.0


def uid(number: int) -> PodUid:
    return PodUid(f"00000000-0000-4000-8000-{number:012x}")


def pod_of(number: int, gpu: Gpu, grant_mib: int) -> Json:
    ref = PodRef(namespace="default", name=NAMES[number], uid=uid(number))
    grant = Grant(container=ContainerName("main"), gpus=(gpu.uuid,), memory_mib=grant_mib)
    allocation = Allocation(pod=ref, node=machine.NODE, grants=(grant,))
    annotations = {names.ANNOTATION_ALLOCATION: allocations.encode(allocation)}
    pod = make_pod(
        make_container("main", 1), name=ref.name, node=machine.NODE, annotations=annotations, phase="Running"
    )
    pod["metadata"]["uid"] = ref.uid
    report = {"name": "main", "containerID": f"containerd://{number:064x}", "state": {"running": {}}}
    pod["status"]["containerStatuses"] = [report]
    return pod


@contextmanager
def groups(root: Path, count: int) -> Iterator[list[Path]]:
    """A cgroup for the container of each pod; removed afterwards."""
    made = [root / "kubepods" / f"pod{uid(number)}" / f"{number:064x}" for number in range(count)]
    for path in made:
        path.mkdir(parents=True)
    try:
        yield made
    finally:
        for path in [*made, *(each.parent for each in made), root / "kubepods", root]:
            path.rmdir()


def loop_of(found: NodeInventory, pods_: Collection[Json]) -> UsageLoop:
    clock, feed, api, table = SystemClock(), InventoryFeed(), FakeKube(), Procfs()
    feed.post(found)
    api.seed("/api/v1/namespaces/default", {"metadata": {"name": "default"}})
    cache = PodCache(clock)
    for pod in pods_:
        cache.upsert(pods.reduce(pod))
    watchdog = Watchdog(
        policy=WatchdogPolicy.KILL,
        grace_s=GRACE_S,
        gap_s=20.0,
        tolerance_mib=Settings().watchdog_tolerance_mib,
        api=api,
        table=table,
        events=Refusals(api=api, clock=clock),
        clock=clock,
    )
    lists, times = NvmlProcesses(driver.library()), {"interval_s": INTERVAL_S, "stale_s": 60.0}
    return usage_loop(feed, cache, clock, lists=lists, table=table, watchdog=watchdog, **times)


def looked(loop: UsageLoop) -> NodeUsage:
    loop.look()
    view = loop.view()
    assert view is not None
    return view


def exit_codes(programs: Sequence["subprocess.Popen[str]"], loop: UsageLoop) -> Sequence[int | None]:
    """As soon as all that were told to end have ended: those of one look end in any order."""
    assert loop.watchdog is not None
    give_up, told = time.monotonic() + SIGNAL_S, loop.watchdog.actions.get(("terminate", Sent.DONE.value), 0)
    while True:
        codes = [program.poll() for program in programs]
        if sum(code is not None for code in codes) >= told or time.monotonic() > give_up:
            return codes
        time.sleep(0.01)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--gpu")
    parser.add_argument("--cgroups", type=Path)
    parser.add_argument("--grant-mib", type=int, default=2048)
    arguments = parser.parse_args()
    found = machine.read()
    gpu, grant = machine.only(found, arguments.gpu), arguments.grant_mib
    root = arguments.cgroups or cgroups.hierarchies()[0] / "gpushare-bench"
    amounts = (grant, grant + 2 * Settings().watchdog_tolerance_mib)
    loop = loop_of(found, [pod_of(number, gpu, grant) for number in range(2)])
    with groups(root, 2) as made, ExitStack() as stack:
        programs: list[subprocess.Popen[str]] = []
        for path, amount in zip(made, amounts, strict=True):
            enter = ("/bin/sh", "-c", ENTER, str(path))
            got, program = stack.enter_context(machine.taking(gpu, most_mib=amount, before=enter))
            if got.error:
                print(f"a program got {got.taken_mib} of {amount} MiB: {got.error}")
                return 1
            programs.append(program)
        began, view, looks = time.monotonic(), looked(loop), 0
        while programs[1].poll() is None and looks < LOOKS:
            time.sleep(INTERVAL_S)
            loop.look()
            looks += 1
        seconds, ended = time.monotonic() - began, exit_codes(programs, loop)
    used = {row.pod.name: row.used for row in view.rows}
    rows = [
        (
            name,
            grant,
            amount,
            "?" if (mib := used[name]) is None else mib // MIB,
            "ended" if code is not None else "runs",
        )
        for name, amount, code in zip(NAMES, amounts, ended, strict=True)
    ]
    machine.table(("program", "granted MiB", "took", "by the driver's list", f"after {seconds:.1f} s"), *rows)
    contexts = [mib // MIB - amount for name, amount in zip(NAMES, amounts, strict=True) if (mib := used[name])]
    assert loop.watchdog is not None
    own = ", ".join(map(str, contexts)) or "?"
    print(f"CUDA's own memory of each: {own} MiB; done: {dict(loop.watchdog.actions)}")
    return 0 if ended[0] is None and ended[1] is not None else 1


if __name__ == "__main__":
    sys.exit(main())
