from collections.abc import Sequence
from typing import Any

from gpushare import names
from gpushare.identity import GpuUuid, NodeName, PodRef, PodUid
from gpushare.model.allocation import Allocation, Grant
from gpushare.model.gpu import Gpu, GpuHealth, NodeInventory
from gpushare.units import GIB, MemoryUnit
from gpushare.wire import allocations
from gpushare.wire import inventory as inventory_wire
from testing.fakes.kube import FakeKube

Object = dict[str, Any]
CONFIG_MAPS = "/api/v1/namespaces/kube-system/configmaps"


def node(
    name: str = "node-a",
    *,
    address: str | None = "192.168.0.71",
    allocatable: dict[str, str] | None = None,
    annotations: dict[str, str] | None = None,
) -> Object:
    addresses = [{"type": "Hostname", "address": name}]
    addresses += [{"type": "InternalIP", "address": address}] if address else []
    return {
        "metadata": {"name": name, "annotations": annotations or {}},
        "status": {"addresses": addresses, "allocatable": allocatable or {}},
    }


def aliyun_node(name: str = "node-a", *, mem: str = "30", count: str = "2", address: str = "192.168.0.71") -> Object:
    return node(name, address=address, allocatable={names.GPU_MEM: mem, names.GPU_COUNT: count})


def our_node(
    name: str = "node-a",
    *memory_mib: int,
    unit: MemoryUnit = GIB,
    unhealthy: Sequence[int] = (),
    address: str | None = "192.168.0.71",
    instances: Sequence[Gpu] = (),
) -> Object:
    inventory = NodeInventory(
        node=NodeName(name),
        unit=unit,
        gpus=tuple(
            Gpu(
                uuid=GpuUuid(f"GPU-{name}-{i}"),
                index=i,
                model="Tesla T4",
                memory_mib=mib,
                health=GpuHealth.UNHEALTHY if i in unhealthy else GpuHealth.HEALTHY,
                reason="Xid 79: GPU has fallen off the bus" if i in unhealthy else "",
            )
            for i, mib in enumerate(memory_mib)
        )
        + tuple(instances),
    )
    return node(name, address=address, annotations={names.ANNOTATION_INVENTORY: inventory_wire.encode(inventory)})


def pod(
    name: str,
    *,
    namespace: str = "default",
    on: str = "node-a",
    mem: int | str = 3,
    annotations: dict[str, str] | None = None,
    phase: str = "Running",
) -> Object:
    return {
        "metadata": {"name": name, "namespace": namespace, "uid": f"uid-{name}", "annotations": annotations or {}},
        "spec": {"nodeName": on, "containers": [{"name": "main", "resources": {"limits": {names.GPU_MEM: str(mem)}}}]},
        "status": {"phase": phase},
    }


def aliyun_pod(name: str, *, gpu: int, mem: int, namespace: str = "default", phase: str = "Running") -> Object:
    return pod(name, namespace=namespace, mem=mem, annotations={names.ALIYUN_IDX: str(gpu)}, phase=phase)


def ack_pod(name: str, shares: str, *, mem: int) -> Object:
    return pod(name, mem=mem, annotations={names.ACK_ALLOCATION: shares})


def our_pod(
    name: str, *gpus: str, mib: int, namespace: str = "default", on: str = "node-a", made_for: str | None = None
) -> Object:
    who = PodRef(namespace=namespace, name=name, uid=PodUid(f"uid-{name}"))
    grant = Grant(container="main", gpus=tuple(GpuUuid(gpu) for gpu in gpus), memory_mib=mib)  # type: ignore[arg-type] # a plain text reads better in a test
    allocation = Allocation(pod=who, node=NodeName(made_for or on), grants=(grant,))
    text = allocations.encode(allocation)
    return pod(name, namespace=namespace, on=on, mem=mib // 1024, annotations={names.ANNOTATION_ALLOCATION: text})


def given(name: str, allocation: Allocation, *, namespace: str = "default", mem: int | str = 3) -> Object:
    """A running pod with this allocation."""
    text = allocations.encode(allocation)
    annotations = {names.ANNOTATION_ALLOCATION: text}
    return pod(name, namespace=namespace, on=allocation.node, mem=mem, annotations=annotations)


def unhealthy_gpus(node: str, gpus: str) -> Object:
    """Aliyun's ConfigMap of GPUs that must not be used."""
    return {"metadata": {"name": f"unhealthy-gpu-{node}", "namespace": "kube-system"}, "data": {"gpus": gpus}}


def api_of(nodes: Sequence[Object] = (), pods: Sequence[Object] = (), config_maps: Sequence[Object] = ()) -> FakeKube:
    api = FakeKube()
    for path, objects in (("/api/v1/nodes", nodes), (CONFIG_MAPS, config_maps)):
        for each in objects:
            api.seed(path, each)
    for each in pods:
        api.seed(f"/api/v1/namespaces/{each['metadata']['namespace']}/pods", each)
    return api
