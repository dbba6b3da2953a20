"""Pod objects, as plain dictionaries from the API server -> requests and allocations.

Whatever an object looks like, nothing but WireError and InvalidRequestError comes out of here.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from gpushare import names, units
from gpushare.dialect import Dialect
from gpushare.errors import FieldError, InvalidRequestError, WireError
from gpushare.identity import NodeName, PodRef, PodUid
from gpushare.model.allocation import Allocation
from gpushare.model.request import ContainerKind, ContainerRequest, PodRequest, RequestShape
from gpushare.units import MemoryUnit
from gpushare.wire import allocation as allocation_wire
from gpushare.wire import legacy, shape, spelling, wishes
from gpushare.wire.spelling import Spread

Pod = Mapping[str, Any]
_APP: Final = ContainerKind.APP


def ref(pod: Pod) -> PodRef:
    """The pod's identity."""
    meta = shape.mapping(pod, "metadata", "pod")
    namespace, name, uid = (shape.text(meta, key, "metadata") for key in ("namespace", "name", "uid"))
    return PodRef(namespace=namespace, name=name, uid=PodUid(uid))


def annotations(pod: Pod) -> Mapping[str, str]:
    """The pod's annotations; empty if it has none."""
    return shape.mapping(shape.mapping(pod, "metadata", "pod"), "annotations", "metadata")


def labels(pod: Pod) -> Mapping[str, str]:
    """The pod's labels; empty if it has none."""
    return shape.mapping(shape.mapping(pod, "metadata", "pod"), "labels", "metadata")


def node_of(pod: Pod) -> NodeName | None:
    """The node that the pod is bound to."""
    name = shape.text(shape.mapping(pod, "spec", "pod"), "nodeName", "spec")
    return NodeName(name) if name else None


def containers(pod: Pod) -> Iterator[tuple[str, ContainerKind, Mapping[str, Any]]]:
    """Field path, kind and object of every container but ephemeral ones, in the order in which they start."""
    spec = shape.mapping(pod, "spec", "pod")
    for i, container in enumerate(shape.objects(spec, "initContainers", "spec")):
        kind = ContainerKind.SIDECAR if container.get("restartPolicy") == "Always" else ContainerKind.INIT
        yield f"spec.initContainers[{i}]", kind, container
    for i, container in enumerate(shape.objects(spec, "containers", "spec")):
        yield f"spec.containers[{i}]", ContainerKind.APP, container


def asks(container: Mapping[str, Any], dialect: Dialect) -> bool:
    """Whether a container names one of the resources that make a pod ours, with whatever amount."""
    named = spelling.amounts(container, "limits").keys() | spelling.amounts(container, "requests").keys()
    return any(resource in named for resource in dialect.resources)


def needs_gpu(pod: Pod, dialect: Dialect) -> bool:
    """Whether any container of the pod does."""
    return any(asks(container, dialect) for _, _, container in containers(pod))


def holds_gpus(pod: Pod) -> bool:
    """Whether the pod's containers may still use what was granted to it.

    Deletion being asked for changes nothing: processes run until they have ended. A phase of Failed is believed only
    when no container is reported as running, because an eviction writes the phase first.
    """
    status = shape.mapping(pod, "status", "pod")
    if shape.text(status, "phase", "status") not in {"Succeeded", "Failed"}:
        return True
    return any(
        "running" in shape.mapping(report, "state", f"status.{kind}")
        for kind in ("initContainerStatuses", "containerStatuses")
        for report in shape.objects(status, kind, "status")
    )


def has_started(pod: Pod) -> bool:
    """Whether any container of the pod runs or has run."""
    status = shape.mapping(pod, "status", "pod")
    return any(
        shape.mapping(report, field, f"status.{kind}").keys() & {"running", "terminated"}
        for kind in ("initContainerStatuses", "containerStatuses")
        for report in shape.objects(status, kind, "status")
        for field in ("state", "lastState")
    )


def is_mutated(pod: Pod, dialect: Dialect) -> bool:
    """Whether every container that asks takes its devices from the annotation that its binding writes."""
    return all(
        takes_its_grant(container, shape.text(container, "name", path))
        for path, _, container in containers(pod)
        if asks(container, dialect)
    )


def takes_its_grant(container: Mapping[str, Any], name: str) -> bool:
    """Whether a container takes its devices from its annotation. Of variables with the same name the last counts."""
    entries = shape.objects(container, "env", "container")
    values = [entry for entry in entries if entry.get("name") == names.ENV_VISIBLE_DEVICES]
    if not values:
        return False
    source = shape.mapping(shape.mapping(values[-1], "valueFrom", "env"), "fieldRef", "env.valueFrom")
    return source.get("fieldPath") == f"metadata.annotations['{names.PREFIX_DEVICES}{name}']"


def request(pod: Pod, dialect: Dialect) -> PodRequest | None:
    """What a pod asks for, from any spelling; None if it asks for no GPU.

    Raises:
        InvalidRequestError: it asks in a way that cannot be granted; all errors at once.
        WireError: it is no pod.
    """
    errors: list[FieldError] = []
    found: list[ContainerRequest] = []
    spread = _spread_over(pod, errors)
    for path, kind, container in containers(pod):
        wish = spelling.container(path, kind, container, spread=spread, dialect=dialect)
        if isinstance(wish, ContainerRequest):
            found.append(wish)
        elif wish is not None:
            errors.extend(wish)
    notes, meta = annotations(pod), shape.mapping(pod, "metadata", "pod")
    policy = wishes.policy(notes, errors)
    gpus = wishes.selector(notes, dialect.unit, errors)
    affinity = wishes.affinity(notes, shape.text(meta, "namespace", "metadata"), errors)
    if errors:
        raise InvalidRequestError(tuple(dict.fromkeys(errors)))
    if not found:
        return None
    return PodRequest(
        pod=ref(pod),
        shape=RequestShape(containers=tuple(found), policy=policy, gpus=gpus, affinity=affinity),
        labels=labels(pod),
        app_containers=tuple(
            shape.text(container, "name", path) for path, kind, container in containers(pod) if kind is _APP
        ),
    )


def allocation(pod: Pod, unit: MemoryUnit) -> Allocation | None:
    """What a bound pod was given, by this system or by one that it replaces; None if nothing.

    Args:
        pod: a bound pod.
        unit: of its node; annotations of other systems count in units.

    Raises:
        WireError: the annotation cannot be read or speaks of another node.
    """
    node = node_of(pod)
    if node is None:
        return None
    if names.ANNOTATION_ALLOCATION not in annotations(pod):
        return legacy.allocation(pod, ref(pod), node, unit)
    text = shape.text(annotations(pod), names.ANNOTATION_ALLOCATION, "metadata.annotations")
    found = allocation_wire.decode(text, ref(pod))
    if found.node != node:
        raise WireError(
            f"annotation {names.ANNOTATION_ALLOCATION}: made for node {found.node}, but the pod is on {node}"
        )
    return replace(found, labels=labels(pod))


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """What a bound pod holds, for books in which what cannot be read must not count as nothing."""

    allocation: Allocation | None
    problem: str = ""
    """Why its own annotation cannot be read; `allocation` is then what the others of its Binding tell."""


def holding(pod: Pod, dialect: Dialect, unit: MemoryUnit) -> Holding:
    """What a bound pod holds, from whichever annotation can be read.

    Args:
        pod: a bound pod.
        dialect: of the cluster.
        unit: of its node.

    Raises:
        WireError: none can.
    """
    try:
        return Holding(allocation=allocation(pod, unit))
    except WireError as error:
        node = node_of(pod)
        if node is None or names.ANNOTATION_ALLOCATION not in annotations(pod):
            raise
        asking = [
            shape.text(container, "name", path) for path, _, container in containers(pod) if asks(container, dialect)
        ]
        try:
            found = allocation_wire.of_containers(annotations(pod), asking, pod=ref(pod), node=node)
        except WireError as other:
            raise WireError(f"{error}; and {other}") from error
        return Holding(allocation=replace(_completed(found, pod, dialect), labels=labels(pod)), problem=str(error))


def _completed(found: Allocation, pod: Pod, dialect: Dialect) -> Allocation:
    """With what the annotations of single containers do not tell, but the pod's own request does."""
    try:
        asked = request(pod, dialect)
    except InvalidRequestError:
        return found
    wanted = {wish.container: wish for wish in asked.shape.containers} if asked else {}
    grants = tuple(
        replace(grant, compute_percent=wanted[grant.container].compute_percent, whole=wanted[grant.container].whole)
        if grant.container in wanted
        else grant
        for grant in found.grants
    )
    return replace(found, grants=grants)


def limits_are_totals(pod: Pod) -> bool:
    """Whether the webhook has multiplied the limits of the per-GPU form already."""
    return names.ANNOTATION_TOTALS in annotations(pod)


def _spread_over(pod: Pod, errors: list[FieldError]) -> Spread:
    label_path = f"metadata.labels[{names.LABEL_GPU_COUNT}]"
    annotation_path = f"metadata.annotations[{names.ANNOTATION_GPUS}]"
    total = _count(labels(pod).get(names.LABEL_GPU_COUNT), label_path, errors)
    per_gpu = _count(annotations(pod).get(names.ANNOTATION_GPUS), annotation_path, errors)
    if total and per_gpu:
        problem = f"the label {names.LABEL_GPU_COUNT} (amounts are totals) contradicts it (amounts are per GPU)"
        errors.append(FieldError(annotation_path, problem, "keep one of the two"))
    if per_gpu:
        return Spread(per_gpu, limits_are_totals(pod), annotation_path)
    return Spread(total or 1, limits_are_totals=True, path=label_path)


def _count(value: object, path: str, errors: list[FieldError]) -> int | None:
    if value is None or value == "0":
        return None
    try:
        count = units.parse_amount(value)
    except ValueError as error:
        problem = str(error).partition("; ")[0]
        fix = 'write a whole number in quotes, such as "2"'
        errors.append(FieldError(path, f"not a number of GPUs: {problem}", fix))
        return None
    if count > spelling.MAX_GPUS:
        problem = f"{count} GPUs are more than any node has"
        errors.append(FieldError(path, problem, f"write a number up to {spelling.MAX_GPUS}"))
        return None
    return count
