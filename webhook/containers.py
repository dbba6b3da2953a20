"""What the webhook writes into one container. Pure: returns a new container, or the same one if nothing changes."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from gpushare import names, units
from gpushare.model.request import ContainerRequest
from gpushare.units import MemoryUnit
from gpushare.wire import pods
from gpushare.wire import requests as requests_wire
from gpushare.wire.fields import JsonObject
from webhook import env
from webhook.rules import Rules

_VOID: Final = env.fixed(names.ENV_VISIBLE_DEVICES, names.VISIBLE_DEVICES_NONE)


def grant(container: JsonObject, request: ContainerRequest, *, pod_units: int, unit: MemoryUnit) -> JsonObject:
    """A container that asks for GPUs.

    Args:
        container: as its author wrote it, or as an earlier call of the webhook left it.
        request: what it asks for.
        pod_units: units of gpu-mem of all containers of the pod together.
        unit: what one unit of gpu-mem stands for.
    """
    ours = list(_grants(container["name"], request, pod_units=pod_units, unit=unit))
    before = container.get("env") or []
    if not env.of_name(before, names.ENV_DRIVER_CAPABILITIES):
        ours.append(env.fixed(names.ENV_DRIVER_CAPABILITIES, names.DRIVER_CAPABILITIES_DEFAULT))
    return {**container, "env": env.write(before, ours), "resources": _resources(container["resources"], request, unit)}


def isolate(container: JsonObject) -> JsonObject:
    """A container that was granted no GPU: whatever its image and author say, the NVIDIA runtime leaves it alone."""
    before = container.get("env") or []
    if env.of_name(before, names.ENV_VISIBLE_DEVICES) == [_VOID]:
        return container
    return {**container, "env": env.write(before, [_VOID])}


def yield_to_plugin(container: JsonObject) -> JsonObject:
    """A container of another GPU plugin: what its author says must not win over what that plugin sets."""
    before = container.get("env") or []
    kept = [entry for entry in before if entry.get("name") != names.ENV_VISIBLE_DEVICES]
    return container if len(kept) == len(before) else {**container, "env": kept}


def without_zero(container: JsonObject) -> JsonObject:
    """A container that does not ask for 0 whole GPUs, which means none."""
    resources = container.get("resources") or {}
    kept = {
        field: {key: amount for key, amount in values.items() if key != names.GPU or str(amount).strip() != "0"}
        for field in ("limits", "requests")
        if (values := resources.get(field))
    }
    if all(kept[field] == resources[field] for field in kept):
        return container
    return {**container, "resources": {**resources, **kept}}


def foreign(container: Mapping[str, Any], rules: Rules) -> str | None:
    """A resource of another GPU plugin that it asks for; that plugin then sets the container's devices itself."""
    amounts = [
        *pods.amounts(container, "limits").items(),
        *pods.amounts(container, "requests").items(),
    ]
    return next((name for name, amount in amounts if rules.is_foreign(name) and _is_positive(amount)), None)


def overridden(container: Mapping[str, Any], now: Mapping[str, Any]) -> str | None:
    """The author's `NVIDIA_VISIBLE_DEVICES` that `now` replaces, for a warning; None if there was none.

    Args:
        container: before.
        now: the same container after.
    """
    before, after = env_of_devices(container), env_of_devices(now)
    if not before or before[-1:] == after[-1:]:  # the last one counts
        return None
    value = before[-1].get("value")
    return repr(value) if isinstance(value, str) and len(value) <= 40 else "its value"


def env_of_devices(container: Mapping[str, Any]) -> list[env.Entry]:
    """Entries that say which devices it sees."""
    return env.of_name(container.get("env") or (), names.ENV_VISIBLE_DEVICES)


def is_privileged(container: Mapping[str, Any]) -> bool:
    """Whether it reaches all devices of the node whatever it was granted."""
    return (container.get("securityContext") or {}).get("privileged") is True


def memory_units(container_requests: Iterable[ContainerRequest], unit: MemoryUnit) -> int:
    """Units of gpu-mem that these containers take from the node, over all their GPUs."""
    counted = (requests_wire.counted(request, unit) for request in container_requests)
    return sum(amount for resource, amount in counted if resource == names.GPU_MEM)


def _grants(name: str, request: ContainerRequest, *, pod_units: int, unit: MemoryUnit) -> Iterator[env.Entry]:
    """A container with whole GPUs has no limits. How much a part of a GPU is, is known when the GPU is."""
    yield env.from_annotation(names.ENV_VISIBLE_DEVICES, names.PREFIX_DEVICES + name)
    if request.whole:
        return
    yield env.from_annotation(names.ENV_MEMORY_MIB, names.PREFIX_MEMORY + name)
    # The kubelet puts in what an entry before this one says.
    limit = f"$({names.ENV_MEMORY_MIB})" if request.memory_percent else request.memory_mib
    if not request.memory_percent:
        yield env.from_annotation(names.ALIYUN_IDX, names.PREFIX_INDEX + name)
        yield env.from_annotation(names.ALIYUN_DEV, names.PREFIX_CAPACITY + name)
        yield env.fixed(names.ALIYUN_CONTAINER, str(memory_units([request], unit)))
        yield env.fixed(names.ALIYUN_POD, str(pod_units))
    # One for each visible GPU: CUDA drops all limits if one of them names a GPU that it does not see.
    limits = ",".join(f"{ordinal}={limit}M" for ordinal in range(request.gpu_count))
    yield env.fixed(names.ENV_MPS_MEMORY_LIMIT, limits)
    if request.compute_percent:
        yield env.fixed(names.ENV_MPS_THREAD_PERCENTAGE, str(request.compute_percent))


def _resources(resources: JsonObject, request: ContainerRequest, unit: MemoryUnit) -> JsonObject:
    """With what the kubelet counts as the limit, and requests that are equal, as they must be."""
    resource, amount = requests_wire.counted(request, unit)
    limits, requests = dict(resources["limits"]), dict(resources.get("requests") or {})
    if units.parse_amount(limits[resource]) != amount:
        limits[resource] = requests[resource] = str(amount)
    for ours in (resource, names.GPU_CORE):
        if ours in limits:
            requests.setdefault(ours, limits[ours])
    return {**resources, "limits": limits, "requests": requests}


def _is_positive(amount: object) -> bool:
    quantity = units.quantity(amount)
    return quantity is not None and quantity > 0
