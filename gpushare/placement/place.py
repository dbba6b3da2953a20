"""Choose GPUs of one node for a whole pod, or say with numbers why not."""

from collections.abc import Sequence

from gpushare.identity import GpuUuid
from gpushare.model.allocation import Grant, footprint
from gpushare.model.gpu import Gpu, GpuHealth
from gpushare.model.ledger import NodeLedger
from gpushare.model.request import ContainerRequest, Policy, RequestShape
from gpushare.model.verdict import Placed, RefusalReason, Refused, Verdict
from gpushare.placement import explain, search
from gpushare.placement.score import POLICIES, score


def place(shape: RequestShape, ledger: NodeLedger, default: Policy = Policy.BINPACK) -> Verdict:
    """The decision for one pod on one node. The same input always gives the same answer.

    Args:
        shape: what the pod asks for.
        ledger: the node's books.
        default: policy of pods that name none.
    """
    policy = shape.policy or default
    healthy = [gpu for gpu in ledger.inventory.gpus if gpu.health is GpuHealth.HEALTHY]
    if not healthy:
        return Refused(RefusalReason.NO_HEALTHY_GPU, explain.no_healthy_gpu(ledger), permanent=True)
    widest = max(container.gpu_count for container in shape.containers)
    if widest > len(healthy):
        return Refused(RefusalReason.TOO_FEW_GPUS, explain.too_few_gpus(widest, len(healthy), ledger), permanent=True)
    try:
        chosen = _choose(shape.containers, healthy, ledger, policy)
    except search.SearchTooLongError:
        return Refused(RefusalReason.SEARCH_TOO_LONG, explain.search_too_long(shape, ledger))
    if chosen is None:
        never = not all(_could_ever_hold(container, healthy) for container in shape.containers)
        message = explain.insufficient(shape, ledger, never=never)
        return Refused(RefusalReason.INSUFFICIENT_GPU_MEMORY, message, permanent=never)
    grants = tuple(
        Grant(container=wish.container, kind=wish.kind, gpus=gpus, memory_mib=wish.memory_mib)
        for wish, gpus in zip(shape.containers, chosen, strict=True)
    )
    return Placed(grants, score(ledger, sum(footprint(grants).values()), policy))


def _choose(
    containers: Sequence[ContainerRequest], healthy: Sequence[Gpu], ledger: NodeLedger, policy: Policy
) -> Sequence[tuple[GpuUuid, ...]] | None:
    ranking = POLICIES[policy]
    if len(containers) > 1:
        bins = [search.Bin(gpu.uuid, gpu.index, ledger.free_mib(gpu)) for gpu in healthy]
        return search.find(containers, bins, ranking)
    # One container is the usual pod, and its best GPUs are simply the first in rank.
    wish = containers[0]
    fitting = [
        (ranking.gpu(free, gpu.index), gpu) for gpu in healthy if (free := ledger.free_mib(gpu)) >= wish.memory_mib
    ]
    if len(fitting) < wish.gpu_count:
        return None
    fitting.sort(key=lambda pair: pair[0])
    return [tuple(gpu.uuid for _, gpu in fitting[: wish.gpu_count])]


def _could_ever_hold(container: ContainerRequest, healthy: Sequence[Gpu]) -> bool:
    return sum(gpu.memory_mib >= container.memory_mib for gpu in healthy) >= container.gpu_count
