"""What the webhook writes into one container. Pure: returns a new container, or the same one if nothing changes."""

import re
from collections.abc import Mapping
from typing import Any, Final

from gpushare import names, units
from gpushare.model.request import ContainerRequest
from gpushare.units import MemoryUnit
from webhook import env
from webhook.objects import JsonObject

_VOID: Final = env.fixed(names.ENV_VISIBLE_DEVICES, names.VISIBLE_DEVICES_NONE)
_NOT_POSITIVE: Final = re.compile(r"-.*|\+?[0.]*([A-Za-z].*)?")


def grant(container: JsonObject, request: ContainerRequest, *, pod_units: int, unit: MemoryUnit) -> JsonObject:
    """A container that asks for GPUs.

    Args:
        container: as its author wrote it, or as an earlier call of the webhook left it.
        request: what it asks for.
        pod_units: units of all containers of the pod together.
        unit: what one unit of the resource stands for.
    """
    own_units = total_units(request, unit)
    ours = _grants(container["name"], request, own_units=own_units, pod_units=pod_units)
    before = container.get("env") or []
    if not env.of_name(before, names.ENV_DRIVER_CAPABILITIES):
        ours = [*ours, env.fixed(names.ENV_DRIVER_CAPABILITIES, names.DRIVER_CAPABILITIES_DEFAULT)]
    return {**container, "env": env.write(before, ours), "resources": _resources(container["resources"], own_units)}


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


def foreign(container: Mapping[str, Any], prefixes: tuple[str, ...]) -> str | None:
    """A resource of another GPU plugin that it asks for; that plugin then sets the container's devices itself."""
    resources = container.get("resources") or {}
    amounts = [*(resources.get("limits") or {}).items(), *(resources.get("requests") or {}).items()]
    return next((name for name, amount in amounts if name.startswith(prefixes) and _is_positive(amount)), None)


def overridden(container: Mapping[str, Any], now: Mapping[str, Any]) -> str | None:
    """The author's `NVIDIA_VISIBLE_DEVICES` that `now` replaces, for a warning; None if there was none.

    Args:
        container: before.
        now: the same container after.
    """
    before, after = env_of_devices(container), env_of_devices(now)
    if not before or before == after:
        return None
    value = before[-1].get("value")
    return repr(value) if isinstance(value, str) and len(value) <= 40 else "its value"


def env_of_devices(container: Mapping[str, Any]) -> list[env.Entry]:
    """Entries that say which devices it sees."""
    return env.of_name(container.get("env") or (), names.ENV_VISIBLE_DEVICES)


def is_privileged(container: Mapping[str, Any]) -> bool:
    """Whether it reaches all devices of the node whatever it was granted."""
    return (container.get("securityContext") or {}).get("privileged") is True


def total_units(request: ContainerRequest, unit: MemoryUnit) -> int:
    """Units that a container takes from the node, over all its GPUs."""
    return unit.ceil(request.memory_mib) * request.gpu_count


def _grants(name: str, request: ContainerRequest, *, own_units: int, pod_units: int) -> list[env.Entry]:
    return [
        env.from_annotation(names.ENV_VISIBLE_DEVICES, names.PREFIX_DEVICES + name),
        env.from_annotation(names.ALIYUN_IDX, names.PREFIX_INDEX + name),
        env.from_annotation(names.ALIYUN_DEV, names.PREFIX_CAPACITY + name),
        env.fixed(names.ALIYUN_CONTAINER, str(own_units)),
        env.fixed(names.ALIYUN_POD, str(pod_units)),
        env.fixed(names.ENV_MPS_MEMORY_LIMIT, _pinned_limit(request)),
    ]


def _pinned_limit(request: ContainerRequest) -> str:
    """One entry for each visible GPU: CUDA drops all limits if one of them names a GPU that it does not see."""
    return ",".join(f"{ordinal}={request.memory_mib}M" for ordinal in range(request.gpu_count))


def _resources(resources: JsonObject, own_units: int) -> JsonObject:
    limits, requests = resources["limits"], resources.get("requests") or {}
    amount = limits[names.GPU_MEM]
    if units.parse_amount(amount) != own_units:
        amount = str(own_units)
    elif names.GPU_MEM in requests:
        return resources
    return {
        **resources,
        "limits": {**limits, names.GPU_MEM: amount},
        "requests": {**requests, names.GPU_MEM: amount},
    }


def _is_positive(amount: object) -> bool:
    if isinstance(amount, bool) or not isinstance(amount, (int, float, str)):
        return False
    return not _NOT_POSITIVE.fullmatch(str(amount).strip())
