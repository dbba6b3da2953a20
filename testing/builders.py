"""Objects for tests: sensible defaults, plus what the test says."""

from collections.abc import Mapping, Sequence
from typing import Any

from gpushare import names
from gpushare.identity import ContainerName, GpuUuid, NodeName, PodRef, PodUid
from gpushare.model.gpu import Gpu, GpuHealth, Limit, MigInstance, NodeInventory, mig_index
from gpushare.model.ledger import Allocation, Grant, NodeLedger
from gpushare.model.request import ContainerKind, ContainerRequest, Policy, RequestShape
from gpushare.units import GIB, MemoryUnit
from gpushare.wire import inventory as inventory_wire
from gpushare.wire.claims import device_name

Json = dict[str, Any]


def make_gpu(index: int = 0, gib: int = 15, *, health: GpuHealth = GpuHealth.HEALTHY, mib: int | None = None) -> Gpu:
    return Gpu(
        uuid=GpuUuid(f"GPU-{index}"),
        index=index,
        model="Tesla T4",
        memory_mib=gib * 1024 if mib is None else mib,
        health=health,
    )


def make_mig(gpu: int, number: int, gib: int = 5, *, profile: str = "1g.5gb") -> Gpu:
    return Gpu(
        uuid=GpuUuid(f"MIG-{gpu}-{number}"),
        index=mig_index(gpu, number),
        model=f"NVIDIA A100-SXM4-40GB MIG {profile}",
        memory_mib=gib * 1024,
        limit=Limit.MIG,
        mig=MigInstance(gpu=gpu, number=number, profile=profile),
    )


def make_inventory(*gib: int, node: str = "node-a", unit: MemoryUnit = GIB) -> NodeInventory:
    gpus = tuple(make_gpu(i, size) for i, size in enumerate(gib))
    return NodeInventory(node=NodeName(node), gpus=gpus, unit=unit)


def make_ref(name: str = "pod", namespace: str = "default") -> PodRef:
    return PodRef(namespace=namespace, name=name, uid=PodUid(f"uid-{name}"))


def make_grant(
    *gpus: int | str, gib: int = 3, container: str = "main", kind: ContainerKind = ContainerKind.APP, **fields: Any
) -> Grant:
    uuids = tuple(GpuUuid(gpu if isinstance(gpu, str) else f"GPU-{gpu}") for gpu in gpus)
    return Grant(container=ContainerName(container), kind=kind, gpus=uuids, memory_mib=gib * 1024, **fields)


def make_allocation(name: str = "pod", *grants: Grant, node: str = "node-a") -> Allocation:
    return Allocation(pod=make_ref(name), node=NodeName(node), grants=grants)


def make_ledger(sizes: Sequence[int], held: Mapping[int, int] | None = None) -> NodeLedger:
    """A node whose GPUs have so many GiB, with so many GiB held on the GPUs of `held`."""
    allocations = [make_allocation(f"holder-{gpu}", make_grant(gpu, gib=gib)) for gpu, gib in (held or {}).items()]
    return NodeLedger.of(make_inventory(*sizes), allocations)


def make_shape(*container_requests: tuple[int, int] | int, policy: Policy | None = None) -> RequestShape:
    """App containers c0, c1, ...: GiB, or (GiB on each, number of GPUs)."""
    pairs = [(request, 1) if isinstance(request, int) else request for request in container_requests]
    containers = tuple(
        ContainerRequest(container=ContainerName(f"c{i}"), memory_mib=gib * 1024, gpu_count=count)
        for i, (gib, count) in enumerate(pairs)
    )
    return RequestShape(containers=containers, policy=policy)


def make_container(name: str = "main", gpu_mem: object = None, **fields: Any) -> Json:
    container: Json = {"name": name, "image": "busybox", **fields}
    if gpu_mem is not None:
        container["resources"] = {"limits": {names.GPU_MEM: gpu_mem}}
    return container


def env_of(container: str) -> Json:
    """The variable by which a container takes its GPUs, as the webhook writes it."""
    path = f"metadata.annotations['{names.PREFIX_DEVICES}{container}']"
    return {"name": names.ENV_VISIBLE_DEVICES, "valueFrom": {"fieldRef": {"fieldPath": path}}}


def make_pod(
    *containers: Json,
    name: str = "pod",
    namespace: str = "default",
    node: str | None = None,
    init: Sequence[Json] = (),
    annotations: Mapping[str, str] | None = None,
    labels: Mapping[str, str] | None = None,
    phase: str = "Pending",
) -> Json:
    spec: Json = {"containers": list(containers) or [make_container(gpu_mem=3)]}
    if init:
        spec["initContainers"] = list(init)
    if node:
        spec["nodeName"] = node
    metadata: Json = {"name": name, "namespace": namespace, "uid": f"uid-{name}", "resourceVersion": "1"}
    if annotations:
        metadata["annotations"] = dict(annotations)
    if labels:
        metadata["labels"] = dict(labels)
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec, "status": {"phase": phase}}


def make_claim(name: str = "claim", *, node: str = "node-a", **held: object) -> Json:
    """A ResourceClaim that is allocated so much memory of each GPU, by UUIDs with `_` for `-`."""
    results = [
        {
            "driver": names.DRA_DRIVER,
            "pool": node,
            "request": "gpu",
            "device": device_name(GpuUuid(uuid)),
            "consumedCapacity": {names.DRA_MEMORY: amount},
        }
        for uuid, amount in held.items()
    ]
    status = {"allocation": {"devices": {"results": results}}} if results else {}
    metadata = {"namespace": "default", "name": name, "uid": f"uid-{name}"}
    return {"kind": "ResourceClaim", "metadata": metadata, "status": status}


def make_node(inventory: NodeInventory | None = None, *, name: str = "node-a", ip: str = "192.168.0.71") -> Json:
    """A Node with the ledger that its plugin and kubelet write."""
    metadata: Json = {"name": name if inventory is None else str(inventory.node), "resourceVersion": "1"}
    resources: dict[str, str] = {}
    if inventory is not None:
        metadata["annotations"] = {names.ANNOTATION_INVENTORY: inventory_wire.encode(inventory)}
        gpus, unit = inventory.gpus, inventory.unit
        units = sum(unit.floor(gpu.grantable_mib) for gpu in gpus)
        resources = {names.GPU_MEM: str(units), names.GPU_COUNT: str(len(gpus))}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": metadata,
        "status": {
            "allocatable": resources,
            "capacity": resources,
            "addresses": [{"type": "InternalIP", "address": ip}],
        },
    }
