"""A cluster's objects for a real API server: nodes of eight GPUs of 80 GiB, pods that hold 32 GiB of one, and others.

Pods have what every pod in a cluster has around its containers, some 5 KiB.
"""

from typing import Any

from gpushare import names
from gpushare.identity import GpuUuid, NodeName
from gpushare.model.gpu import Gpu, NodeInventory
from gpushare.units import GIB
from gpushare.wire import allocations
from testing.builders import make_allocation, make_container, make_grant, make_node, make_pod

NODES, PODS = "/api/v1/nodes", "/api/v1/namespaces/default/pods"
GPUS, GPU_GIB = 8, 80
HELD_GIB = 32

Json = dict[str, Any]


def name(number: int) -> str:
    """Of a node."""
    return f"node-{number}"


def inventory(name: str) -> NodeInventory:
    gpus = tuple(
        Gpu(uuid=GpuUuid(f"GPU-{name}-{i}"), index=i, model="NVIDIA H100 80GB HBM3", memory_mib=GPU_GIB * 1024)
        for i in range(GPUS)
    )
    return NodeInventory(node=NodeName(name), gpus=gpus, unit=GIB)


def node(number: int) -> Json:
    made = make_node(inventory(name(number)))
    resources = made["status"]["allocatable"] | {"cpu": "96", "memory": "768Gi", "pods": "200"}
    made["status"] |= {"allocatable": resources, "capacity": resources}
    return _new(made, "Node")


def gpu_pod(number: int, nodes: int) -> Json:
    """One that is bound, and holds a part of a GPU. `number % nodes` is its node."""
    on = name(number % nodes)
    uuid = GpuUuid(f"GPU-{on}-{number // nodes % GPUS}")
    grant = make_grant(uuid, gib=HELD_GIB)
    notes = {
        names.ANNOTATION_ALLOCATION: allocations.encode(make_allocation("pod", grant, node=on)),
        names.PREFIX_DEVICES + "main": uuid,
        names.PREFIX_MEMORY + "main": str(HELD_GIB * 1024),
    }
    pod = make_pod(make_container(gpu_mem=HELD_GIB), name=f"gpu-{number}", node=on, annotations=notes)
    return _new(full(pod), "Pod")


def other_pod(number: int, nodes: int) -> Json:
    """One that is bound, and asks for CPU and memory."""
    container = make_container() | {"resources": {"requests": {"cpu": "2", "memory": "8Gi"}}}
    return _new(full(make_pod(container, name=f"other-{number}", node=name(number % nodes))), "Pod")


def waiting(prefix: str, number: int, *, scheduler: str, gib: int = 1) -> Json:
    """A pod that asks for a part of a GPU, and waits for a scheduler."""
    pod = make_pod(make_container(gpu_mem=gib), name=f"{prefix}-{number}")
    pod["spec"] |= {"schedulerName": scheduler, "automountServiceAccountToken": False}
    return _new(pod, "Pod")


def full(pod: Json) -> Json:
    """With what every pod has around its containers."""
    pod["spec"] |= {
        "automountServiceAccountToken": False,
        "volumes": [{"name": f"v{i}", "configMap": {"name": f"c{i}", "defaultMode": 420}} for i in range(8)],
        "tolerations": [{"key": f"t{i}", "operator": "Exists", "effect": "NoExecute"} for i in range(4)],
    }
    return pod


def _new(obj: Json, kind: str) -> Json:
    """Without what the API server writes."""
    metadata = {key: value for key, value in obj["metadata"].items() if key not in {"uid", "resourceVersion"}}
    return {"apiVersion": "v1", "kind": kind, **obj, "metadata": metadata}
