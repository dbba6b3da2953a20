"""Pod objects -> what they ask for, from any spelling.

Whatever an object looks like, nothing but WireError and InvalidRequestError comes out of here.
"""

from collections.abc import Sequence
from dataclasses import replace

from gpushare import names, units
from gpushare.errors import FieldError, InvalidRequestError
from gpushare.model.gpu import MAX_GPUS, HandOver
from gpushare.model.request import (
    MAX_ASKING,
    MAX_CONTAINERS,
    ContainerKind,
    ContainerRequest,
    PodRequest,
    RequestShape,
)
from gpushare.model.selector import ANY_GPU, GpuSelector
from gpushare.resource_config import ResourceConfig
from gpushare.wire import fields, host, parse_resources, pods, selectors
from gpushare.wire.parse_resources import Spread

_AT_MOST = f"write at most {MAX_CONTAINERS}"


def of_pod(pod: pods.Pod, resource_config: ResourceConfig) -> PodRequest | None:
    """What a pod asks for, from any spelling; None if it asks for no GPU.

    Raises:
        InvalidRequestError: it asks in a way that cannot be granted; all errors at once.
        WireError: it is no pod.
    """
    if too_large := _too_large(pod, resource_config):
        raise InvalidRequestError((too_large,))
    errors: list[FieldError] = []
    containers: list[ContainerRequest] = []
    spread = _spread_over(pod, errors)
    for path, kind, container in pods.containers(pod):
        request = parse_resources.of_container(path, kind, container, spread=spread, resource_config=resource_config)
        if isinstance(request, ContainerRequest):
            containers.append(request)
        elif request is not None:
            errors.extend(request)
    notes, meta = pods.annotations(pod), fields.mapping(pod, "metadata", "pod")
    policy = selectors.policy(notes, errors)
    gpus = _where_shared(selectors.selector(notes, resource_config.unit, errors), containers)
    affinity = selectors.affinity(notes, fields.text(meta, "namespace", "metadata"), errors)
    if errors:
        raise InvalidRequestError(tuple(dict.fromkeys(errors)))
    if not containers:
        return None
    takes = host.counted(pod)
    return PodRequest(
        pod=pods.ref(pod),
        shape=RequestShape(
            containers=tuple(containers),
            policy=policy,
            gpus=gpus,
            affinity=affinity,
            only_cdi=notes.get(names.ANNOTATION_HAND_OVER) == HandOver.CDI.value,
        ),
        labels=pods.labels(pod),
        app_containers=tuple(
            fields.text(container, "name", path)
            for path, kind, container in pods.containers(pod)
            if kind is ContainerKind.APP
        ),
        cpu_milli=takes.cpu_milli,
        host_mib=takes.memory_mib,
    )


def _where_shared(gpus: GpuSelector, containers: Sequence[ContainerRequest]) -> GpuSelector:
    """A pod that has its GPUs to itself has no share that a limit could keep it within, and no one beside it."""
    if not (gpus.enforced or gpus.physical) or not all(request.whole for request in containers):
        return gpus
    found = replace(gpus, enforced=False, physical=False)
    return ANY_GPU if found == ANY_GPU else found


def _too_large(pod: pods.Pod, resource_config: ResourceConfig) -> FieldError | None:
    """What would take too much time or memory to look at."""
    spec = fields.mapping(pod, "spec", "pod")
    for field in ("initContainers", "containers"):
        if (count := len(fields.objects(spec, field, "spec"))) > MAX_CONTAINERS:
            return FieldError(f"spec.{field}", f"{count} containers are more than any node runs", _AT_MOST)
    asking = sum(pods.asks(container, resource_config) for _, _, container in pods.containers(pod))
    if asking > MAX_ASKING:
        return FieldError("spec", f"{asking} containers ask for GPUs", f"let at most {MAX_ASKING} of a pod ask")
    return None


def _spread_over(pod: pods.Pod, errors: list[FieldError]) -> Spread:
    label_path = f"metadata.labels[{names.LABEL_GPU_COUNT}]"
    annotation_path = f"metadata.annotations[{names.ANNOTATION_GPUS}]"
    total = _count(pods.labels(pod).get(names.LABEL_GPU_COUNT), label_path, errors)
    per_gpu = _count(pods.annotations(pod).get(names.ANNOTATION_GPUS), annotation_path, errors)
    if total and per_gpu:
        problem = f"the label {names.LABEL_GPU_COUNT} (amounts are totals) contradicts it (amounts are per GPU)"
        errors.append(FieldError(annotation_path, problem, "keep one of the two"))
    if per_gpu:
        return Spread(per_gpu, pods.limits_are_totals(pod), annotation_path)
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
    if count > MAX_GPUS:
        problem = f"{count} GPUs are more than any node has"
        errors.append(FieldError(path, problem, f"write a number up to {MAX_GPUS}"))
        return None
    return count
