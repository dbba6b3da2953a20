"""Choose GPUs of one node for a whole pod, or say with numbers why not."""

from collections.abc import Sequence
from typing import Final

from gpushare.identity import GpuUuid
from gpushare.model.capacity import FreeGpu
from gpushare.model.gpu import Gpu, HandOver
from gpushare.model.ledger import Grant, NodeLedger, Placed, RefusalReason, Refused, Verdict
from gpushare.model.request import Affinity, ContainerRequest, LabelSelector, Need, RequestShape
from gpushare.placement import explain, search
from gpushare.placement.explain import Barred
from gpushare.placement.policies import Policies, Scoring
from gpushare.placement.search import Bin

_DEFAULT: Final = Policies()


def place(shape: RequestShape, ledger: NodeLedger, policies: Policies = _DEFAULT) -> Verdict:
    """The decision for one pod on one node. The same input always gives the same answer.

    Whether it fits, and the words of a refusal, depend on no policy; only which GPUs it gets does. What they cost the
    node is told by `costs.costs_of`.
    """
    if shape.only_cdi and ledger.inventory.hand_over is not HandOver.CDI:
        return Refused(RefusalReason.OTHER_HAND_OVER, explain.other_hand_over(ledger), permanent=True)
    healthy = ledger.inventory.healthy
    if not healthy:
        return Refused(RefusalReason.NO_HEALTHY_GPU, explain.no_healthy_gpu(ledger), permanent=True)
    widest = max(container.gpu_count for container in shape.containers)
    if widest > len(healthy):
        return Refused(RefusalReason.TOO_FEW_GPUS, explain.too_few_gpus(widest, len(healthy), ledger), permanent=True)
    barred = {gpu.uuid: why for gpu in healthy if (why := shape.why_not(gpu))}
    of_kind = [gpu for gpu in healthy if gpu.uuid not in barred]
    lacking = [request for request in shape.containers if request.gpu_count > len(_open_to(shape, request, of_kind))]
    if lacking:
        hardest = max(lacking, key=lambda request: (request.gpu_count, request.whole))
        message = ledger.inventory.node.join(explain.around_the_node(shape, hardest, ledger.inventory))
        return Refused(RefusalReason.NO_MATCHING_GPU, message, permanent=True)
    barred = {**_barred_by_neighbours(shape.affinity, ledger), **barred}
    bins = [_bin(shape, gpu, ledger) for gpu in of_kind if gpu.uuid not in barred]
    try:
        chosen = _choose(shape, bins, policies.of(shape.policy))
    except search.SearchTooLongError:
        return Refused(RefusalReason.SEARCH_TOO_LONG, explain.search_too_long(shape, ledger))
    if chosen is None:
        never = not all(_could_ever_hold(shape, container, of_kind) for container in shape.containers)
        needs = explain.needs(shape, ledger.inventory.unit)
        message = needs + explain.left(shape, ledger, barred, never=never)
        return Refused(_reason(shape, bins), message, permanent=never)
    return Placed(
        tuple(_grant(shape, request, gpus, ledger) for request, gpus in zip(shape.containers, chosen, strict=True))
    )


def _barred_by_neighbours(affinity: Affinity | None, ledger: NodeLedger) -> Barred:
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
        for grant in held.grants
        for gpu in grant.gpus
    }


def _bin(shape: RequestShape, gpu: Gpu, ledger: NodeLedger) -> Bin:
    room = FreeGpu.of(gpu, ledger)
    needs = (
        request.need(gpu) if shape.takes(request, gpu) and (room.untouched or not request.whole) else None
        for request in shape.containers
    )
    return Bin(gpu=gpu, room=room, needs=tuple(needs))


def _choose(shape: RequestShape, bins: Sequence[Bin], scoring: Scoring) -> Sequence[tuple[GpuUuid, ...]] | None:
    if len(shape.containers) > 1:
        return search.find(shape.containers, bins, scoring)
    # One container is the usual pod, and its best GPUs are simply those that cost least.
    [request] = shape.containers
    fitting = [one for one in bins if one.holds(0)]
    if len(fitting) < request.gpu_count:
        return None
    asked = [(one.room, Need(one.room.total_mib, 100) if request.whole else request.need(one.gpu)) for one in fitting]
    costs = scoring.of_gpus(asked) if len(fitting) > 1 else [0]
    # Only equal GPUs are told apart by their index.
    ranked = sorted((cost, one.room, one.gpu.index, one.gpu.uuid) for cost, one in zip(costs, fitting, strict=True))
    return [tuple(uuid for *_, uuid in ranked[: request.gpu_count])]


def _open_to(shape: RequestShape, request: ContainerRequest, gpus: Sequence[Gpu]) -> Sequence[Gpu]:
    return [gpu for gpu in gpus if shape.takes(request, gpu)]


def _could_ever_hold(shape: RequestShape, request: ContainerRequest, gpus: Sequence[Gpu]) -> bool:
    open_to = _open_to(shape, request, gpus)
    return sum(gpu.memory_mib >= request.need(gpu).memory_mib for gpu in open_to) >= request.gpu_count


def _reason(shape: RequestShape, bins: Sequence[Bin]) -> RefusalReason:
    """What is lacking first, for programs."""
    for position, request in enumerate(shape.containers):
        open_to = [one for one in bins if shape.takes(request, one.gpu)]
        if len(open_to) < request.gpu_count:
            return RefusalReason.NO_MATCHING_GPU
        if sum(one.holds(position) for one in open_to) >= request.gpu_count:
            continue
        if request.whole:
            return RefusalReason.NO_UNTOUCHED_GPU
        roomy = [one for one in open_to if one.room.holds(Need(request.need(one.gpu).memory_mib, 0))]
        if len(roomy) >= request.gpu_count:
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
