"""Does the ledger of this node's GPUs add up? Pure.

They do unless something went wrong elsewhere, such as two controllers that both believed to lead. Then the pods that
were bound first keep what they have, so that all retries decide alike.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from gpushare import names, units
from gpushare.errors import WireError
from gpushare.identity import GpuUuid
from gpushare.model.allocation import Allocation
from gpushare.model.gpu import NodeInventory
from gpushare.model.ledger import NodeLedger
from gpushare.units import MemoryUnit, ResourceConfig
from gpushare.wire import allocations, pods
from gpushare.wire.pods import Pod

_LAST: Final = 10**20  # nanoseconds; later than any pod


def shortage(
    pod: Pod,
    allocation: Allocation,
    *,
    inventory: NodeInventory,
    others: Sequence[Pod],
    resource_config: ResourceConfig,
) -> str:
    """Why the memory or the compute that a pod was given is not there, or nothing if it is.

    The others are all known pods of the node; the pod itself may be among them.
    """
    held = [(_assumed(pod), allocation), *_held(others, allocation, resource_config, inventory.unit)]
    full = _excess(NodeLedger.of(inventory, (other for _, other in held)))
    if not any(gpu in full for grant in allocation.grants for gpu in grant.gpus):
        return ""
    ledger = NodeLedger.of(inventory)
    for _, next_held in sorted(held, key=lambda entry: (entry[0], entry[1].pod.uid)):
        tried = ledger.with_allocation(next_held)
        # A GPU that is gone has nothing to give, but its pods may hold others beside it.
        excess = [gpu for gpu in _excess(tried) if gpu in inventory.by_uuid]
        if not excess:
            ledger = tried
        elif next_held.pod.uid == allocation.pod.uid:
            return _describe(ledger, tried, excess[0])
    return ""


def _excess(ledger: NodeLedger) -> Iterable[GpuUuid]:
    """GPUs of which more is held than there is, of memory first."""
    return dict.fromkeys((*ledger.over_committed(), *ledger.over_computed()))


def _held(
    others: Iterable[Pod], allocation: Allocation, resource_config: ResourceConfig, unit: MemoryUnit
) -> Iterable[tuple[int, Allocation]]:
    """Time of the decision, and what is held, for every other pod."""
    for pod in others:
        if pods.ref(pod).uid == allocation.pod.uid or not pods.holds_gpus(pod):
            continue
        try:
            # Who asks for nothing holds nothing, whatever its annotations claim: no one guards those.
            if not pods.needs_gpu(pod, resource_config):
                continue
            other = allocations.held(pod, resource_config, unit).allocation
        except WireError:
            continue  # its own containers are refused, and the controller sends no new pods to this node
        if other is not None:
            yield _assumed(pod), other


def _assumed(pod: Pod) -> int:
    """Nanoseconds; a pod that does not say comes last."""
    text = pods.annotations(pod).get(names.ALIYUN_ASSUME_TIME, "")
    return int(text) if text.isdecimal() and len(text) < 20 else _LAST


def _describe(ledger: NodeLedger, tried: NodeLedger, uuid: GpuUuid) -> str:
    """Args: ledger: with the pods that were bound earlier; tried: with this one too."""
    gpu = ledger.inventory.by_uuid[uuid]
    whose = f"GPU {uuid} of node {ledger.inventory.node}"
    if missing := tried.over_committed().get(uuid):
        if (most := tried.used_mib[uuid] - missing) > gpu.memory_mib:
            whose += f", oversubscribed to {most} MiB,"
        if not (earlier := ledger.used_mib.get(uuid, 0)):
            return f"{whose} has {gpu.memory_mib} MiB, {missing} MiB less than the pod was granted"
        left = units.minus_or_zero(most, earlier)
        found = f"{whose} has {gpu.memory_mib} MiB, and pods that were bound earlier leave"
        return f"{found} {left} MiB, {missing} MiB too few"
    left = units.minus_or_zero(100, ledger.used_percent.get(uuid, 0))
    missing = tried.over_computed()[uuid]
    return f"pods that were bound earlier leave {left} % of the compute of {whose}, {missing} % too few"
