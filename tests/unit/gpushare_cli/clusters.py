from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from gpushare import names
from gpushare.identity import GpuUuid, NodeName
from gpushare.model.gpu import Gpu, GpuHealth, NodeInventory
from gpushare.units import GIB, MemoryUnit
from gpushare.wire import allocations, inventory as inventory_wire
from testing.builders import Json, make_allocation, make_container, make_gpu, make_grant, make_pod
from testing.fakes.kube import FakeKube


def node(
    name: str = "node-a",
    *,
    address: str | None = "192.168.0.71",
    allocatable: dict[str, str] | None = None,
    annotations: dict[str, str] | None = None,
) -> Json:
    addresses = [{"type": "Hostname", "address": name}]
    addresses += [{"type": "InternalIP", "address": address}] if address else []
    return {
        "metadata": {"name": name, "annotations": annotations or {}},
        "status": {"addresses": addresses, "allocatable": allocatable or {}},
    }


def aliyun_node(name: str = "node-a", *, mem: str = "30", count: str = "2", address: str = "192.168.0.71") -> Json:
    return node(name, address=address, allocatable={names.GPU_MEM: mem, names.GPU_COUNT: count})


def our_node(
    name: str = "node-a",
    *memory_mib: int,
    unit: MemoryUnit = GIB,
    unhealthy: Sequence[int] = (),
    address: str | None = "192.168.0.71",
    instances: Sequence[Gpu] = (),
) -> Json:
    faulty = {"health": GpuHealth.UNHEALTHY, "reason": "Xid 79: GPU has fallen off the bus"}
    gpus = [
        replace(make_gpu(i, mib=mib), uuid=GpuUuid(f"GPU-{name}-{i}"), **(faulty if i in unhealthy else {}))  # type: ignore[arg-type]
        for i, mib in enumerate(memory_mib)
    ]
    inventory = NodeInventory(node=NodeName(name), unit=unit, gpus=(*gpus, *instances))
    return node(name, address=address, annotations={names.ANNOTATION_INVENTORY: inventory_wire.encode(inventory)})


def pod(name: str, *, on: str = "node-a", mem: int | str = 3, phase: str = "Running", **fields: Any) -> Json:
    return make_pod(make_container(gpu_mem=str(mem)), name=name, node=on, phase=phase, **fields)


def aliyun_pod(name: str, *, gpu: int, mem: int, **fields: Any) -> Json:
    return pod(name, mem=mem, annotations={names.ALIYUN_IDX: str(gpu)}, **fields)


def ack_pod(name: str, shares: str, *, mem: int) -> Json:
    return pod(name, mem=mem, annotations={names.ACK_ALLOCATION: shares})


def our_pod(name: str, *gpus: str, mib: int, on: str = "node-a", made_for: str = "", **fields: Any) -> Json:
    grant = replace(make_grant(*gpus), memory_mib=mib)
    text = allocations.encode(make_allocation(name, grant, node=made_for or on))
    return pod(name, on=on, mem=mib // 1024, annotations={names.ANNOTATION_ALLOCATION: text}, **fields)


def unhealthy_gpus(node: str, gpus: str) -> Json:
    """Aliyun's ConfigMap of GPUs that must not be used."""
    metadata = {"name": f"unhealthy-gpu-{node}", "namespace": "kube-system"}
    return {"kind": "ConfigMap", "metadata": metadata, "data": {"gpus": gpus}}


def api_of(nodes: Sequence[Json] = (), pods: Sequence[Json] = ()) -> FakeKube:
    api = FakeKube()
    for each in nodes:
        api.seed("/api/v1/nodes", each)
    for each in pods:
        api.seed(f"/api/v1/namespaces/{each['metadata']['namespace']}/pods", each)
    return api
