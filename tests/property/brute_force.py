"""Placement by trying everything, with nothing from the code under test but the formula for containers."""

import itertools

from gpushare.model.allocation import Grant, footprint
from gpushare.model.gpu import Gpu, GpuHealth, HandOver, Limit
from gpushare.model.ledger import NodeLedger
from gpushare.model.request import ContainerRequest, RequestShape


def fits(grants: tuple[Grant, ...], ledger: NodeLedger) -> bool:
    """By adding up what each GPU would hold, with nothing from the code under test but the formula for containers."""
    for uuid, needed in footprint(grants).items():
        gpu = ledger.inventory.by_uuid[uuid]
        others = [footprint(held.grants).get(uuid) for held in ledger.allocations.values()]
        held = [other for other in others if other is not None]
        memory = sum(other.memory_mib for other in held) + needed.memory_mib
        capped = any(other.whole or other.physical for other in [needed, *held])
        grantable = gpu.memory_mib + (0 if capped else gpu.extra_mib)
        compute = sum(other.compute_percent for other in held)
        if needed.memory_mib > gpu.memory_mib or memory > grantable:
            return False
        if needed.compute_percent and compute + needed.compute_percent > 100:
            return False
        if (needed.whole and held) or any(other.whole for other in held):
            return False
    return True


def may_use(gpu: Gpu, shape: RequestShape, ledger: NodeLedger) -> bool:
    if gpu.health is not GpuHealth.HEALTHY or shape.gpus.why_not(gpu):
        return False
    if shape.gpus.enforced and gpu.limit is Limit.MIG:
        shares = [request.need(gpu).memory_mib for request in shape.containers if not request.whole]
        if shares and min(shares) < gpu.memory_mib:
            return False
    if shape.only_cdi and ledger.inventory.hand_over is not HandOver.CDI:
        return False
    wanted = shape.affinity
    neighbours = [
        held.labels.get("app") == "web"
        for held in ledger.allocations.values()
        if any(gpu.uuid in grant.gpus for grant in held.grants)
    ]
    if wanted is None:
        return True
    if wanted.same is not None and not wanted.first and not any(neighbours):
        return False
    return wanted.other is None or not any(neighbours)


def may_be(gpus: tuple[Gpu, ...], request: ContainerRequest, shape: RequestShape) -> bool:
    """A process uses one MIG instance and nothing beside it, and an instance is no whole GPU unless the pod says so."""
    if not any(gpu.mig for gpu in gpus):
        return True
    return len(gpus) == 1 and not (request.whole and shape.gpus.mig is None)


def grant(request: ContainerRequest, gpus: tuple[Gpu, ...]) -> tuple[Grant, ...]:
    """One for each GPU, because parts of different GPUs are of different sizes."""
    return tuple(
        Grant(
            container=request.container,
            kind=request.kind,
            gpus=(gpu.uuid,),
            memory_mib=request.need(gpu).memory_mib,
            compute_percent=request.compute_percent,
            whole=request.whole,
        )
        for gpu in gpus
    )


def brute_force(shape: RequestShape, ledger: NodeLedger) -> bool:
    gpus = [gpu for gpu in ledger.inventory.gpus if may_use(gpu, shape, ledger)]
    choices = [
        [chosen for chosen in itertools.combinations(gpus, request.gpu_count) if may_be(chosen, request, shape)]
        for request in shape.containers
    ]
    return any(
        fits(
            tuple(
                one
                for request, chosen in zip(shape.containers, combination, strict=True)
                for one in grant(request, chosen)
            ),
            ledger,
        )
        for combination in itertools.product(*choices)
    )
