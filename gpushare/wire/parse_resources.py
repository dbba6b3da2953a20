"""The ways in which a container says how much of which GPUs it wants -> ContainerRequest. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from gpushare import names, units
from gpushare.errors import FieldError
from gpushare.identity import ContainerName
from gpushare.model.gpu import MAX_GPUS
from gpushare.model.request import ContainerKind, ContainerRequest
from gpushare.resource_config import ResourceConfig
from gpushare.units import MemoryUnit
from gpushare.wire import fields

_SEVERAL: Final = (
    f"for several GPUs ask for {names.GPU_MEM} with the annotation {names.ANNOTATION_GPUS}, which gives so much on each"
)
_COUNTED: Final = {names.GPU_MEM: "units", names.GPU_PERCENT: "per cent", names.GPU_CORE: "per cent", names.GPU: "GPUs"}


@dataclass(frozen=True, slots=True)
class Spread:
    """How the amount in a container's limits relates to GPUs: what the pod's label and annotation say."""

    count: int
    limits_are_totals: bool
    path: str = ""
    """Where the number of GPUs was written; empty if nowhere."""

    def per_gpu(self, amount: int) -> int | None:
        """Units on each GPU, or None if the total does not divide."""
        if not self.limits_are_totals:
            return amount
        return amount // self.count if amount % self.count == 0 else None


def of_container(
    path: str, kind: ContainerKind, container: Mapping[str, Any], *, spread: Spread, resource_config: ResourceConfig
) -> ContainerRequest | Sequence[FieldError] | None:
    """What one container asks for: None for nothing, or all that is wrong with it.

    Args:
        path: of the container, for messages.
        kind: of the container.
        container: as the API server has it.
        spread: over how many GPUs.
        resource_config: of the cluster.
    """
    limits, requests = amounts(container, "limits"), amounts(container, "requests")
    errors = [*_gpu_count(path, limits, requests)]
    known = (*resource_config.resources, names.GPU_CORE)
    asked = [resource for resource in known if resource in limits or resource in requests]
    values = {resource: _amount(path, resource, limits, requests, errors) for resource in asked}
    asked = [resource for resource in asked if resource != names.GPU_CORE]
    if len(asked) > 1:
        problem = f"asks for {' and '.join(asked)}, which count the same GPUs in different ways"
        errors.append(FieldError(f"{path}.resources.limits", problem, "keep one of them"))
    if names.GPU_CORE in values and asked != [names.GPU_MEM]:
        fix = f"add {names.GPU_MEM}, or ask for {names.GPU_PERCENT} alone, which is memory and compute"
        problem = f"{names.GPU_CORE} is the part of compute beside {names.GPU_MEM}"
        errors.append(FieldError(f"{path}.resources.limits", problem, fix))
    if errors:
        return errors
    if not asked:
        return None
    name = ContainerName(fields.needed(container, "name", path))
    amount, compute = values[asked[0]] or 0, values.get(names.GPU_CORE) or 0
    where = f"{path}.resources.limits[{asked[0]}]"
    match asked[0]:
        case names.GPU:
            return _whole(where, name, kind, amount)
        case names.GPU_PERCENT:
            return _part(where, name, kind, amount, spread)
        case _:
            return _memory(where, name, kind, amount, compute=compute, spread=spread, unit=resource_config.unit)


def counted(request: ContainerRequest, unit: MemoryUnit) -> tuple[str, int]:
    """The resource and the amount in which the kubelet counts a request, over all its GPUs."""
    if request.whole:
        return names.GPU, request.gpu_count
    if request.memory_percent:
        return names.GPU_PERCENT, request.memory_percent * request.gpu_count
    return names.GPU_MEM, unit.ceil(request.memory_mib) * request.gpu_count


def amounts(container: Mapping[str, Any], field: str) -> Mapping[str, Any]:
    """A container's limits or requests."""
    return fields.mapping(fields.mapping(container, "resources", "container"), field, "container.resources")


def _whole(path: str, name: ContainerName, kind: ContainerKind, count: int) -> ContainerRequest | list[FieldError]:
    if count > MAX_GPUS:
        return [FieldError(path, f"{count} GPUs are more than any node has", f"write a number up to {MAX_GPUS}")]
    return ContainerRequest(container=name, kind=kind, whole=True, compute_percent=100, gpu_count=count)


def _part(
    path: str, name: ContainerName, kind: ContainerKind, percent: int, spread: Spread
) -> ContainerRequest | list[FieldError]:
    if percent > 100:
        return [FieldError(path, f"{percent} per cent are more than one GPU", f"write up to 100; {_SEVERAL}")]
    if spread.count > 1:
        problem = f"container {name} asks for {names.GPU_PERCENT}, which is a part of one GPU"
        return [FieldError(spread.path, problem, f"remove it; {_SEVERAL}")]
    return ContainerRequest(container=name, kind=kind, memory_percent=percent, compute_percent=percent)


def _memory(
    path: str, name: ContainerName, kind: ContainerKind, amount: int, *, compute: int, spread: Spread, unit: MemoryUnit
) -> ContainerRequest | list[FieldError]:
    if compute > 100:
        core = path.replace(names.GPU_MEM, names.GPU_CORE)
        return [FieldError(core, f"{compute} per cent are more than one GPU's compute", "write up to 100")]
    if compute and spread.count > 1:
        problem = f"container {name} asks for {names.GPU_CORE}, which is a part of one GPU"
        return [FieldError(spread.path, problem, f"remove it, or remove {names.GPU_CORE}")]
    per_gpu = spread.per_gpu(amount)
    if per_gpu is None:
        below, above = amount // spread.count * spread.count, -(-amount // spread.count) * spread.count
        problem = f"{amount} cannot be split evenly over {spread.count} GPUs"
        return [FieldError(path, problem, f"write {below} or {above}" if below else f"write {above}")]
    return ContainerRequest(
        container=name,
        kind=kind,
        memory_mib=unit.to_mib(per_gpu),
        compute_percent=compute,
        gpu_count=spread.count,
    )


def _gpu_count(path: str, limits: Mapping[str, Any], requests: Mapping[str, Any]) -> list[FieldError]:
    return [
        FieldError(
            f"{path}.resources.{field}[{names.GPU_COUNT}]",
            "this resource is for the node's ledger and cannot be requested",
            f"remove it; to use several GPUs, put the label {names.LABEL_GPU_COUNT} on the pod"
            f" (amounts are totals) or the annotation {names.ANNOTATION_GPUS} (amounts are per GPU)",
        )
        for field, values in (("limits", limits), ("requests", requests))
        if names.GPU_COUNT in values
    ]


def _amount(
    path: str, resource: str, limits: Mapping[str, Any], requests: Mapping[str, Any], errors: list[FieldError]
) -> int | None:
    if resource not in limits:
        problem = f"requests {resource} without a limit"
        errors.append(FieldError(f"{path}.resources.limits", problem, "write the same amount under limits"))
        return None
    where, of = f"{path}.resources.limits[{resource}]", _COUNTED[resource]
    try:
        amount = units.parse_amount(limits[resource], of)
        if resource in requests and units.parse_amount(requests[resource], of) != amount:
            where = f"{path}.resources.requests[{resource}]"
            raise ValueError(  # noqa: TRY301 - one place turns all of them into a field error
                f"{requests[resource]} differs from the limit {amount}; write {amount} or leave requests out"
            )
    except ValueError as error:
        problem, _, fix = str(error).partition("; ")
        errors.append(FieldError(where, problem, fix))
        return None
    return amount
