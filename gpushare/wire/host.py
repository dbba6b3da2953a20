"""CPU and memory of hosts: what a node has, and what kube-scheduler counts for a pod. Pure."""

import functools
import math
from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Any, Final

from gpushare import units
from gpushare.errors import WireError
from gpushare.model.allocation import peak
from gpushare.model.capacity import FreeHost
from gpushare.model.request import ContainerKind
from gpushare.wire import fields
from gpushare.wire import pods as pods_wire

_MILLI: Final = Decimal("0.001")
_MIB: Final = Decimal(2**20)
_SHORT: Final = 40
"""Characters of an amount that is remembered. Who asks the extender may write it with as many blanks as they like."""
_MOST: Final = 2**53  # what JSON readers hold exactly; more is no amount of anything


def allocatable(node: Mapping[str, Any]) -> FreeHost | None:
    """What a node gives to pods; None if its kubelet has not said so, or not legibly. Raises WireError: it is none."""
    given = fields.mapping(fields.mapping(node, "status", "node"), "allocatable", "status")
    if "cpu" not in given or "memory" not in given:
        return None
    try:
        cpu, memory = _amount(given["cpu"], _MILLI), _amount(given["memory"], _MIB)
    except ValueError:
        return None
    return FreeHost(math.floor(cpu), math.floor(memory))


def requested(pod: Mapping[str, Any]) -> FreeHost:
    """What kube-scheduler counts for a pod, rounded up: its formula for init containers and sidecars, and the overhead.

    Where requests are set for the whole pod, they count instead of the containers'. Of a pod that is being resized in
    place, the most of what is asked for and what its kubelet has told counts, and of an infeasible resize only the
    latter: `PodRequests` of kube-scheduler from 1.33 on. In 1.27 to 1.32 resizing is off by default; switched on, 1.27
    to 1.31 leave out what is in force, 1.32 what is allocated, and all of them sidecars. Raises WireError: it is no
    pod, or an amount is none.
    """
    spec, status = (fields.mapping(pod, part, "pod") for part in ("spec", "status"))
    told = {
        fields.text(report, "name", where): (report, where)
        for where, report in pods_wire.reports(pod)
        if "resources" in report
    }
    infeasible = bool(told or "resources" in status) and _is_infeasible(pod, status)
    steps = []
    for path, kind, container in pods_wire.containers(pod):
        amounts = _both(_requests(container, path), f"{path}.resources")
        if told and kind is not ContainerKind.INIT:
            known = told.get(fields.text(container, "name", path))
            amounts = amounts if known is None else _resized(amounts, *known, infeasible=infeasible)
        steps.append((kind, amounts))
    cpu, memory = peak(steps) or (0, 0)
    if "resources" in spec:
        whole = _requests(spec, "spec")
        amounts = _both(whole, "spec.resources")
        if "resources" in status:
            amounts = _resized(amounts, status, "status", infeasible=infeasible)
        cpu = amounts[0] if "cpu" in whole else cpu
        memory = amounts[1] if "memory" in whole else memory
    if "overhead" in spec:
        more = _both(fields.mapping(spec, "overhead", "spec"), "spec.overhead")
        cpu, memory = cpu + more[0], memory + more[1]
    return _shared(cpu, memory)


def counted(pod: Mapping[str, Any]) -> FreeHost:
    """What is counted for a pod: `requested`, or nothing where that cannot be read."""
    try:
        return requested(pod)
    except WireError:
        return FreeHost(0, 0)


def left(has: FreeHost, pods: Iterable[FreeHost]) -> FreeHost:
    """What pods leave of a node; never less than nothing, as a node may have shrunk."""
    cpu, memory = has
    for pod in pods:
        cpu, memory = cpu - pod.cpu_milli, memory - pod.memory_mib
    return FreeHost(max(cpu, 0), max(memory, 0))


def _is_infeasible(pod: Mapping[str, Any], status: Mapping[str, Any]) -> bool:
    """Whether the kubelet has said that a resize can never be done on its node; up to 1.32 it says so in `resize`."""
    pending = fields.condition(pod, "PodResizePending", "pod")
    return (pending.get("reason") if pending else status.get("resize")) == "Infeasible"


def _resized(asked: tuple[int, int], told: Mapping[str, Any], path: str, *, infeasible: bool) -> tuple[int, int]:
    """CPU and memory that count, by what a kubelet tells: of them that are in force, and that it has allocated."""
    in_force = fields.mapping(fields.mapping(told, "resources", path), "requests", f"{path}.resources")
    cpu, memory = (0, 0) if infeasible else asked
    allocated = fields.mapping(told, "allocatedResources", path)
    for amounts, where in ((in_force, "resources"), (allocated if allocated != in_force else {}, "allocatedResources")):
        if amounts:
            cpu, memory = map(max, (cpu, memory), _both(amounts, f"{path}.{where}"))
    return cpu, memory


def _requests(holder: Mapping[str, Any], path: str) -> Mapping[str, Any]:
    """Requests, and limits where there is no request, as the API server sets it."""
    resources = fields.mapping(holder, "resources", path)
    limits, requests = (fields.mapping(resources, key, f"{path}.resources") for key in ("limits", "requests"))
    return {**limits, **requests} if limits else requests


def _both(amounts: Mapping[str, Any], path: str) -> tuple[int, int]:
    """CPU and memory, rounded up."""
    return _ceiling(amounts, "cpu", _MILLI, path), _ceiling(amounts, "memory", _MIB, path)


def _ceiling(amounts: Mapping[str, Any], resource: str, unit: Decimal, path: str) -> int:
    if (value := amounts.get(resource)) is None:
        return 0
    try:
        short = isinstance(value, str) and len(value) <= _SHORT
        return _known_ceiling(value, unit) if short else math.ceil(_amount(value, unit))
    except ValueError:
        raise WireError(f"{path}.{resource}: expected an amount such as 500m or 2Gi") from None


@functools.lru_cache(maxsize=4096)
def _shared(cpu_milli: int, memory_mib: int) -> FreeHost:
    # One object for all replicas: a cluster has tens of thousands of pods.
    return FreeHost(cpu_milli, memory_mib)


@functools.lru_cache(maxsize=1024)
def _known_ceiling(text: str, unit: Decimal) -> int:
    # A cluster has few different amounts, in a hundred thousand containers. What is no amount is not kept.
    return math.ceil(_amount(text, unit))


def _amount(value: object, unit: Decimal) -> Decimal:
    """In units; nothing at the least."""
    amount = units.quantity(value)
    if amount is None or not amount.is_finite() or amount / unit > _MOST:
        raise ValueError
    return max(amount / unit, Decimal(0))
