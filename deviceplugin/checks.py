"""What has to be in order before a container starts with its grant, one check each. Pure.

Every check returns a refusal that says what to do, or None.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from deviceplugin import resources
from deviceplugin.decision import AGAIN, Reason, Refuse, Start
from gpushare import names
from gpushare.model.allocation import Grant
from gpushare.model.gpu import GpuHealth
from gpushare.wire import pods

_WEBHOOK: Final = names.WEBHOOK_SERVICE
Check = Callable[[Start, Grant, str], Refuse | None]


def _takes_its_grant(start: Start, grant: Grant, who: str) -> Refuse | None:
    if pods.takes_its_grant(_container(start, grant), grant.container):
        return None
    return Refuse(
        Reason.NOT_MUTATED,
        f"{who} does not take {names.ENV_VISIBLE_DEVICES} from"
        f" metadata.annotations['{names.PREFIX_DEVICES}{grant.container}']: {_WEBHOOK} did not change the pod, so"
        f" its author or its image would decide which GPU it sees; {AGAIN} while {_WEBHOOK} is running",
    )


def _sets_no_devices(start: Start, grant: Grant, who: str) -> Refuse | None:
    container = _container(start, grant)
    if container.get("envFrom"):
        problem = "takes variables from elsewhere (envFrom), which may be"
    elif any(entry.get("name") == names.ENV_VISIBLE_DEVICES for entry in container.get("env") or ()):
        problem = f"sets {names.ENV_VISIBLE_DEVICES} itself, which is"
    else:
        return None
    return Refuse(
        Reason.NOT_MUTATED,
        f"{who} {problem} stronger than what the plugin that gave it its devices set: its author would decide which"
        f" GPU it sees; {AGAIN}, so that {_WEBHOOK} changes that",
    )


def _annotations_match(start: Start, grant: Grant, who: str) -> Refuse | None:
    written = pods.annotations(start.pod)
    expected = {
        names.PREFIX_DEVICES + grant.container: ",".join(grant.gpus),
        names.PREFIX_MEMORY + grant.container: str(grant.memory_mib),
    }
    for key, value in expected.items():
        if written.get(key) != value:
            return Refuse(
                Reason.TAMPERED,
                f"{who}: annotation {key} says {written.get(key)!r:.200}, but its allocation says {value!r}: it was"
                f" changed after the pod was bound; {AGAIN}",
            )
    return None


def _gpus_work(start: Start, grant: Grant, who: str) -> Refuse | None:
    for uuid in grant.gpus:
        gpu = start.inventory.by_uuid.get(uuid)
        if gpu is None:
            return Refuse(
                Reason.GPU_GONE,
                f"{who}: GPU {uuid} is gone from node {start.node}; {AGAIN}, so that it gets another one",
            )
        if gpu.health is not GpuHealth.HEALTHY:
            return Refuse(
                Reason.GPU_UNHEALTHY,
                f"{who}: GPU {uuid} (number {gpu.label}) of node {start.node} is {gpu.why}; {AGAIN}, so that it gets"
                " another one",
            )
    return None


def _amounts_match(start: Start, grant: Grant, who: str) -> Refuse | None:
    resource, unit = start.resource, start.inventory.unit
    granted = resource.of_grant(grant, unit)
    if granted == len(start.ids):
        return None
    text = f"{who} holds {resource.name}: {len(start.ids)}, but was granted {_describe(grant)}"
    if granted is None:
        return Refuse(Reason.WRONG_AMOUNT, f"{text}, which is a share of another kind; {AGAIN}")
    if resource is not resources.MEMORY:
        return Refuse(Reason.WRONG_AMOUNT, f"{text}, which counts as {granted}; {AGAIN}")
    return Refuse(
        Reason.WRONG_AMOUNT,
        f"{text}, which counts as {granted} in units of {unit.name}; if the node's memory unit was changed since,"
        f" {AGAIN}",
    )


OWN: Final[Sequence[Check]] = (_takes_its_grant, _annotations_match, _gpus_work, _amounts_match)
"""For grants of this system."""
FORMER: Final[Sequence[Check]] = (_sets_no_devices, _gpus_work, _amounts_match)
"""For grants of a system that this one replaced: its plugin has fixed the container's environment."""


def _container(start: Start, grant: Grant) -> Mapping[str, Any]:
    return next((spec for _, _, spec in pods.containers(start.pod) if spec["name"] == grant.container), {})


def _describe(grant: Grant) -> str:
    gpus = ", ".join(grant.gpus)
    if grant.whole:
        return f"all of {gpus}"
    memory = f"{grant.memory_percent} % of the memory" if grant.memory_percent else f"{grant.memory_mib} MiB"
    compute = f" and {grant.compute_percent} % of the compute" if grant.compute_percent else ""
    return f"{memory}{compute} on each of {gpus}"
