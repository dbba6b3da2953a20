"""Pod objects, as plain dictionaries from the API server: who they are, their containers, how far they are.

Whatever an object looks like, nothing but WireError comes out of here.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Final

from gpushare import names
from gpushare.errors import FieldError
from gpushare.identity import ContainerName, NodeName, PodRef, PodUid
from gpushare.model.request import MAX_CONTAINERS, ContainerKind
from gpushare.units import ResourceConfig
from gpushare.wire import fields

Pod = Mapping[str, Any]
MAX_LABELS: Final = 256
_ENDED: Final = frozenset({"Succeeded", "Failed"})


def ref(pod: Pod) -> PodRef:
    """The pod's identity."""
    meta = fields.mapping(pod, "metadata", "pod")
    namespace, name, uid = (fields.text(meta, key, "metadata") for key in ("namespace", "name", "uid"))
    return PodRef(namespace=namespace, name=name, uid=PodUid(uid))


def annotations(pod: Pod) -> Mapping[str, str]:
    """The pod's annotations; empty if it has none."""
    return fields.mapping(fields.mapping(pod, "metadata", "pod"), "annotations", "metadata")


def labels(pod: Pod) -> Mapping[str, str]:
    """The pod's labels; of more than MAX_LABELS, which nothing else bounds, only the first by name."""
    labels = fields.mapping(fields.mapping(pod, "metadata", "pod"), "labels", "metadata")
    return labels if len(labels) <= MAX_LABELS else {key: labels[key] for key in sorted(labels)[:MAX_LABELS]}


def node_of(pod: Pod) -> NodeName | None:
    """The node that the pod is bound to."""
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
    """A container's limits or requests."""
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


def needs_gpu(pod: Pod, resource_config: ResourceConfig) -> bool:
    """Whether any container of the pod does."""
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
    """Whether any container of the pod runs or has run.

    Args:
        pod: the pod.
        among: names of the containers to look at; all by default.
    """
    return any(
        fields.mapping(report, field, path).keys() & {"running", "terminated"}
        for path, report in reports(pod)
        if among is None or report.get("name") in among
        for field in ("state", "lastState")
    )


def is_refused(pod: Pod, asking: Collection[str], saying: str) -> bool:
    """Whether no container that asks has started, and the device plugin refuses one of them for ever.

    Args:
        pod: the pod.
        asking: names of the containers that ask for GPUs.
        saying: a part of the plugin's message, which the kubelet puts into the pod's status.
    """
    return any(
        saying in fields.text(fields.mapping(state, "waiting", path), "message", path)
        for path, report in reports(pod)
        if report.get("name") in asking
        for state in [fields.mapping(report, "state", path)]
    ) and not has_started(pod, asking)


def container_ids(pod: Pod) -> Mapping[ContainerName, str]:
    """The container runtime's ID of each container, as the kubelet has told, without the runtime's name.

    Raises:
        WireError: it is no pod.
    """
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
    """Whether the webhook has multiplied the limits of the per-GPU form already."""
    return names.ANNOTATION_TOTALS in annotations(pod)


Check = Callable[[object, str], Iterator[tuple[str, str]]]
"""Value and its path -> path and problem of each field in which it has another structure."""


def _a_string(value: object, path: str) -> Iterator[tuple[str, str]]:
    """A string."""
    if not isinstance(value, str):
        yield path, fields.mismatch("a string", value)


def _a_name(value: object, path: str) -> Iterator[tuple[str, str]]:
    """A string that is not empty."""
    return _a_string(value or None, path)  # the API server writes a missing one as ""


def _an_object(**known: Check) -> Check:
    """An object with these fields, among others."""

    def check(value: object, path: str) -> Iterator[tuple[str, str]]:
        if not isinstance(value, dict):
            yield path, fields.mismatch("an object", value)
            return
        for key, inner in known.items():
            yield from inner(value.get(key), fields.at(path, key))

    return check


def _a_list(item: Check) -> Check:
    """A list of such items."""

    def check(value: object, path: str) -> Iterator[tuple[str, str]]:
        if not isinstance(value, list):
            yield path, fields.mismatch("a list", value)
            return
        for i, each in enumerate(value):
            yield from item(each, f"{path}[{i}]")

    return check


def _objects(value: object, path: str) -> Iterator[tuple[str, str]]:
    """A list of objects of which nothing more is asked. There may be a million."""
    if not isinstance(value, list):
        yield path, fields.mismatch("a list", value)
        return
    for i, each in enumerate(value):
        if not isinstance(each, dict):
            yield f"{path}[{i}]", fields.mismatch("an object", each)


def _strings_by_name(value: object, path: str) -> Iterator[tuple[str, str]]:
    """An object whose values are strings, such as labels."""
    if not isinstance(value, dict):
        yield path, fields.mismatch("an object", value)
        return
    for key, each in value.items():
        if not isinstance(each, str):
            yield f"{path}[{key}]", fields.mismatch("a string", each)


def _optional(check: Check) -> Check:
    """The same where the field may be missing."""
    return lambda value, path: iter(()) if value is None else check(value, path)


_TEXT: Final = _optional(_a_string)
_OBJECT: Final = _optional(_an_object())
_OBJECTS: Final = _optional(_objects)
_RESOURCES: Final = _an_object(limits=_OBJECT, requests=_OBJECT)
_CONTAINER: Final = _an_object(
    name=_a_name, securityContext=_OBJECT, resources=_optional(_RESOURCES), env=_OBJECTS, volumeMounts=_OBJECTS
)
_CONTAINERS: Final = _optional(_a_list(_CONTAINER))
_METADATA: Final = _an_object(
    name=_TEXT,
    generateName=_TEXT,
    namespace=_TEXT,
    uid=_TEXT,
    labels=_optional(_strings_by_name),
    annotations=_optional(_strings_by_name),
)
_SPEC: Final = _an_object(
    nodeName=_TEXT,
    schedulerName=_TEXT,
    runtimeClassName=_TEXT,
    volumes=_optional(_a_list(_an_object(hostPath=_OBJECT))),
    initContainers=_CONTAINERS,
    containers=_CONTAINERS,
    ephemeralContainers=_CONTAINERS,
)
ANY_OBJECT: Final = _an_object(metadata=_optional(_METADATA))
"""Of any kind, with the metadata that this project reads."""
POD: Final = _an_object(metadata=_optional(_METADATA), spec=_SPEC)
"""A pod, as far as this project reads it before its fields are looked up one by one."""
