"""300 pods of a production trace's mix for 8 nodes: shares, whole GPUs, wide pods and pods without GPUs."""

import random
import statistics
from collections.abc import Sequence
from typing import Any

from gpushare import names

Json = dict[str, Any]

NODES = tuple(f"simulated-{number}" for number in range(1, 9))
GPUS = 24
GPU_GIB = 16
HOST = {"cpu": "330", "memory": "1900Gi", "pods": "200"}
LABEL = "e2e-simulated"
KINDS = (
    # Pods, GPUs or GiB of one, CPU, memory: the shares of requests in a production trace, and 130 % of these GPUs.
    (20, "", 0, "4", "8Gi"),
    (12, "", 0, "8", "16Gi"),
    (8, "", 0, "32", "64Gi"),
    (39, names.GPU_MEM, 13, "6", "12Gi"),
    (38, names.GPU_MEM, 7, "6", "12Gi"),
    (33, names.GPU_MEM, 4, "3", "8Gi"),
    (95, names.GPU, 1, "12", "24Gi"),
    (44, names.GPU, 1, "16", "64Gi"),
    (4, names.GPU, 2, "24", "96Gi"),
    (3, names.GPU, 4, "48", "192Gi"),
    (4, names.GPU, 8, "88", "320Gi"),
)


def pods(policy: str, order: int = 7) -> list[Json]:
    """Always the same in one order, for one scheduler, which so has one queue."""
    found = []
    for kind, (count, resource, amount, cpu, memory) in enumerate(KINDS):
        limits = {resource: str(amount)} if resource else {}
        container: Json = {
            "name": "main",
            "image": "none",
            "resources": {"requests": {"cpu": cpu, "memory": memory}, "limits": limits},
        }
        spec: Json = {
            "schedulerName": names.SCHEDULER,
            "nodeSelector": {LABEL: "true"},
            "tolerations": [{"operator": "Exists"}],
            "containers": [container],
        }
        annotations = {names.ANNOTATION_POLICY: policy} if resource else {}
        found += [({"name": f"p{kind}-{i}", "annotations": annotations}, spec) for i in range(count)]
    random.Random(order).shuffle(found)
    return [{"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec} for metadata, spec in found]


def assert_agrees(placed: int, allocated_percent: float, runs: Sequence[Json]) -> None:
    """That what has come of pods is within what `gpushare simulate` says for several seeds."""
    _assert_within(placed, [run["placed"] for run in runs], least=3)
    _assert_within(allocated_percent, [run["allocatedPercent"] for run in runs], least=0.5)


def _assert_within(value: float, told: list[float], least: float) -> None:
    """Where another seed lies in 499 of 500 cases: by Student's t, as 12 seeds only tell the deviation."""
    mean = statistics.mean(told)
    assert abs(value - mean) <= max(4.2 * statistics.stdev(told), least), f"{value}; simulate says {told}"
