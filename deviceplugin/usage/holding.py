"""The node's pods -> what each of their containers may use of which GPU. Pure."""

from collections.abc import Iterable, Mapping

from deviceplugin.usage.join import Pods
from deviceplugin.usage.values import HoldingPod, Policy
from gpushare import names
from gpushare.errors import WireError
from gpushare.identity import ContainerName, GpuUuid
from gpushare.model.gpu import NodeInventory
from gpushare.model.ledger import NodeLedger, mib_on
from gpushare.units import ResourceConfig
from gpushare.wire import allocations
from gpushare.wire import pods as wire
from gpushare.wire.pods import Pod


def holding(pods: Iterable[Pod], inventory: NodeInventory, resource_config: ResourceConfig) -> Pods:
    """Those that hold GPUs, by UID; one whose allocation cannot be read is left out, because no one knows its grant."""
    found = [each for pod in pods if (each := _one(pod, inventory, resource_config)) is not None]
    return {each.ref.uid: each for each in found}


def _one(pod: Pod, inventory: NodeInventory, resource_config: ResourceConfig) -> HoldingPod | None:
    try:
        if not wire.holds_gpus(pod):
            return None
        allocation = allocations.held(pod, resource_config, inventory.unit).allocation
        containers = {identity: name for name, identity in wire.container_ids(pod).items()}
    except WireError:
        return None
    if allocation is None:
        return None
    granted: dict[tuple[ContainerName, GpuUuid], int] = {}
    for grant in allocation.grants:
        for gpu in map(inventory.resolve, grant.gpus):
            key = grant.container, gpu
            granted[key] = granted.get(key, 0) + mib_on(grant, inventory.by_uuid.get(gpu))
    held = NodeLedger.of(inventory).held(allocation)
    return HoldingPod(
        ref=allocation.pod,
        granted=granted,
        most={gpu: each.memory_mib for gpu, each in held.items()},
        containers=containers,
        percent={gpu: 100 if each.whole else each.compute_percent for gpu, each in held.items()},
        whole=frozenset(gpu for gpu, each in held.items() if each.whole),
        policy=_policy(wire.annotations(pod)),
    )


def _policy(annotations: Mapping[str, str]) -> Policy:
    try:
        return Policy.parse(str(annotations.get(names.WATCHDOG, "")))
    except ValueError:
        return Policy.OFF
