"""What it costs to read what containers use, and to serve it: CPU of one reading and of one page of metrics.

    python -m bench.usage [--pods 100] [--json FILE]

Each pod holds 4 GiB of one of eight simulated GPUs and has two processes there. Their files of /proc are made up.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from bench.results import Results, table
from deviceplugin import metrics, pods
from deviceplugin.cgroups import Procfs
from deviceplugin.inventory import InventoryFeed
from deviceplugin.pods import PodCache
from deviceplugin.simulated import SimulatedProcesses
from gpushare import names
from gpushare.identity import NodeName, PodRef, PodUid
from gpushare.model.ledger import Allocation
from gpushare.runtime.clock import SystemClock
from gpushare.wire import allocations
from testing.builders import Json, make_container, make_grant, make_inventory, make_pod
from testing.deviceplugin.usage import usage_loop

GPUS, TIMES = 8, 50


def pod_of(number: int) -> Json:
    """A pod that runs."""
    ref = PodRef(namespace="default", name=f"pod-{number}", uid=PodUid(f"00000000-0000-4000-8000-{number:012x}"))
    allocation = Allocation(pod=ref, node=NodeName("node-a"), grants=(make_grant(number % GPUS, gib=4),))
    annotations = {names.ANNOTATION_ALLOCATION: allocations.encode(allocation)}
    pod = make_pod(make_container("main", 4), name=ref.name, node="node-a", annotations=annotations, phase="Running")
    pod["metadata"]["uid"] = ref.uid
    report = {"name": "main", "containerID": f"containerd://{number:064x}", "state": {"running": {}}}
    pod["status"]["containerStatuses"] = [report]
    return pod


def run(number: int, proc: Path) -> list[Json]:
    """The two processes of a pod, as the driver lists them."""
    uid = pod_of(number)["metadata"]["uid"]
    for pid in (found := (10_000 + 2 * number, 10_001 + 2 * number)):
        (proc / str(pid)).mkdir()
        (proc / str(pid) / "stat").write_text(f"{pid} (python3) S {'1 ' * 18}77 0\n")
        (proc / str(pid) / "cgroup").write_text(f"0::/kubepods/pod{uid}/{number:064x}\n")
    return [{"gpu": f"GPU-{number % GPUS}", "pid": pid, "memoryMiB": 1500} for pid in found]


def cpu_ms(act: Callable[[], object]) -> float:
    began = time.process_time()
    for _ in range(TIMES):
        act()
    return (time.process_time() - began) / TIMES * 1000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pods", type=int, default=100)
    parser.add_argument("--json", type=Path, help="write the figures to this file, too")
    options = parser.parse_args()
    count, results = options.pods, Results("usage", options.json)
    clock, feed = SystemClock(), InventoryFeed()
    inventory, cache = make_inventory(*[80] * GPUS), PodCache(clock)
    feed.post(inventory)
    with tempfile.TemporaryDirectory() as name:
        proc = Path(name)
        processes = [entry for number in range(count) for entry in run(number, proc)]
        (proc / "processes.json").write_text(json.dumps({"processes": processes}))
        for number in range(count):
            cache.upsert(pods.reduce(pod_of(number)))
        lists = SimulatedProcesses(proc / "processes.json")
        loop = usage_loop(feed, cache, clock, lists=lists, table=Procfs(proc))
        reading, page = cpu_ms(loop.look), cpu_ms(lambda: metrics.page(loop.view(), {}, {}, "node-a"))
        size = len(metrics.page(loop.view(), {}, {}, "node-a"))
    row = {
        "pods": count,
        "processes": len(processes),
        "a reading: CPU ms": round(reading, 2),
        "a page of metrics: CPU ms": round(page, 2),
        "kB": size // 1000,
    }
    results.add([row])
    print("\n".join(table(row, [row])))


if __name__ == "__main__":
    main()
