"""Pod objects -> what they ask for, from any spelling: amounts, and annotations that say on which GPUs, beside whom.

Whatever an object looks like, nothing but WireError and InvalidRequestError comes out of here.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar

from gpushare import names, units
from gpushare.errors import FieldError, InvalidRequestError
from gpushare.identity import ContainerName
from gpushare.model.gpu import MAX_GPUS, HandOver
from gpushare.model.request import MAX_ASKING, ContainerKind, ContainerRequest, PodRequest, Policy, RequestShape
from gpushare.model.selector import ANY_GPU, Affinity, Choice, GpuSelector, LabelSelector, MigChoice
from gpushare.units import MemoryUnit, ResourceConfig
from gpushare.wire import fields, pods

T = TypeVar("T")
_UUID: Final = re.compile(r"(GPU|MIG)-[0-9A-Za-z][0-9A-Za-z/-]{0,60}")
_MODEL: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._/-]{0,63}")
_MODELS: Final = "write models such as A100 or T4, separated by commas; ! before one excludes it"
_UUIDS: Final = "write UUIDs as nvidia-smi -L prints them, separated by commas; ! before one excludes it"
_MOST: Final = 16
_ALONE: Final = "{}, or remove the annotation"
_SEVERAL: Final = (
    f"for several GPUs ask for {names.GPU_MEM} with the annotation {names.ANNOTATION_GPUS}, which gives so much on each"
)
_COUNTED: Final = {names.GPU_MEM: "units", names.GPU_PERCENT: "per cent", names.GPU_CORE: "per cent", names.GPU: "GPUs"}


@dataclass(frozen=True, slots=True)
class Spread:
    """How the amount in a container's limits relates to GPUs: what the pod's label and annotation say."""

    count: int
    limits_are_totals: bool
    path: str = ""  # where the number of GPUs was written; empty if nowhere

    def per_gpu(self, amount: int) -> int | None:
        """None if the total does not divide."""
        if not self.limits_are_totals:
            return amount
        return amount // self.count if amount % self.count == 0 else None


def of_pod(pod: pods.Pod, resource_config: ResourceConfig) -> PodRequest | None:
    """What a pod asks for, of GPUs and of its host; None if it asks for no GPU. Raises as `shape_of`."""
    if (shape := shape_of(pod, resource_config)) is None:
        return None
    takes = pods.host_requests(pod)
    return PodRequest(
        pod=pods.ref(pod),
        shape=shape,
        labels=pods.labels(pod),
        app_containers=tuple(
            fields.text(container, "name", path)
            for path, kind, container in pods.containers(pod)
            if kind is ContainerKind.APP
        ),
        cpu_milli=takes.cpu_milli,
        host_mib=takes.memory_mib,
    )


def shape_of(pod: pods.Pod, resource_config: ResourceConfig) -> RequestShape | None:
    """What a pod asks for of GPUs, from any spelling; None if it asks for none.

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
        request = of_container(path, kind, container, spread=spread, resource_config=resource_config)
        if isinstance(request, ContainerRequest):
            containers.append(request)
        elif request is not None:
            errors.extend(request)
    notes = pods.annotations(pod)
    policy = _read(notes, names.ANNOTATION_POLICY, Policy.parse, errors)
    gpus = _where_shared(_selector(notes, resource_config.unit, errors), containers)
    affinity = _affinity(notes, pods.ref(pod).namespace, errors)
    if errors:
        raise InvalidRequestError(tuple(dict.fromkeys(errors)))
    if not containers:
        return None
    return RequestShape(
        containers=tuple(containers),
        policy=policy,
        gpus=gpus,
        affinity=affinity,
        only_cdi=notes.get(names.ANNOTATION_HAND_OVER) == HandOver.CDI.value,
    )


def _selector(notes: Mapping[str, str], unit: MemoryUnit, errors: list[FieldError]) -> GpuSelector:
    models = _read(notes, names.ANNOTATION_MODEL, lambda text: _choice(text, _MODEL, _MODELS), errors)
    uuids = _read(notes, names.ANNOTATION_UUID, lambda text: _choice(text, _UUID, _UUIDS), errors)
    memory = _read(notes, names.ANNOTATION_MIN_MEMORY, lambda text: units.parse_memory(text, unit), errors)
    found = GpuSelector(
        models=models or Choice(),
        uuids=uuids or Choice(),
        min_memory_mib=memory or 0,
        enforced=_read(notes, names.ANNOTATION_LIMIT, _ENFORCED, errors) or False,
        mig=_read(notes, names.ANNOTATION_MIG, _MIG, errors),
        physical=_read(notes, names.ANNOTATION_OVERSUBSCRIPTION, _NEVER, errors) or False,
    )
    return ANY_GPU if found == ANY_GPU else found


def _affinity(notes: Mapping[str, str], namespace: str, errors: list[FieldError]) -> Affinity | None:
    """Beside whom, or None if the pod does not say."""
    same = _read(notes, names.ANNOTATION_SAME_GPU, LabelSelector.parse, errors)
    other = _read(notes, names.ANNOTATION_OTHER_GPU, LabelSelector.parse, errors)
    if same is None and other is None:
        return None
    return Affinity(namespace=namespace, same=same, other=other)


def _read(notes: Mapping[str, str], key: str, read: Callable[[str], T], errors: list[FieldError]) -> T | None:
    text = notes.get(key)
    if text is None:
        return None
    try:
        if not isinstance(text, str):
            raise ValueError(f"{text!r:.80} is not a string; write it in quotes")  # noqa: TRY301, TRY004 - one place for all
        return read(text)
    except ValueError as error:
        problem, _, fix = str(error).partition("; ")
        errors.append(FieldError(f"metadata.annotations[{key}]", problem, fix))
        return None


def _choice(text: str, known: re.Pattern[str], fix: str) -> Choice:
    wanted: list[str] = []
    unwanted: list[str] = []
    parts = [part.strip() for part in text.split(",")]
    if len(parts) > _MOST:
        raise ValueError(f"{len(parts)} entries are more than {_MOST}; {fix}")
    for part in parts:
        value = part.removeprefix("!").strip()
        if known.fullmatch(value) is None:
            raise ValueError(f"{part!r:.80} is none; {fix}")
        (unwanted if part.startswith("!") else wanted).append(value)
    return Choice(wanted=tuple(wanted), unwanted=tuple(unwanted))


def _word(known: Mapping[str, T], problem: str, fix: str) -> Callable[[str], T]:
    """Reads an annotation that may have a few words only."""

    def read(text: str) -> T:
        if text not in known:
            raise ValueError(f"{text!r:.80} {problem}; write {fix}")
        return known[text]

    return read


_ENFORCED: Final = _word({names.ENFORCED: True}, "is no strength of a limit", _ALONE.format(names.ENFORCED))
_NEVER: Final = _word(
    {names.NEVER: True},
    "does not refuse oversubscription, which is all that a pod can say of it",
    _ALONE.format(names.NEVER),
)
_MIG: Final = _word(
    {choice.value: choice for choice in MigChoice},
    "does not say whether MIG instances are taken",
    " or ".join(choice.value for choice in MigChoice),
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
    if too_many := pods.too_many_containers(spec, ("initContainers", "containers")):
        return too_many
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


def of_container(
    path: str, kind: ContainerKind, container: Mapping[str, Any], *, spread: Spread, resource_config: ResourceConfig
) -> ContainerRequest | Sequence[FieldError] | None:
    """What one container asks for: None for nothing, or all that is wrong with it.

    The path is for messages; `spread` says over how many GPUs.
    """
    limits, requests = pods.amounts(container, "limits"), pods.amounts(container, "requests")
    errors = [*_gpu_count(path, limits, requests)]
    known = (*resource_config.resources, names.GPU_CORE)
    asked = [resource for resource in known if resource in limits or resource in requests]
    values = {resource: _amount(path, resource, limits, requests, errors) for resource in asked}
    asked = [resource for resource in asked if resource != names.GPU_CORE]
    if len(asked) > 1:
        problem = f"asks for {' and '.join(asked)}, which count the same GPUs in different ways"
        errors.append(FieldError(f"{path}.resources.limits", problem, "keep one of them"))
    if names.GPU_CORE in values and asked != [names.GPU_MEM]:
        fix = f"add {names.GPU_MEM}, or ask for {names.GPU_PERCENT} alone, which is memory and compute"
        problem = f"{names.GPU_CORE} is the part of compute beside {names.GPU_MEM}"
        errors.append(FieldError(f"{path}.resources.limits", problem, fix))
    if errors:
        return errors
    if not asked:
        return None
    name = ContainerName(fields.needed(container, "name", path))
    amount, compute = values[asked[0]] or 0, values.get(names.GPU_CORE) or 0
    where = f"{path}.resources.limits[{asked[0]}]"
    match asked[0]:
        case names.GPU:
            return _whole(where, name, kind, amount)
        case names.GPU_PERCENT:
            return _part(where, name, kind, amount, spread)
        case _:
            return _memory(where, name, kind, amount, compute=compute, spread=spread, unit=resource_config.unit)


def counted(request: ContainerRequest, unit: MemoryUnit) -> tuple[str, int]:
    """The resource and the amount in which the kubelet counts a request, over all its GPUs."""
    if request.whole:
        return names.GPU, request.gpu_count
    if request.memory_percent:
        return names.GPU_PERCENT, request.memory_percent * request.gpu_count
    return names.GPU_MEM, unit.ceil(request.memory_mib) * request.gpu_count


def _whole(path: str, name: ContainerName, kind: ContainerKind, count: int) -> ContainerRequest | list[FieldError]:
    if count > MAX_GPUS:
        return [FieldError(path, f"{count} GPUs are more than any node has", f"write a number up to {MAX_GPUS}")]
    return ContainerRequest(container=name, kind=kind, whole=True, compute_percent=100, gpu_count=count)


def _part(
    path: str, name: ContainerName, kind: ContainerKind, percent: int, spread: Spread
) -> ContainerRequest | list[FieldError]:
    if percent > 100:
        return [FieldError(path, f"{percent} per cent are more than one GPU", f"write up to 100; {_SEVERAL}")]
    if spread.count > 1:
        problem = f"container {name} asks for {names.GPU_PERCENT}, which is a part of one GPU"
        return [FieldError(spread.path, problem, f"remove it; {_SEVERAL}")]
    return ContainerRequest(container=name, kind=kind, memory_percent=percent, compute_percent=percent)


def _memory(
    path: str, name: ContainerName, kind: ContainerKind, amount: int, *, compute: int, spread: Spread, unit: MemoryUnit
) -> ContainerRequest | list[FieldError]:
    if compute > 100:
        core = path.replace(names.GPU_MEM, names.GPU_CORE)
        return [FieldError(core, f"{compute} per cent are more than one GPU's compute", "write up to 100")]
    if compute and spread.count > 1:
        problem = f"container {name} asks for {names.GPU_CORE}, which is a part of one GPU"
        return [FieldError(spread.path, problem, f"remove it, or remove {names.GPU_CORE}")]
    per_gpu = spread.per_gpu(amount)
    if per_gpu is None:
        below, above = amount // spread.count * spread.count, -(-amount // spread.count) * spread.count
        problem = f"{amount} cannot be split evenly over {spread.count} GPUs"
        return [FieldError(path, problem, f"write {below} or {above}" if below else f"write {above}")]
    return ContainerRequest(
        container=name, kind=kind, memory_mib=unit.to_mib(per_gpu), compute_percent=compute, gpu_count=spread.count
    )


def _gpu_count(path: str, limits: Mapping[str, Any], requests: Mapping[str, Any]) -> list[FieldError]:
    return [
        FieldError(
            f"{path}.resources.{field}[{names.GPU_COUNT}]",
            "this resource is for the node's ledger and cannot be requested",
            f"remove it; to use several GPUs, put the label {names.LABEL_GPU_COUNT} on the pod"
            f" (amounts are totals) or the annotation {names.ANNOTATION_GPUS} (amounts are per GPU)",
        )
        for field, values in (("limits", limits), ("requests", requests))
        if names.GPU_COUNT in values
    ]


def _amount(
    path: str, resource: str, limits: Mapping[str, Any], requests: Mapping[str, Any], errors: list[FieldError]
) -> int | None:
    if resource not in limits:
        problem = f"requests {resource} without a limit"
        errors.append(FieldError(f"{path}.resources.limits", problem, "write the same amount under limits"))
        return None
    where, of = f"{path}.resources.limits[{resource}]", _COUNTED[resource]
    try:
        amount = units.parse_amount(limits[resource], of)
        if resource in requests and units.parse_amount(requests[resource], of) != amount:
            where = f"{path}.resources.requests[{resource}]"
            raise ValueError(  # noqa: TRY301 - one place turns all of them into a field error
                f"{requests[resource]} differs from the limit {amount}; write {amount} or leave requests out"
            )
    except ValueError as error:
        problem, _, fix = str(error).partition("; ")
        errors.append(FieldError(where, problem, fix))
        return None
    return amount
