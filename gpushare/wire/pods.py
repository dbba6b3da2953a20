"""Pod objects, as plain dictionaries from the API server -> requests and allocations.

Whatever an object looks like, nothing but WireError and InvalidRequestError comes out of here.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from gpushare import names, units
from gpushare.errors import FieldError, InvalidRequestError, WireError
from gpushare.identity import ContainerName, NodeName, PodRef, PodUid
from gpushare.model.allocation import Allocation
from gpushare.model.request import ContainerKind, ContainerRequest, PodRequest, Policy, RequestShape
from gpushare.units import MemoryUnit
from gpushare.wire import allocation as allocation_wire
from gpushare.wire import legacy, shape

Pod = Mapping[str, Any]


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


def asks(container: Mapping[str, Any]) -> bool:
    """Whether a container names a managed resource, with whatever amount."""
    named = _limits(container).keys() | _requests(container).keys()
    return any(resource in named for resource in names.MANAGED_RESOURCES)


def needs_gpu(pod: Pod) -> bool:
    """Whether any container of the pod names a managed resource."""
    return any(asks(container) for _, _, container in containers(pod))


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


def request(pod: Pod, unit: MemoryUnit) -> PodRequest | None:
    """What a pod asks for, from any spelling; None if it asks for no GPU.

    Raises:
        InvalidRequestError: it asks in a way that cannot be granted; all errors at once.
        WireError: it is no pod.
    """
    errors: list[FieldError] = []
    found: list[ContainerRequest] = []
    spread = _spread_over(pod, errors)
    for path, kind, container in containers(pod):
        amount = _amount(path, container, errors)
        if amount is None:
            continue
        per_gpu = spread.per_gpu(amount)
        if per_gpu is None:
            problem = f"{amount} cannot be split evenly over {spread.count} GPUs"
            below, above = amount // spread.count * spread.count, -(-amount // spread.count) * spread.count
            choice = f"{below} or {above}" if below else f"{above}"
            errors.append(FieldError(f"{path}.resources.limits[{names.GPU_MEM}]", problem, f"write {choice}"))
            continue
        found.append(
            ContainerRequest(
                container=ContainerName(shape.needed(container, "name", path)),
                kind=kind,
                memory_mib=unit.to_mib(per_gpu),
                gpu_count=spread.count,
            )
        )
    policy = _policy(pod, errors)
    if errors:
        raise InvalidRequestError(tuple(errors))
    if not found:
        return None
    return PodRequest(pod=ref(pod), shape=RequestShape(containers=tuple(found), policy=policy))


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
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """What a bound pod holds, for books in which what cannot be read must not count as nothing."""

    allocation: Allocation | None
    problem: str = ""
    """Why its own annotation cannot be read; `allocation` is then what the others of its Binding tell."""


def holding(pod: Pod, unit: MemoryUnit) -> Holding:
    """What a bound pod holds, from whichever annotation can be read.

    Args:
        pod: a bound pod.
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
        asking = [shape.text(container, "name", path) for path, _, container in containers(pod) if asks(container)]
        try:
            found = allocation_wire.of_containers(annotations(pod), asking, pod=ref(pod), node=node)
        except WireError as other:
            raise WireError(f"{error}; and {other}") from error
        return Holding(allocation=found, problem=str(error))


class _Spread:
    """How the amount in a container's limits relates to GPUs."""

    __slots__ = ("_limits_are_totals", "count")

    def __init__(self, count: int, *, limits_are_totals: bool) -> None:
        self.count = count
        self._limits_are_totals = limits_are_totals

    def per_gpu(self, amount: int) -> int | None:
        """Units on each GPU, or None if the total does not divide."""
        if not self._limits_are_totals:
            return amount
        return amount // self.count if amount % self.count == 0 else None


def limits_are_totals(pod: Pod) -> bool:
    """Whether the webhook has multiplied the limits of the per-GPU form already."""
    return names.ANNOTATION_TOTALS in annotations(pod)


def _spread_over(pod: Pod, errors: list[FieldError]) -> _Spread:
    label_path = f"metadata.labels[{names.LABEL_GPU_COUNT}]"
    annotation_path = f"metadata.annotations[{names.ANNOTATION_GPUS}]"
    total = _count(labels(pod).get(names.LABEL_GPU_COUNT), label_path, errors)
    per_gpu = _count(annotations(pod).get(names.ANNOTATION_GPUS), annotation_path, errors)
    if total and per_gpu:
        problem = f"the label {names.LABEL_GPU_COUNT} (amounts are totals) contradicts it (amounts are per GPU)"
        errors.append(FieldError(annotation_path, problem, "keep one of the two"))
    if per_gpu:
        return _Spread(per_gpu, limits_are_totals=limits_are_totals(pod))
    return _Spread(total or 1, limits_are_totals=True)


def _count(value: object, path: str, errors: list[FieldError]) -> int | None:
    if value is None or value == "0":
        return None
    try:
        count = units.parse_amount(value)
    except ValueError as error:
        errors.append(FieldError(path, f"not a number of GPUs: {error}", 'write a whole number in quotes, such as "2"'))
        return None
    if count > 64:
        errors.append(FieldError(path, f"{count} GPUs are more than any node has", "write a number up to 64"))
        return None
    return count


def _policy(pod: Pod, errors: list[FieldError]) -> Policy | None:
    text = annotations(pod).get(names.ANNOTATION_POLICY)
    if text is None:
        return None
    try:
        return Policy(text)
    except ValueError:
        known = " or ".join(policy.value for policy in Policy)
        path = f"metadata.annotations[{names.ANNOTATION_POLICY}]"
        errors.append(FieldError(path, f"{text!r} is no policy", f"write {known}"))
        return None


def _amount(path: str, container: Mapping[str, Any], errors: list[FieldError]) -> int | None:
    limits, requests = _limits(container), _requests(container)
    for field, values in (("limits", limits), ("requests", requests)):
        if names.GPU_COUNT in values:
            errors.append(
                FieldError(
                    f"{path}.resources.{field}[{names.GPU_COUNT}]",
                    "this resource is for the node's books and cannot be requested",
                    f"remove it; to use several GPUs, put the label {names.LABEL_GPU_COUNT} on the pod"
                    f" (amounts are totals) or the annotation {names.ANNOTATION_GPUS} (amounts are per GPU)",
                )
            )
    if names.GPU_MEM not in limits:
        if names.GPU_MEM in requests:
            problem = f"requests {names.GPU_MEM} without a limit"
            errors.append(FieldError(f"{path}.resources.limits", problem, "write the same amount under limits"))
        return None
    where = f"{path}.resources.limits[{names.GPU_MEM}]"
    try:
        amount = units.parse_amount(limits[names.GPU_MEM])
        if names.GPU_MEM in requests and units.parse_amount(requests[names.GPU_MEM]) != amount:
            where = f"{path}.resources.requests[{names.GPU_MEM}]"
            raise ValueError(  # noqa: TRY301 - one place turns all of them into a field error
                f"{requests[names.GPU_MEM]} differs from the limit {amount}; write {amount} or leave requests out"
            )
    except ValueError as error:
        problem, _, fix = str(error).partition("; ")
        errors.append(FieldError(where, problem, fix))
        return None
    return amount


def _limits(container: Mapping[str, Any]) -> Mapping[str, Any]:
    return shape.mapping(shape.mapping(container, "resources", "container"), "limits", "container.resources")


def _requests(container: Mapping[str, Any]) -> Mapping[str, Any]:
    return shape.mapping(shape.mapping(container, "resources", "container"), "requests", "container.resources")
