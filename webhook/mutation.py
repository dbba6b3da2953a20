"""What admission makes of a new pod: the pod as it should be, or why it is refused. Pure and idempotent.

It never refuses a pod for being too big: a node that holds it may come.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from gpushare import names, units
from gpushare.errors import FieldError, InvalidRequestError
from gpushare.model.request import ContainerRequest
from gpushare.units import MemoryUnit
from gpushare.wire import pods
from webhook import advice, containers, objects
from webhook.objects import JsonObject

_DEFAULT_SCHEDULER: Final = "default-scheduler"
_FIELDS: Final = ("initContainers", "containers")  # in the order of `pods.containers`
_MOST_CONTAINERS: Final = 512
"""More than any node runs in a pod. Deciding on many thousands would take longer than the API server waits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What the administrator decided, and what holds in the cluster right now."""

    unit: MemoryUnit
    scheduler: str = names.SCHEDULER
    """For GPU pods that name none; empty to leave the cluster's default."""
    runtime_class: str | None = names.RUNTIME_CLASS
    """For GPU pods that name none; None to leave it out."""
    runtime_class_unknown: str = ""
    """Why `runtime_class` cannot be told at the moment; empty if it can."""
    foreign_resources: tuple[str, ...] = ("nvidia.com/",)
    """Prefixes of resources of other GPU plugins, which choose the devices of containers that ask for them."""


@dataclass(frozen=True, slots=True)
class Untouched:
    """The object is admitted as it is."""


@dataclass(frozen=True, slots=True)
class Mutated:
    """The object is admitted as `pod`."""

    pod: JsonObject
    warnings: tuple[str, ...] = ()
    """For the author, in plain words."""


@dataclass(frozen=True, slots=True)
class Denied:
    """The object is refused."""

    errors: tuple[FieldError, ...]


@dataclass(frozen=True, slots=True)
class Undecided:
    """What the decision rests on is not known at the moment; the client has to try again."""

    message: str


Decision = Untouched | Mutated | Denied | Undecided


def mutate(value: object, rules: Rules) -> Decision:
    """Decide on a pod that is being created."""
    try:
        _check_size(value)
        pod = objects.pod(value)
        # Other pods are never refused for labels or annotations that only mean something beside a request.
        return _gpu_pod(pod, rules) if _wants_gpu(pod) else _other_pod(pod, rules)
    except InvalidRequestError as error:
        return Denied(error.errors)


def mutate_ephemeral(value: object, old: object) -> Decision:
    """Decide on ephemeral containers that are being added to a pod. They can ask for no resource, so they get no GPU.

    Those that the pod has already cannot be changed any more and stay as they are.
    """
    try:
        _check_size(value)
        pod = objects.pod(value)
        known = {container["name"] for container in objects.pod(old)["spec"].get("ephemeralContainers") or ()}
    except InvalidRequestError as error:
        return Denied(error.errors)

    def isolate(container: JsonObject) -> JsonObject:
        return container if container["name"] in known else containers.isolate(container)

    result = {**pod, "spec": _each(pod["spec"], ("ephemeralContainers",), isolate)}
    return _decision(pod, result, advice.overridden(pod, result, ("ephemeralContainers",)))


def _check_size(value: object) -> None:
    spec = value.get("spec") if isinstance(value, dict) else None
    if not isinstance(spec, dict):
        return
    for field in (*_FIELDS, "ephemeralContainers"):
        listed = spec.get(field)
        if isinstance(listed, list) and len(listed) > _MOST_CONTAINERS:
            problem = f"{len(listed)} containers are more than any node runs"
            raise InvalidRequestError((FieldError(f"spec.{field}", problem, f"write at most {_MOST_CONTAINERS}"),))


def _wants_gpu(pod: JsonObject) -> bool:
    return pods.needs_gpu(pod) or any(_names_gpu_count(container) for _, _, container in pods.containers(pod))


def _names_gpu_count(container: Mapping[str, Any]) -> bool:
    resources = container.get("resources") or {}
    return any(names.GPU_COUNT in (resources.get(field) or {}) for field in ("limits", "requests"))


def _gpu_pod(pod: JsonObject, rules: Rules) -> Decision:
    request = _request(pod, rules.unit)
    if rules.runtime_class_unknown and pod["spec"].get("runtimeClassName") is None:
        return Undecided(rules.runtime_class_unknown)
    result = _with_metadata(pod, is_managed=True)
    result["spec"] = _gpu_spec(pod["spec"], request, rules)
    return _decision(pod, result, advice.of_gpu_pod(pod, result, rules.foreign_resources))


def _request(pod: JsonObject, unit: MemoryUnit) -> tuple[ContainerRequest, ...]:
    errors: tuple[FieldError, ...] = ()
    asking: tuple[ContainerRequest, ...] = ()
    try:
        found = pods.request({**pod, "metadata": pod.get("metadata") or {}}, unit)
        asking = found.shape.containers if found else ()
    except InvalidRequestError as error:
        errors = error.errors
    if errors := (*errors, *_preset_node(pod), *_bad_totals(pod), *_excess(asking, unit)):
        raise InvalidRequestError(errors)
    return asking


def _gpu_spec(spec: JsonObject, request: tuple[ContainerRequest, ...], rules: Rules) -> JsonObject:
    asking = iter(request)
    pod_units = sum(containers.total_units(wish, rules.unit) for wish in request)

    def edit(container: JsonObject) -> JsonObject:
        if pods.asks(container):
            return containers.grant(container, next(asking), pod_units=pod_units, unit=rules.unit)
        return _isolate(container, rules)

    result = _each(spec, _FIELDS, edit)
    if rules.scheduler and spec.get("schedulerName") in {None, "", _DEFAULT_SCHEDULER}:
        result["schedulerName"] = rules.scheduler
    if rules.runtime_class and spec.get("runtimeClassName") is None:
        result["runtimeClassName"] = rules.runtime_class
    return result


def _other_pod(pod: JsonObject, rules: Rules) -> Decision:
    if errors := tuple(_preset_node_of_other_plugin(pod, rules)):
        return Denied(errors)
    result = _with_metadata(pod, is_managed=False)
    result["spec"] = _each(pod["spec"], _FIELDS, lambda container: _isolate(container, rules))
    return _decision(pod, result, advice.of_other_pod(pod, result))


def _isolate(container: JsonObject, rules: Rules) -> JsonObject:
    if containers.foreign(container, rules.foreign_resources):
        return containers.yield_to_plugin(container)
    return containers.isolate(container)


def _each(spec: JsonObject, fields: tuple[str, ...], edit: Callable[[JsonObject], JsonObject]) -> JsonObject:
    """A copy of the spec with every container of these lists edited."""
    result = dict(spec)
    for field in fields:
        if spec.get(field):
            result[field] = [edit(container) for container in spec[field]]
    return result


def _with_metadata(pod: JsonObject, *, is_managed: bool) -> JsonObject:
    """A copy of the pod without forged annotations, and labelled as managed or not."""
    labels, annotations = objects.labels(pod), objects.annotations(pod)
    kept = {key: value for key, value in annotations.items() if not _is_not_the_authors(key)}
    marked = {key: value for key, value in labels.items() if key != names.LABEL_MANAGED}
    if is_managed:
        marked[names.LABEL_MANAGED] = "true"
        if names.ANNOTATION_GPUS in kept:
            kept.setdefault(names.ANNOTATION_TOTALS, "true")
    metadata = dict(pod.get("metadata") or {})
    if kept != annotations:
        metadata["annotations"] = kept
    if marked != labels:
        metadata["labels"] = marked
    return {**pod, "metadata": metadata} if metadata else dict(pod)


def _is_not_the_authors(annotation: str) -> bool:
    """Whether admission removes it: the NVIDIA runtime reads CDI annotations before the variable that is set here."""
    return names.is_reserved(annotation) or annotation.startswith(names.PREFIX_CDI)


def _preset_node(pod: JsonObject) -> Iterator[FieldError]:
    if pod["spec"].get("nodeName"):
        yield FieldError(
            "spec.nodeName",
            "a preset node by-passes the scheduler, which chooses the GPU; the containers would see none",
            "remove it and choose the node by spec.nodeSelector or node affinity on kubernetes.io/hostname",
        )


def _preset_node_of_other_plugin(pod: JsonObject, rules: Rules) -> Iterator[FieldError]:
    """The kubelet ignores resources that its node does not have at all, and then nothing limits such a container."""
    if not pod["spec"].get("nodeName"):
        return
    for path, _, container in pods.containers(pod):
        if resource := containers.foreign(container, rules.foreign_resources):
            yield FieldError(
                "spec.nodeName",
                f"a preset node by-passes the scheduler, but {path} asks for {resource};"
                " on a node without that resource it would see all GPUs",
                "remove it and choose the node by spec.nodeSelector or node affinity on kubernetes.io/hostname",
            )
            return


def _bad_totals(pod: JsonObject) -> Iterator[FieldError]:
    """The mark counts by being there, so an author who writes "false" would get the opposite."""
    value = objects.annotations(pod).get(names.ANNOTATION_TOTALS, "true")
    if value != "true":
        path = f"metadata.annotations[{names.ANNOTATION_TOTALS}]"
        fix = 'remove it, or write "true" if the limits are totals over all GPUs already'
        yield FieldError(path, f"{value!r} is no value of it", fix)


def _excess(asking: tuple[ContainerRequest, ...], unit: MemoryUnit) -> Iterator[FieldError]:
    """Products that the next reader would refuse as an amount."""
    for wish in asking:
        total = containers.total_units(wish, unit)
        if total > units.MAX_UNITS:
            each = unit.ceil(wish.memory_mib)
            yield FieldError(
                f"metadata.annotations[{names.ANNOTATION_GPUS}]",
                f"container {wish.container}: {wish.gpu_count} GPUs with {each} units each exceed any node",
                "write fewer GPUs or a smaller amount",
            )


def _decision(before: JsonObject, after: JsonObject, notes: Iterator[str]) -> Decision:
    return Untouched() if before == after else Mutated(after, tuple(notes))
