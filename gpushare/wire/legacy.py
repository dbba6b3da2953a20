"""Allocations that Aliyun gpushare or ACK wrote, so that their running pods are counted after a change of system."""

from collections.abc import Mapping
from typing import Any

import orjson

from gpushare import names, units
from gpushare.errors import WireError
from gpushare.identity import ContainerName, NodeName, PodRef, by_index
from gpushare.model.allocation import Allocation, Grant
from gpushare.units import MemoryUnit


def allocation(pod: Mapping[str, Any], ref: PodRef, node: NodeName, unit: MemoryUnit) -> Allocation | None:
    """The allocation that another system's annotations describe, with GPUs known by index only.

    Raises:
        WireError: such an annotation is there, but cannot be read.
    """
    annotations = pod["metadata"].get("annotations") or {}
    if names.ACK_ALLOCATION in annotations:
        grants = _ack(annotations[names.ACK_ALLOCATION], pod, unit)
    elif names.ALIYUN_IDX in annotations:
        grants = _aliyun(annotations[names.ALIYUN_IDX], pod, unit)
    else:
        return None
    return Allocation(pod=ref, node=node, grants=grants)


def _aliyun(index: str, pod: Mapping[str, Any], unit: MemoryUnit) -> tuple[Grant, ...]:
    what = f"annotation {names.ALIYUN_IDX}"
    if not index.isdecimal():
        raise WireError(f"{what}: expected the number of a GPU, found {index!r}")
    grants = []
    for container in pod["spec"].get("containers") or ():
        limits = (container.get("resources") or {}).get("limits") or {}
        if names.GPU_MEM not in limits:
            continue
        # The spec, not ALIYUN_COM_GPU_MEM_POD: a tenant can edit that annotation, but not the spec.
        try:
            amount = units.parse_amount(limits[names.GPU_MEM])
        except ValueError as error:
            raise WireError(f"{what}: container {container['name']}: {error}") from error
        grants.append(
            Grant(
                container=ContainerName(container["name"]),
                gpus=(by_index(int(index)),),
                memory_mib=unit.to_mib(amount),
            )
        )
    return tuple(grants)


def _ack(text: str, pod: Mapping[str, Any], unit: MemoryUnit) -> tuple[Grant, ...]:
    """Read `{"<container index>": {"<GPU index>": <units>}}`."""
    what = f"annotation {names.ACK_ALLOCATION}"
    containers = pod["spec"].get("containers") or ()
    try:
        value = orjson.loads(text)
        return tuple(
            Grant(
                container=ContainerName(containers[int(container)]["name"]),
                gpus=(by_index(_natural(gpu)),),
                memory_mib=unit.to_mib(_natural(amount)),
            )
            for container, shares in value.items()
            for gpu, amount in shares.items()
        )
    except (ValueError, TypeError, AttributeError, LookupError) as error:
        raise WireError(f"{what}: expected container index, GPU index and units, found {text!r} ({error})") from error


def _natural(value: object) -> int:
    number = int(str(value))
    if number < 0:
        raise ValueError(f"{number} is negative")
    return number
