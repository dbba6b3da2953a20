"""Pod objects, as plain dictionaries from the API server: who they are, their containers, what they take of a host.

Whatever an object looks like, nothing but WireError comes out of here.
"""

import functools
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any, Final

from gpushare import names, units
from gpushare.errors import FieldError, WireError
from gpushare.identity import ContainerName, NodeName, PodRef, PodUid
from gpushare.model.capacity import NOTHING, FreeHost
from gpushare.model.ledger import peak
from gpushare.model.request import MAX_CONTAINERS, ContainerKind
from gpushare.units import ResourceConfig
from gpushare.wire import fields

Pod = Mapping[str, Any]
MAX_LABELS: Final = 256
_ENDED: Final = frozenset({"Succeeded", "Failed"})
_MILLI: Final = Decimal("0.001")
_MIB: Final = Decimal(units.MIB)
_SHORT: Final = 40
"""Characters of an amount that is remembered. Who asks the extender may write it with as many blanks as they like."""
_SHARED: Final = functools.lru_cache(maxsize=4096)(FreeHost)
"""One object for all replicas: a cluster has tens of thousands of pods."""
_MOST: Final = 2**53  # what JSON readers hold exactly; more is no amount of anything


def ref(pod: Pod) -> PodRef:
    meta = fields.mapping(pod, "metadata", "pod")
    namespace, name, uid = (fields.text(meta, key, "metadata") for key in ("namespace", "name", "uid"))
    return PodRef(namespace=namespace, name=name, uid=PodUid(uid))


def annotations(pod: Pod) -> Mapping[str, str]:
    return fields.mapping(fields.mapping(pod, "metadata", "pod"), "annotations", "metadata")


def labels(pod: Pod) -> Mapping[str, str]:
    """The pod's labels; of more than MAX_LABELS, which nothing else bounds, only the first by name."""
    labels = fields.mapping(fields.mapping(pod, "metadata", "pod"), "labels", "metadata")
    return labels if len(labels) <= MAX_LABELS else {key: labels[key] for key in sorted(labels)[:MAX_LABELS]}


def node_of(pod: Pod) -> NodeName | None:
    name = fields.text(fields.mapping(pod, "spec", "pod"), "nodeName", "spec")
    return NodeName(name) if name else None


def containers(pod: Pod) -> Iterator[tuple[str, ContainerKind, Mapping[str, Any]]]:
    """Field path, kind and object of every container but ephemeral ones, in the order in which they start."""
    spec = fields.mapping(pod, "spec", "pod")
    for i, container in enumerate(fields.objects(spec, "initContainers", "spec")):
        kind = ContainerKind.SIDECAR if container.get("restartPolicy") == "Always" else ContainerKind.INIT
        yield f"spec.initContainers[{i}]", kind, container
    for i, container in enumerate(fields.objects(spec, "containers", "spec")):
        yield f"spec.containers[{i}]", ContainerKind.APP, container


def amounts(container: Mapping[str, Any], field: str) -> Mapping[str, Any]:
    return fields.mapping(fields.mapping(container, "resources", "container"), field, "container.resources")


def named_resources(container: Mapping[str, Any]) -> Iterator[tuple[str, str, Any]]:
    """Field, resource and amount of all limits of a container, and of all requests."""
    for field in ("limits", "requests"):
        for resource, amount in amounts(container, field).items():
            yield field, resource, amount


def too_many_containers(spec: Mapping[str, Any], lists: Sequence[str]) -> FieldError | None:
    """What would take too long to look at: a list with more containers than any node runs."""
    for field in lists:
        listed = spec.get(field)
        if isinstance(listed, list) and len(listed) > MAX_CONTAINERS:
            problem = f"{len(listed)} containers are more than any node runs"
            return FieldError(f"spec.{field}", problem, f"write at most {MAX_CONTAINERS}")
    return None


def container(pod: Pod, name: str) -> Mapping[str, Any]:
    """The object of the container with this name; empty if there is none."""
    return next((each for _, _, each in containers(pod) if each.get("name") == name), {})


def asks(container: Mapping[str, Any], resource_config: ResourceConfig) -> bool:
    """Whether a container names one of the resources that make a pod ours, with whatever amount."""
    named = amounts(container, "limits").keys() | amounts(container, "requests").keys()
    return any(resource in named for resource in resource_config.resources)


def asking(pod: Pod, resource_config: ResourceConfig) -> list[str]:
    """Names of the containers that do, in the order in which they start."""
    return [
        fields.text(container, "name", path)
        for path, _, container in containers(pod)
        if asks(container, resource_config)
    ]


def is_unschedulable(pod: Mapping[str, Any]) -> bool:
    """Whether a scheduler has tried it and given up for now. Raises WireError."""
    scheduled = fields.condition(pod, "PodScheduled", "pod")
    return scheduled.get("status") == "False" and scheduled.get("reason") == "Unschedulable"


def has_claims(pod: Mapping[str, Any]) -> bool:
    """Whether it has ResourceClaims, of whatever class. Raises WireError."""
    return bool(fields.objects(fields.mapping(pod, "spec", "pod"), "resourceClaims", "spec"))


def needs_gpu(pod: Pod, resource_config: ResourceConfig) -> bool:
    return any(asks(container, resource_config) for _, _, container in containers(pod))


def holds_gpus(pod: Pod) -> bool:
    """Whether the pod's containers may still use what was granted to it.

    Deletion being asked for changes nothing: processes run until they have ended. A phase of Failed is believed only
    when no container is reported as running, because an eviction writes the phase first.
    """
    status = fields.mapping(pod, "status", "pod")
    if fields.text(status, "phase", "status") not in _ENDED:
        return True
    return any("running" in fields.mapping(report, "state", path) for path, report in reports(pod))


def counts(pod: Pod) -> bool:
    """Whether kube-scheduler counts what the pod requests of its node: until its phase says that it has ended."""
    return fields.text(fields.mapping(pod, "status", "pod"), "phase", "status") not in _ENDED


def has_started(pod: Pod, among: Collection[str] | None = None) -> bool:
    """Whether any container of the pod, or of those with these names, runs or has run."""
    return any(
        fields.mapping(report, field, path).keys() & {"running", "terminated"}
        for path, report in reports(pod)
        if among is None or report.get("name") in among
        for field in ("state", "lastState")
    )


def is_refused(pod: Pod, asking: Collection[str], saying: str) -> bool:
    """Whether no container that asks has started, and the device plugin refuses one of them forever.

    `saying` is a part of the plugin's message, which the kubelet puts into the pod's status.
    """
    return any(
        saying in fields.text(fields.mapping(state, "waiting", path), "message", path)
        for path, report in reports(pod)
        if report.get("name") in asking
        for state in [fields.mapping(report, "state", path)]
    ) and not has_started(pod, asking)


def container_ids(pod: Pod) -> Mapping[ContainerName, str]:
    """The container runtime's ID of each container, as the kubelet has told, without the runtime's name."""
    return {
        ContainerName(fields.text(report, "name", path)): identity.rpartition("//")[2]
        for path, report in reports(pod)
        if (identity := fields.text(report, "containerID", path))
    }


def reports(pod: Pod) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """What the kubelet says of each container but ephemeral ones, and where it says so."""
    status = fields.mapping(pod, "status", "pod")
    for kind in ("initContainerStatuses", "containerStatuses"):
        for report in fields.objects(status, kind, "status"):
            yield f"status.{kind}", report


def is_mutated(pod: Pod, resource_config: ResourceConfig) -> bool:
    """Whether every container that asks takes its devices from the annotation that its binding writes."""
    return all(
        takes_its_grant(container, fields.text(container, "name", path))
        for path, _, container in containers(pod)
        if asks(container, resource_config)
    )


def takes_its_grant(container: Mapping[str, Any], name: str) -> bool:
    """Whether a container takes its devices from its annotation. Of variables with the same name the last counts."""
    entries = fields.objects(container, "env", "container")
    values = [entry for entry in entries if entry.get("name") == names.ENV_VISIBLE_DEVICES]
    if not values:
        return False
    source = fields.mapping(fields.mapping(values[-1], "valueFrom", "env"), "fieldRef", "env.valueFrom")
    return source.get("fieldPath") == f"metadata.annotations['{names.PREFIX_DEVICES}{name}']"


def limits_are_totals(pod: Pod) -> bool:
    return names.ANNOTATION_TOTALS in annotations(pod)


def host_requests(pod: Pod) -> FreeHost:
    """What kube-scheduler counts for a pod of CPU and memory, rounded up; nothing where that cannot be read.

    That is its formula for init containers and sidecars, and the overhead. Where requests are set for the whole pod,
    they count instead of the containers'. Of a pod that is being resized in place, the most of what is asked for and
    what its kubelet has told counts, and of an infeasible resize only the latter: `PodRequests` of kube-scheduler from
    1.33 on. In 1.27 to 1.32 resizing is off by default; switched on, 1.27 to 1.31 leave out what is in force, 1.32 what
    is allocated, and all of them sidecars.
    """
    try:
        return _host_requests(pod)
    except WireError:
        return NOTHING


def _host_requests(pod: Pod) -> FreeHost:
    spec, status = (fields.mapping(pod, part, "pod") for part in ("spec", "status"))
    told = {fields.text(report, "name", path): report for path, report in reports(pod) if "resources" in report}
    infeasible = bool(told or "resources" in status) and _is_infeasible(pod, status)
    steps = []
    for path, kind, container in containers(pod):
        asked = _cpu_and_memory(_requests(container))
        if told and kind is not ContainerKind.INIT:
            known = told.get(fields.text(container, "name", path))
            asked = asked if known is None else _resized(asked, known, infeasible=infeasible)
        steps.append((kind, asked))
    cpu, memory = peak(steps) or (0, 0)
    if "resources" in spec:
        whole = _requests(spec)
        asked = _cpu_and_memory(whole)
        if "resources" in status:
            asked = _resized(asked, status, infeasible=infeasible)
        cpu = asked[0] if "cpu" in whole else cpu
        memory = asked[1] if "memory" in whole else memory
    if "overhead" in spec:
        more = _cpu_and_memory(fields.mapping(spec, "overhead", "spec"))
        cpu, memory = cpu + more[0], memory + more[1]
    return _SHARED(cpu, memory)


def _is_infeasible(pod: Pod, status: Mapping[str, Any]) -> bool:
    """Whether the kubelet has said that a resize can never be done on its node; up to 1.32 it says so in `resize`."""
    pending = fields.condition(pod, "PodResizePending", "pod")
    return (pending.get("reason") if pending else status.get("resize")) == "Infeasible"


def _resized(asked: tuple[int, int], told: Mapping[str, Any], *, infeasible: bool) -> tuple[int, int]:
    """CPU and memory that count, by what a kubelet tells: of them that are in force, and that it has allocated."""
    in_force, allocated = amounts(told, "requests"), fields.mapping(told, "allocatedResources", "status")
    cpu, memory = (0, 0) if infeasible else asked
    for known in (in_force, allocated if allocated != in_force else {}):
        if known:
            cpu, memory = map(max, (cpu, memory), _cpu_and_memory(known))
    return cpu, memory


def _requests(holder: Mapping[str, Any]) -> Mapping[str, Any]:
    """Requests, and limits where there is no request, as the API server sets it."""
    limits, requests = amounts(holder, "limits"), amounts(holder, "requests")
    return {**limits, **requests} if limits else requests


def _cpu_and_memory(amounts: Mapping[str, Any]) -> tuple[int, int]:
    return _ceiling(amounts.get("cpu"), _MILLI), _ceiling(amounts.get("memory"), _MIB)


def _ceiling(value: object, unit: Decimal) -> int:
    if value is None:
        return 0
    short = isinstance(value, str) and len(value) <= _SHORT
    return _known_ceiling(value, unit) if short else math.ceil(_in_units(value, unit))


@functools.lru_cache(maxsize=1024)
def _known_ceiling(text: object, unit: Decimal) -> int:
    # A cluster has few different amounts, in a hundred thousand containers. What is no amount is not kept.
    return math.ceil(_in_units(text, unit))


def _in_units(value: object, unit: Decimal) -> Decimal:
    """Nothing at the least. Raises WireError: it is no amount."""
    amount = units.quantity(value)
    if amount is None or not amount.is_finite() or amount / unit > _MOST:
        raise WireError("expected an amount such as 500m or 2Gi")
    return max(amount / unit, Decimal(0))


def allocatable(node: Mapping[str, Any]) -> FreeHost | None:
    """CPU and memory that a node gives to pods; None if its kubelet has not said so, or not legibly.

    Raises WireError: it is no node.
    """
    given = fields.mapping(fields.mapping(node, "status", "node"), "allocatable", "status")
    if "cpu" not in given or "memory" not in given:
        return None
    try:
        return FreeHost(math.floor(_in_units(given["cpu"], _MILLI)), math.floor(_in_units(given["memory"], _MIB)))
    except WireError:
        return None


# The structure of objects. A key with a ! is of a field that must be there, a * stands for every key.
_CONTAINERS: Final = [
    {
        "name!": str,
        "securityContext": {},
        "resources": {"limits": {}, "requests": {}},
        "env": [{}],
        "volumeMounts": [{}],
    }
]
_METADATA: Final = {
    **dict.fromkeys(("name", "generateName", "namespace", "uid"), str),
    "labels": {"*": str},
    "annotations": {"*": str},
}
_SPEC: Final = {
    **dict.fromkeys(("nodeName", "schedulerName", "runtimeClassName"), str),
    "volumes": [{"hostPath": {}}],
    **dict.fromkeys(("initContainers", "containers", "ephemeralContainers"), _CONTAINERS),
}
_WANTED: Final[Mapping[type, str]] = {str: "a string", list: "a list", dict: "an object"}
POD: Final[Mapping[str, Any]] = {"metadata": _METADATA, "spec!": _SPEC}
"""As far as this project reads a pod before its fields are looked up one by one."""
ANY_OBJECT: Final[Mapping[str, Any]] = {"metadata": _METADATA}


def problems(value: object, path: str, structure: Any = POD) -> Iterator[tuple[str, str]]:
    """Path and problem of each field in which an object has another structure: all, lazily, where `fields` raises."""
    kind: type = str if structure is str else type(structure)
    if not isinstance(value, kind):
        yield path, fields.mismatch(_WANTED[kind], value)
    elif isinstance(value, list):
        for i, item in enumerate(value):
            if structure[0] or not isinstance(item, dict):  # there may be a million
                yield from problems(item, f"{path}[{i}]", structure[0])
    elif isinstance(value, dict):
        for key, inner in structure.items():
            if key == "*":
                for name, item in value.items():
                    yield from problems(item, f"{path}[{name}]", inner)
                continue
            name, needed = key.rstrip("!"), key.endswith("!")
            found = value.get(name)
            if needed or found is not None:  # the API server writes a missing name as ""
                yield from problems(None if needed and found == "" else found, fields.at(path, name), inner)
