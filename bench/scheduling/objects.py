"""Nodes and pods of a trace as the API server has them. A GPU has 1,000 MiB, for the trace counts thousandths."""

from typing import Any

from gpushare import names
from gpushare.identity import GpuUuid, NodeName
from gpushare.model.capacity import Ask, FreeHost, NodeCapacity
from gpushare.model.gpu import Gpu, NodeInventory
from gpushare.units import MemoryUnit
from testing.builders import make_node, make_pod

UNIT = MemoryUnit(1)
NAMESPACE = "default"
SETTINGS = ("--memory-unit=MiB", "--whole-gpus=true")  # of the controller

Json = dict[str, Any]


def node(name: str, room: NodeCapacity) -> Json:
    """An empty one, with the inventory that its device plugin publishes."""
    gpus = tuple(
        Gpu(uuid=GpuUuid(f"GPU-{name}-{index}"), index=index, model=room.model, memory_mib=gpu.total_mib)
        for index, gpu in enumerate(room.gpus)
    )
    made = make_node(NodeInventory(node=NodeName(name), gpus=gpus, unit=UNIT))
    resources = made["status"]["allocatable"] | {names.GPU: str(len(gpus)), "pods": "1000"} | _host(host(room))
    made["status"] |= {"allocatable": resources, "capacity": resources}
    return made


def host(room: NodeCapacity) -> FreeHost:
    """CPU and memory, which every node of a trace has."""
    if room.host is None:
        raise ValueError("a node of a trace without CPU and memory")
    return room.host


def pod(name: str, ask: Ask) -> Json:
    """One that waits, as the webhook leaves it."""
    limits = {names.GPU: str(ask.gpus)} if ask.whole else {names.GPU_MEM: str(ask.memory_mib)} if ask.gpus else {}
    container = {
        "name": "main",
        "image": "trace",
        "resources": {"requests": _host(ask.host) | limits, "limits": limits},
    }
    models = ",".join(ask.models.wanted)
    return make_pod(
        container, name=name, namespace=NAMESPACE, annotations={names.ANNOTATION_MODEL: models} if models else {}
    )


def _host(room: FreeHost) -> dict[str, str]:
    return {"cpu": f"{room.cpu_milli}m", "memory": f"{room.memory_mib}Mi"}
