"""Choose GPUs of one node for a whole pod, or say with numbers why not."""

from collections.abc import Sequence
from typing import Final

from gpushare.identity import GpuUuid
from gpushare.model.allocation import Grant, Placed, RefusalReason, Refused, Verdict
from gpushare.model.capacity import FreeGpu
from gpushare.model.gpu import Gpu, HandOver
from gpushare.model.ledger import NodeLedger
from gpushare.model.request import ContainerRequest, Need, RequestShape
from gpushare.placement import candidates, explain, search
from gpushare.placement.policies import Policies, Scoring

_DEFAULT: Final = Policies()


def place(shape: RequestShape, ledger: NodeLedger, policies: Policies = _DEFAULT) -> Verdict:
    """The decision for one pod on one node. The same input always gives the same answer.

    Whether it fits, and the words of a refusal, depend on no policy; only which GPUs it gets does. What they cost the
    node is told by `costs.costs_of`.

    Args:
        shape: what the pod asks for.
        ledger: the node's ledger.
        policies: the policies, and the default of pods that name none.
    """
    if shape.only_cdi and ledger.inventory.hand_over is not HandOver.CDI:
        return Refused(RefusalReason.OTHER_HAND_OVER, explain.other_hand_over(ledger), permanent=True)
    healthy = candidates.healthy(ledger)
    if not healthy:
        return Refused(RefusalReason.NO_HEALTHY_GPU, explain.no_healthy_gpu(ledger), permanent=True)
    widest = max(container.gpu_count for container in shape.containers)
    if widest > len(healthy):
        return Refused(RefusalReason.TOO_FEW_GPUS, explain.too_few_gpus(widest, len(healthy), ledger), permanent=True)
    barred = candidates.by_kind(shape, healthy)
    of_kind = [gpu for gpu in healthy if gpu.uuid not in barred]
    lacking = [request for request in shape.containers if request.gpu_count > len(_open_to(shape, request, of_kind))]
    if lacking:
        message = explain.no_matching_gpu(shape, max(lacking, key=_hardest), barred, ledger.inventory)
        return Refused(RefusalReason.NO_MATCHING_GPU, message, permanent=True)
    barred = {**candidates.by_neighbours(shape.affinity, ledger), **barred}
    usable = [gpu for gpu in of_kind if gpu.uuid not in barred]
    try:
        chosen = _choose(shape, usable, ledger, policies.of(shape.policy))
    except search.SearchTooLongError:
        return Refused(RefusalReason.SEARCH_TOO_LONG, explain.search_too_long(shape, ledger))
    if chosen is None:
        never = not all(_could_ever_hold(shape, container, of_kind) for container in shape.containers)
        message = explain.insufficient(shape, ledger, barred, never=never)
        return Refused(_reason(shape, usable, ledger), message, permanent=never)
    return Placed(
        tuple(_grant(shape, request, gpus, ledger) for request, gpus in zip(shape.containers, chosen, strict=True))
    )


def _choose(
    shape: RequestShape, usable: Sequence[Gpu], ledger: NodeLedger, policy: Scoring
) -> Sequence[tuple[GpuUuid, ...]] | None:
    containers = shape.containers
    if len(containers) > 1:
        bins = [
            search.Bin(
                uuid=gpu.uuid,
                index=gpu.index,
                room=FreeGpu.of(gpu, ledger),
                needs=tuple(_need(shape, request, gpu, ledger) for request in containers),
            )
            for gpu in usable
        ]
        return search.find(containers, bins, policy)
    # One container is the usual pod, and its best GPUs are simply those that cost least.
    request = containers[0]
    fitting = [gpu for gpu in _open_to(shape, request, usable) if _fits_alone(shape, request, gpu, ledger)]
    if len(fitting) < request.gpu_count:
        return None
    free = [FreeGpu.of(gpu, ledger) for gpu in fitting]
    needs = [
        Need(each.total_mib, 100) if request.whole else request.need(gpu)
        for gpu, each in zip(fitting, free, strict=True)
    ]
    costs = policy.of_gpus(list(zip(free, needs, strict=True))) if len(fitting) > 1 else [0]
    # Only equal GPUs are told apart by their index.
    best = sorted(zip(costs, free, [(gpu.index, gpu.uuid) for gpu in fitting], strict=True))
    return [tuple(uuid for _, _, (_, uuid) in best[: request.gpu_count])]


def _hardest(request: ContainerRequest) -> tuple[int, bool]:
    """By which a refusal names the container for which it is hardest to find GPUs."""
    return request.gpu_count, request.whole


def _open_to(shape: RequestShape, request: ContainerRequest, gpus: Sequence[Gpu]) -> Sequence[Gpu]:
    return [gpu for gpu in gpus if candidates.takes(shape, request, gpu)]


def _need(shape: RequestShape, request: ContainerRequest, gpu: Gpu, ledger: NodeLedger) -> Need | None:
    if not candidates.takes(shape, request, gpu) or (request.whole and not ledger.untouched(gpu)):
        return None
    return request.need(gpu)


def _fits_alone(shape: RequestShape, request: ContainerRequest, gpu: Gpu, ledger: NodeLedger) -> bool:
    need, free_mib = _need(shape, request, gpu, ledger), ledger.free_mib(gpu)
    return need is not None and free_mib >= need.memory_mib and ledger.free_percent(gpu) >= need.compute_percent


def _could_ever_hold(shape: RequestShape, request: ContainerRequest, gpus: Sequence[Gpu]) -> bool:
    open_to = _open_to(shape, request, gpus)
    return sum(gpu.memory_mib >= request.need(gpu).memory_mib for gpu in open_to) >= request.gpu_count


def _reason(shape: RequestShape, usable: Sequence[Gpu], ledger: NodeLedger) -> RefusalReason:
    """What is lacking first, for programs."""
    for request in shape.containers:
        open_to = _open_to(shape, request, usable)
        if len(open_to) < request.gpu_count:
            return RefusalReason.NO_MATCHING_GPU
        if sum(_fits_alone(shape, request, gpu, ledger) for gpu in open_to) >= request.gpu_count:
            continue
        if request.whole:
            return RefusalReason.NO_UNTOUCHED_GPU
        roomy = sum(ledger.free_mib(gpu) >= request.need(gpu).memory_mib for gpu in open_to)
        if roomy >= request.gpu_count:
            return RefusalReason.INSUFFICIENT_GPU_COMPUTE
    return RefusalReason.INSUFFICIENT_GPU_MEMORY


def _grant(shape: RequestShape, request: ContainerRequest, gpus: tuple[GpuUuid, ...], ledger: NodeLedger) -> Grant:
    chosen = [ledger.inventory.by_uuid[uuid] for uuid in gpus]
    needs = [request.need(gpu) for gpu in chosen]
    return Grant(
        container=request.container,
        kind=request.kind,
        gpus=gpus,
        memory_mib=min(need.memory_mib for need in needs),
        compute_percent=needs[0].compute_percent,
        whole=request.whole,
        physical=shape.gpus.physical,
        extra_mib=0 if request.whole else max(gpu.extra_mib for gpu in chosen),
    )
