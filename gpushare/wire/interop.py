"""Allocations that Aliyun gpushare, ACK or nano-gpu wrote: their running pods are counted after a change of system."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import orjson

from gpushare import names, units
from gpushare.errors import WireError
from gpushare.identity import ContainerName, GpuUuid, NodeName, PodRef, by_index
from gpushare.model.gpu import NodeInventory
from gpushare.model.ledger import Allocation, Grant
from gpushare.model.request import ContainerKind, PodRequest
from gpushare.units import MemoryUnit
from gpushare.wire import fields, pods

_INDEX: Final = re.compile(r"[0-9]{1,4}")
_MARKS: Final = frozenset({names.ACK_ALLOCATION, names.ALIYUN_IDX, names.NANO_ASSUME})  # of bound pods
_AMOUNT: Final = re.compile(r"[0-9]{1,10}")
OTHER_DEVICES: Final = "was given its GPUs by another system, but its devices by this plugin"
"""What the device plugin says of a container that it refuses for this; the kubelet puts it into the pod's status.

So it is with pods whose template has annotations of another system, when the webhook was not asked: copied from a pod
that runs, or forged. The other system never gave them their devices, so such annotations cannot count.
"""


def is_annotation(key: str) -> bool:
    return key in _MARKS or key.startswith(names.PREFIX_NANO_CONTAINER)


def is_bound(annotations: Mapping[str, str]) -> bool:
    return not _MARKS.isdisjoint(annotations)


def allocation(pod: pods.Pod, ref: PodRef, node: NodeName, unit: MemoryUnit) -> Allocation | None:
    """The allocation that another system's annotations describe, with GPUs known by index only. Raises WireError."""
    notes = pods.annotations(pod)
    containers = fields.objects(fields.mapping(pod, "spec", "pod"), "containers", "spec")
    if names.ACK_ALLOCATION in notes:
        grants = _ack(fields.text(notes, names.ACK_ALLOCATION, "metadata.annotations"), containers, unit)
    elif names.ALIYUN_IDX in notes:
        # The spec, not ALIYUN_COM_GPU_MEM_POD: a tenant can edit that annotation, but not the spec.
        gpus = _gpu(notes, names.ALIYUN_IDX)
        grants = tuple(
            Grant(
                container=ContainerName(name),
                gpus=gpus,
                memory_mib=unit.to_mib(_amount(limit, "units", f"{names.ALIYUN_IDX}: container {name}")),
            )
            for name, limit in _limited(containers, names.GPU_MEM)
        )
    elif names.NANO_ASSUME in notes:
        grants = tuple(_nano(notes, name, limit) for name, limit in _limited(containers, names.GPU_PERCENT))
    else:
        return None
    return Allocation(pod=ref, node=node, grants=grants, labels=pods.labels(pod))


def _ack(text: str, containers: Sequence[Mapping[str, Any]], unit: MemoryUnit) -> tuple[Grant, ...]:
    """Read `{"<container index>": {"<GPU index>": <units>}}`."""
    try:
        return tuple(
            Grant(
                container=ContainerName(
                    fields.needed(containers[_number(container, _INDEX)], "name", f"container {container}")
                ),
                gpus=(by_index(_number(gpu, _INDEX)),),
                memory_mib=unit.to_mib(_number(amount, _AMOUNT, "amount")),
            )
            for container, shares in orjson.loads(text).items()
            for gpu, amount in shares.items()
        )
    except (ValueError, AttributeError, LookupError) as error:
        problem = f"expected container index, GPU index and units, found {text!r:.200}"
        raise WireError(f"annotation {names.ACK_ALLOCATION}: {problem} ({error!s:.200})") from error


def _nano(notes: Mapping[str, str], name: str, limit: object) -> Grant:
    key = names.PREFIX_NANO_CONTAINER + name
    gpus, percent = _gpu(notes, key), min(_amount(limit, "per cent", key), 100)
    return Grant(
        container=ContainerName(name), gpus=gpus, memory_mib=0, memory_percent=percent, compute_percent=percent
    )


def _gpu(notes: Mapping[str, str], key: str) -> tuple[GpuUuid]:
    index = fields.text(notes, key, "metadata.annotations")
    if _INDEX.fullmatch(index) is None:
        raise WireError(f"annotation {key}: expected the number of a GPU, found {notes.get(key)!r:.100}")
    return (by_index(int(index)),)


def _amount(limit: object, of: str, where: str) -> int:
    try:
        return units.parse_amount(limit, of)
    except ValueError as error:
        raise WireError(f"annotation {where}: {error}") from error


def _limited(containers: Sequence[Mapping[str, Any]], resource: str) -> Iterator[tuple[str, object]]:
    for i, container in enumerate(containers):
        limits = pods.amounts(container, "limits")
        if resource in limits:
            yield fields.needed(container, "name", f"spec.containers[{i}]"), limits[resource]


def _number(value: object, pattern: re.Pattern[str], what: str = "index") -> int:
    text = str(value)
    if pattern.fullmatch(text) is None:
        raise ValueError(f"{text[:20]!r} is no {what}")
    return int(text)


def annotations(
    allocation: Allocation, inventory: NodeInventory, assumed_ns: int, request: PodRequest | None
) -> dict[str, str]:
    """Annotations for a Binding; `assumed_ns` is the Unix time of the decision, Aliyun's format.

    Those of ACK and nano-gpu need the request, which names all containers.
    """
    result = _aliyun_annotations(allocation, inventory, assumed_ns)
    if request is None:
        return result
    if names.ALIYUN_IDX not in result:
        result |= _ack_annotations(allocation, inventory, assumed_ns, request)
    if any(container_request.memory_percent for container_request in request.shape.containers):
        result |= _nano_annotations(allocation, inventory, request)
    return result


def units_on(grant: Grant, gpu: GpuUuid, inventory: NodeInventory) -> int:
    """Units that a grant takes from one of its GPUs; never more than the GPU has."""
    most = inventory.unit.floor(inventory.by_uuid[gpu].memory_mib)
    return most if grant.whole else min(inventory.unit.ceil(grant.memory_mib), most)


def _aliyun_annotations(allocation: Allocation, inventory: NodeInventory, assumed_ns: int) -> dict[str, str]:
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


def _ack_annotations(
    allocation: Allocation, inventory: NodeInventory, assumed_ns: int, request: PodRequest
) -> dict[str, str]:
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


def _nano_annotations(allocation: Allocation, inventory: NodeInventory, request: PodRequest) -> dict[str, str]:
    """The number of every app container's GPU; -1 for those that asked for none."""
    indices = dict.fromkeys(request.app_containers, "-1")
    for grant in allocation.grants:
        if grant.container in indices:
            indices[grant.container] = ",".join(str(inventory.by_uuid[gpu].index) for gpu in grant.gpus)
    return {names.NANO_ASSUME: "true", **{names.PREFIX_NANO_CONTAINER + name: index for name, index in indices.items()}}
