"""What a new leader's first list of pods costs, in CPU time a pod. Prints a table, asserts nothing.

python -m bench.start [PODS]

The pods are as the API server writes them, some 6 KiB each with managedFields; every second one asks for GPUs and is
bound. Each row is a process of its own, and the rows take turns.
"""

import contextlib
import gc
import statistics
import subprocess
import sys
import time

import orjson

from controller.state import ClusterState
from controller.watches import PodSink
from gpushare import names
from gpushare.cluster.records import AnyPod
from gpushare.kube import stream
from gpushare.kube.api import JsonObject
from gpushare.resource_config import ResourceConfig
from gpushare.runtime import heap
from gpushare.wire import allocation as allocation_wire
from testing.builders import make_allocation, make_container, make_grant, make_pod

MODES = ("pages parsed whole", "object by object", "object by object, collector at rest")
PAGE = 500
ROUNDS = 3
CHUNK = 65536


def pod(number: int) -> JsonObject:
    """A pod with what every pod in a cluster has around its containers."""
    name, mem = f"pod-{number}", 1 if number % 2 else None
    notes = {}
    if mem:
        notes[names.ANNOTATION_ALLOCATION] = allocation_wire.encode(make_allocation(name, make_grant(0, gib=mem)))
    value = make_pod(make_container(gpu_mem=mem), name=name, node="node-a", annotations=notes)
    value["metadata"] |= {
        "resourceVersion": str(number),
        "managedFields": [{"manager": "m", "fieldsV1": {f"f:{i}": {"f:a": {}, "f:b": {}} for i in range(60)}}] * 2,
    }
    value["spec"] |= {
        "volumes": [{"name": f"v{i}", "configMap": {"name": f"c{i}", "defaultMode": 420}} for i in range(8)],
        "tolerations": [{"key": f"t{i}", "operator": "Exists", "effect": "NoExecute"} for i in range(4)],
    }
    value["status"]["conditions"] = [{"type": f"c{i}", "status": "True"} for i in range(5)]
    return value


def read(mode: str, body: list[bytes]) -> ClusterState:
    """Read pages into the state of a controller, in one of the MODES."""
    state = ClusterState(resource_config=ResourceConfig())
    sink = PodSink(state)
    with heap.loading() if mode == MODES[-1] else contextlib.nullcontext():
        records = [record for page in body for record in _page(mode, page, sink)]
        sink.replace([record for record in records if record is not None])
    return state


def _page(mode: str, page: bytes, sink: PodSink) -> list[AnyPod | None]:
    if mode == MODES[0]:
        return [sink.read(obj) for obj in orjson.loads(page)["items"]]
    chunks = (page[at : at + CHUNK] for at in range(0, len(page), CHUNK))
    return stream.page("bench", chunks, sink.read).items


def measured(mode: str, count: int) -> None:
    """In a process of its own: CPU and memory of one list, and of a full collection afterwards."""
    gc.disable()  # not while the answer is made up
    pages = [[pod(number) for number in range(at, min(at + PAGE, count))] for at in range(0, count, PAGE)]
    body = [orjson.dumps({"metadata": {"resourceVersion": "7"}, "items": page}) for page in pages]
    if mode == MODES[-1]:  # one answer from the API server's cache
        body = [
            orjson.dumps({"metadata": {"resourceVersion": "7"}, "items": [each for page in pages for each in page]})
        ]
    del pages
    gc.collect()
    gc.freeze()
    gc.enable()
    started = time.process_time()
    state = read(mode, body)
    listed = time.process_time()
    gc.collect()
    print(listed - started, time.process_time() - listed, len(state.cache.snapshot().ledgers))


def main() -> int:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 50_000
    if len(sys.argv) > 2:
        measured(sys.argv[2], count)
        return 0
    timings: dict[str, list[tuple[float, float]]] = {mode: [] for mode in MODES}
    for _ in range(ROUNDS):
        for mode in MODES:
            argv = [sys.executable, "-m", "bench.start", str(count), mode]
            out = subprocess.run(argv, check=True, capture_output=True, text=True).stdout.split()
            timings[mode].append((float(out[0]), float(out[1])))
    size = len(orjson.dumps(pod(1))) / 1024
    print(f"| {count} pods, {size:.1f} KiB each | CPU | a pod | a full collection afterwards |")
    print("|---|---|---|---|")
    for mode, runs in timings.items():
        cpu, later = (statistics.median(column) for column in zip(*runs, strict=True))
        print(f"| {mode} | {cpu:.1f} s | {cpu / count * 1000:.3f} ms | {later:.3f} s |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
