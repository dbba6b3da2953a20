"""Allocations that Aliyun gpushare, ACK or nano-gpu wrote: their running pods are counted after a change of system."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import orjson

from gpushare import names, units
from gpushare.errors import WireError
from gpushare.identity import ContainerName, NodeName, PodRef, by_index
from gpushare.model.allocation import Allocation, Grant
from gpushare.units import MemoryUnit
from gpushare.wire import fields, parse_resources

_INDEX: Final = re.compile(r"[0-9]{1,4}")
_AMOUNT: Final = re.compile(r"[0-9]{1,10}")
_NONE: Final = "-1"
OTHER_DEVICES: Final = "was given its GPUs by another system, but its devices by this plugin"
"""What the device plugin says of a container that it refuses for this; the kubelet puts it into the pod's status.

So it is with pods whose template has annotations of another system, when the webhook was not asked: copied from a pod
that runs, or forged. The other system never gave them their devices, so such annotations cannot count.
"""


def is_annotation(key: str) -> bool:
    """Whether `allocation` reads this annotation."""
    return key in {names.ACK_ALLOCATION, names.ALIYUN_IDX, names.NANO_ASSUME} or key.startswith(
        names.PREFIX_NANO_CONTAINER
    )


def is_bound(annotations: Mapping[str, str]) -> bool:
    """Whether another system has bound the pod."""
    return any(key in annotations for key in (names.ACK_ALLOCATION, names.ALIYUN_IDX, names.NANO_ASSUME))


def allocation(pod: Mapping[str, Any], ref: PodRef, node: NodeName, unit: MemoryUnit) -> Allocation | None:
    """The allocation that another system's annotations describe, with GPUs known by index only.

    Raises:
        WireError: such an annotation is there, but cannot be read.
    """
    annotations = fields.mapping(fields.mapping(pod, "metadata", "pod"), "annotations", "metadata")
    containers = fields.objects(fields.mapping(pod, "spec", "pod"), "containers", "spec")
    if names.ACK_ALLOCATION in annotations:
        grants = _ack(fields.text(annotations, names.ACK_ALLOCATION, "metadata.annotations"), containers, unit)
    elif names.ALIYUN_IDX in annotations:
        grants = _aliyun(fields.text(annotations, names.ALIYUN_IDX, "metadata.annotations"), containers, unit)
    elif names.NANO_ASSUME in annotations:
        grants = _nano(annotations, containers)
    else:
        return None
    labels = fields.mapping(fields.mapping(pod, "metadata", "pod"), "labels", "metadata")
    return Allocation(pod=ref, node=node, grants=grants, labels=labels)


def _aliyun(index: str, containers: Sequence[Mapping[str, Any]], unit: MemoryUnit) -> tuple[Grant, ...]:
    what = f"annotation {names.ALIYUN_IDX}"
    if _INDEX.fullmatch(index) is None:
        raise WireError(f"{what}: expected the number of a GPU, found {index!r:.100}")
    grants = []
    for name, limit in _limited(containers, names.GPU_MEM):
        # The spec, not ALIYUN_COM_GPU_MEM_POD: a tenant can edit that annotation, but not the spec.
        try:
            amount = units.parse_amount(limit)
        except ValueError as error:
            raise WireError(f"{what}: container {name}: {error}") from error
        grants.append(
            Grant(container=ContainerName(name), gpus=(by_index(int(index)),), memory_mib=unit.to_mib(amount))
        )
    return tuple(grants)


def _ack(text: str, containers: Sequence[Mapping[str, Any]], unit: MemoryUnit) -> tuple[Grant, ...]:
    """Read `{"<container index>": {"<GPU index>": <units>}}`."""
    what = f"annotation {names.ACK_ALLOCATION}"
    try:
        value = orjson.loads(text)
        return tuple(
            Grant(
                container=ContainerName(fields.needed(containers[_index(container)], "name", f"container {container}")),
                gpus=(by_index(_index(gpu)),),
                memory_mib=unit.to_mib(_amount(amount)),
            )
            for container, shares in value.items()
            for gpu, amount in shares.items()
        )
    except (ValueError, AttributeError, LookupError) as error:
        problem = f"expected container index, GPU index and units, found {text!r:.200}"
        raise WireError(f"{what}: {problem} ({error!s:.200})") from error


def _nano(annotations: Mapping[str, str], containers: Sequence[Mapping[str, Any]]) -> tuple[Grant, ...]:
    """One GPU for each container that asks for a part of it."""
    grants = []
    for name, limit in _limited(containers, names.GPU_PERCENT):
        key = names.PREFIX_NANO_CONTAINER + name
        index = fields.text(annotations, key, "metadata.annotations")
        if index == _NONE or _INDEX.fullmatch(index) is None:
            raise WireError(f"annotation {key}: expected the number of a GPU, found {annotations.get(key)!r:.100}")
        try:
            percent = min(units.parse_amount(limit, "per cent"), 100)
        except ValueError as error:
            raise WireError(f"annotation {key}: {error}") from error
        grants.append(
            Grant(
                container=ContainerName(name),
                gpus=(by_index(int(index)),),
                memory_mib=0,
                memory_percent=percent,
                compute_percent=percent,
            )
        )
    return tuple(grants)


def _limited(containers: Sequence[Mapping[str, Any]], resource: str) -> Iterator[tuple[str, object]]:
    """Name and limit of the containers that ask for a resource."""
    for i, container in enumerate(containers):
        limits = parse_resources.amounts(container, "limits")
        if resource in limits:
            yield fields.needed(container, "name", f"spec.containers[{i}]"), limits[resource]


def _amount(value: object) -> int:
    text = str(value)
    if _AMOUNT.fullmatch(text) is None:
        raise ValueError(f"{text[:20]!r} is no amount")
    return int(text)


def _index(text: str) -> int:
    if _INDEX.fullmatch(text) is None:
        raise ValueError(f"{text[:20]!r} is no index")
    return int(text)
