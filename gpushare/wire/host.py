"""CPU and memory of hosts: what a node has, and what kube-scheduler counts for a pod. Pure."""

import math
from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Any, Final

from gpushare import units
from gpushare.errors import WireError
from gpushare.model.allocation import peak
from gpushare.model.room import HostRoom
from gpushare.wire import fields
from gpushare.wire import pods as pods_wire

_MIB: Final = 2**20
_MOST: Final = 2**53
"""What JSON readers hold exactly; more is no amount of anything."""


def allocatable(node: Mapping[str, Any]) -> HostRoom | None:
    """What a node gives to pods; None if its kubelet has not said so, or not legibly.

    Raises:
        WireError: it is no node.
    """
    given = fields.mapping(fields.mapping(node, "status", "node"), "allocatable", "status")
    if "cpu" not in given or "memory" not in given:
        return None
    try:
        cpu, memory = (_scaled(given, "cpu", 1000, "status"), _scaled(given, "memory", Decimal(1) / _MIB, "status"))
    except WireError:
        return None
    return HostRoom(math.floor(cpu), math.floor(memory))


def requested(pod: Mapping[str, Any]) -> HostRoom:
    """What kube-scheduler counts for a pod, rounded up: its formula for init containers and sidecars, and the overhead.

    Where requests are set for the whole pod, they count instead of the containers'.

    Raises:
        WireError: it is no pod, or an amount is none.
    """
    spec = fields.mapping(pod, "spec", "pod")
    steps = [(kind, _amounts(container, path)) for path, kind, container in pods_wire.containers(pod)]
    found = dict(zip(("cpu", "memory"), peak(steps) or (0, 0), strict=True))
    whole = _spec_requests(spec, "spec")
    overhead = fields.mapping(spec, "overhead", "spec")
    cpu = _cpu(whole, "spec.resources.requests") if "cpu" in whole else found["cpu"]
    memory = _memory(whole, "spec.resources.requests") if "memory" in whole else found["memory"]
    return HostRoom(cpu + _cpu(overhead, "spec.overhead"), memory + _memory(overhead, "spec.overhead"))


def left(has: HostRoom, pods: Iterable[HostRoom]) -> HostRoom:
    """What pods leave of a node; never less than nothing, as a node may have shrunk."""
    cpu, memory = has
    for pod in pods:
        cpu, memory = cpu - pod.cpu_milli, memory - pod.memory_mib
    return HostRoom(max(cpu, 0), max(memory, 0))


def _amounts(container: Mapping[str, Any], path: str) -> tuple[int, int]:
    requests = _spec_requests(container, path)
    return _cpu(requests, f"{path}.resources"), _memory(requests, f"{path}.resources")


def _spec_requests(holder: Mapping[str, Any], path: str) -> Mapping[str, Any]:
    """Requests, and limits where there is no request, as the API server sets it."""
    resources = fields.mapping(holder, "resources", path)
    limits, requests = (fields.mapping(resources, key, f"{path}.resources") for key in ("limits", "requests"))
    return {**limits, **requests}


def _cpu(amounts: Mapping[str, Any], path: str) -> int:
    return math.ceil(_scaled(amounts, "cpu", 1000, path))


def _memory(amounts: Mapping[str, Any], path: str) -> int:
    return math.ceil(_scaled(amounts, "memory", Decimal(1) / _MIB, path))


def _scaled(amounts: Mapping[str, Any], resource: str, factor: Decimal | int, path: str) -> Decimal:
    if (value := amounts.get(resource)) is None:
        return Decimal(0)
    amount = units.quantity(value)
    if amount is None or not amount.is_finite() or amount * factor > _MOST:
        raise WireError(f"{path}.{resource}: expected an amount such as 500m or 2Gi")
    return max(amount * factor, Decimal(0))
