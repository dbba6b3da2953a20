"""What placement may look at of one node. Pure."""

from collections.abc import Iterable

from gpushare import names
from gpushare.cluster import pod_records
from gpushare.cluster.node_records import NodeRecord
from gpushare.cluster.pod_records import Bound, Problem
from gpushare.identity import PodRef
from gpushare.model.capacity import FreeHost, NodeCapacity
from gpushare.model.gpu import GpuHealth, NodeInventory
from gpushare.model.ledger import Allocation, NodeLedger, RefusalReason, Refused, Verdict
from gpushare.model.request import RequestShape
from gpushare.placement.place import place
from gpushare.placement.policies import Policies
from gpushare.units import MemoryUnit

LedgerOrRefused = NodeLedger | Refused  # why it has none; immutable: a new object whenever anything has changed


def of_node(
    node: NodeRecord, bound: Iterable[Bound], reserved: Iterable[Allocation], unit: MemoryUnit
) -> tuple[LedgerOrRefused, dict[PodRef, Problem]]:
    """A node's ledger, and the pods on it whose allocations cannot be read."""
    # What a bound pod shows of itself counts instead of a choice that is reserved for it.
    if node.inventory is None:
        message = f"{node.name} has no GPU inventory: no gpushare device plugin has reported GPUs there"
        if node.problem:
            message = f"{node.name} has an inventory that cannot be read: {node.problem}"
        return Refused(RefusalReason.NO_INVENTORY, message, permanent=True), {}
    bound = list(bound)
    held, problems = pod_records.all_held(bound, node.inventory.unit)
    if node.inventory.unit != unit:
        message = (
            f"{node.name} counts {names.GPU_MEM} in {node.inventory.unit.name}, the controller in {unit.name};"
            " give both the same memory unit"
        )
        return Refused(RefusalReason.UNIT_MISMATCH, message, permanent=True), problems
    for unknown, problem in problems.items():
        if not problem.counted:
            message = (
                f"{node.name} takes no new pods, because what {unknown} holds there cannot be read: {problem.why};"
                " delete that pod, or install the version of gpushare that bound it"
            )
            return Refused(RefusalReason.INSUFFICIENT_GPU_MEMORY, message), problems
    for foreign in filter(pod_records.has_foreign_gpus, bound):
        message = (
            f"{node.name} takes no new pods, because {foreign.ref} runs there on {names.GPU} that another plugin gave"
            " to it, and no one can tell which GPUs these are; delete that pod, or wait until it has ended"
        )
        return Refused(RefusalReason.NO_UNTOUCHED_GPU, message), problems
    return NodeLedger.of(node.inventory, [*reserved, *held]), problems


def verdict(shape: RequestShape, ledger: LedgerOrRefused, policies: Policies) -> Verdict:
    """Whether a pod fits on a node, and on which GPUs; the shape has to be resolved (`groups`)."""
    return ledger if isinstance(ledger, Refused) else place(shape, ledger, policies)


def room(ledger: LedgerOrRefused, host: FreeHost | None) -> NodeCapacity:
    """What is free on a node. One that takes no pods with GPUs is as one without any."""
    if not isinstance(ledger, NodeLedger):
        return NodeCapacity(model="", gpus=(), host=host)
    return NodeCapacity.of(ledger, host)


def lost_gpus(allocation: Allocation, inventory: NodeInventory) -> Refused | None:
    """Why a choice cannot be sent again. It may have taken effect, so it cannot change; its GPUs may be unhealthy."""
    for grant in allocation.grants:
        for gpu in grant.gpus:
            known = inventory.by_uuid.get(gpu)
            if known is None or known.health is not GpuHealth.HEALTHY:
                message = (
                    f"{allocation.pod} may be bound to GPU {gpu} of {allocation.node} already, which is"
                    f" {'gone' if known is None else 'unhealthy'} now; waiting for the API server's word"
                )
                return Refused(RefusalReason.NO_HEALTHY_GPU, message)
    return None
