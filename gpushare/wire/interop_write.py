"""What Aliyun gpushare, ACK and nano-gpu would have written on a pod, for their tools and for the way back to them."""

import orjson

from gpushare import names
from gpushare.identity import GpuUuid
from gpushare.model.allocation import Allocation, Grant
from gpushare.model.gpu import NodeInventory
from gpushare.model.request import ContainerKind, PodRequest


def annotations(
    allocation: Allocation, inventory: NodeInventory, assumed_ns: int, request: PodRequest | None
) -> dict[str, str]:
    """Annotations for a Binding. Those of ACK and nano-gpu need the request, which names all containers.

    Args:
        allocation: the decision; every GPU in it is in the inventory.
        inventory: of the allocation's node.
        assumed_ns: Unix time of the decision in nanoseconds, Aliyun's format.
        request: what the pod asked for, if it is known.
    """
    result = _aliyun(allocation, inventory, assumed_ns)
    if request is None:
        return result
    if names.ALIYUN_IDX not in result:
        result |= _ack(allocation, inventory, assumed_ns, request)
    if any(container_request.memory_percent for container_request in request.shape.containers):
        result |= _nano(allocation, inventory, request)
    return result


def units_on(grant: Grant, gpu: GpuUuid, inventory: NodeInventory) -> int:
    """Units that a grant takes from one of its GPUs; never more than the GPU has."""
    most = inventory.unit.floor(inventory.by_uuid[gpu].memory_mib)
    return most if grant.whole else min(inventory.unit.ceil(grant.memory_mib), most)


def _aliyun(allocation: Allocation, inventory: NodeInventory, assumed_ns: int) -> dict[str, str]:
    total = sum(units_on(grant, gpu, inventory) for grant in allocation.grants for gpu in grant.gpus)
    gpus = {uuid for grant in allocation.grants for uuid in grant.gpus}
    result = {
        names.ALIYUN_POD: str(total),
        # The choice is final with the Binding, so nothing flips this from "false" later.
        names.ALIYUN_ASSIGNED: "true",
        names.ALIYUN_ASSUME_TIME: str(assumed_ns),
    }
    if len(gpus) == 1:
        gpu = inventory.by_uuid[gpus.pop()]
        result[names.ALIYUN_IDX] = str(gpu.index)
        result[names.ALIYUN_DEV] = str(inventory.unit.floor(gpu.memory_mib))
    return result


def _ack(allocation: Allocation, inventory: NodeInventory, assumed_ns: int, request: PodRequest) -> dict[str, str]:
    """Several GPUs, which Aliyun's open-source version has no words for. Containers and GPUs are known by number."""
    shares = {
        str(request.app_containers.index(grant.container)): {
            str(inventory.by_uuid[gpu].index): units_on(grant, gpu, inventory) for gpu in grant.gpus
        }
        for grant in allocation.grants
        if grant.kind is ContainerKind.APP and grant.container in request.app_containers
    }
    return {
        names.ACK_ALLOCATION: orjson.dumps(shares).decode(),
        names.ACK_ASSIGNED: "true",
        names.ACK_ASSUME_TIME: str(assumed_ns),
    }


def _nano(allocation: Allocation, inventory: NodeInventory, request: PodRequest) -> dict[str, str]:
    """The number of every app container's GPU; -1 for those that asked for none."""
    indices = dict.fromkeys(request.app_containers, "-1")
    for grant in allocation.grants:
        if grant.container in indices:
            indices[grant.container] = ",".join(str(inventory.by_uuid[gpu].index) for gpu in grant.gpus)
    return {
        names.NANO_ASSUME: "true",
        **{names.PREFIX_NANO_CONTAINER + name: index for name, index in indices.items()},
    }
