"""Which GPUs of a node a pod may use at all, before anybody counts memory. Pure."""

from collections.abc import Iterable, Mapping, Sequence

from gpushare.identity import GpuUuid
from gpushare.model.gpu import Gpu, GpuHealth
from gpushare.model.ledger import NodeLedger, footprint
from gpushare.model.request import Affinity, ContainerRequest, LabelSelector, RequestShape, takes_mig

Barred = Mapping[GpuUuid, str]
"""GPUs that a pod may not use -> why, in two or three words."""


def healthy(ledger: NodeLedger) -> Sequence[Gpu]:
    return [gpu for gpu in ledger.inventory.gpus if gpu.health is GpuHealth.HEALTHY]


def by_kind(shape: RequestShape, gpus: Iterable[Gpu]) -> Barred:
    """GPUs that are not what the pod asks for. Only other hardware changes that."""
    return {gpu.uuid: why for gpu in gpus if (why := shape.gpus.why_not(gpu) or _shared_mig(shape, gpu))}


def takes(shape: RequestShape, request: ContainerRequest, gpu: Gpu) -> bool:
    """Whether a container may get a GPU, if it may be a MIG instance."""
    return gpu.mig is None or takes_mig(shape.gpus.mig, request.gpu_count, whole=request.whole)


def _shared_mig(shape: RequestShape, gpu: Gpu) -> str:
    if not shape.gpus.enforced:
        return ""
    part = any(not gpu.limit_of(request.need(gpu).memory_mib).enforced for request in shape.containers)
    return "only a part of MIG" if part else ""


def by_neighbours(affinity: Affinity | None, ledger: NodeLedger) -> Barred:
    """GPUs that lack a pod that this one wants beside it, or have one that it avoids."""
    if affinity is None:
        return {}
    result: dict[GpuUuid, str] = {}
    if affinity.same is not None and not affinity.first:
        near = _held_by(affinity.same, affinity.namespace, ledger)
        for gpu in ledger.inventory.gpus:
            if gpu.uuid not in near:
                result[gpu.uuid] = f"without {affinity.same}"
    if affinity.other is not None:
        for uuid in _held_by(affinity.other, affinity.namespace, ledger):
            result[uuid] = f"with {affinity.other}"
    return result


def _held_by(selector: LabelSelector, namespace: str, ledger: NodeLedger) -> set[GpuUuid]:
    return {
        ledger.inventory.resolve(gpu)
        for held in ledger.allocations.values()
        if held.pod.namespace == namespace and selector.matches(held.labels)
        for gpu in footprint(held.grants)
    }
