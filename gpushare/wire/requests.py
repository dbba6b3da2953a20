"""Pod objects -> what they ask for, from any spelling: amounts, and annotations that say on which GPUs, beside whom.

Whatever an object looks like, nothing but WireError and InvalidRequestError comes out of here.
"""

import difflib
import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, TypeVar

from gpushare import names, units
from gpushare.errors import FieldError, InvalidRequestError
from gpushare.identity import ContainerName
from gpushare.model.gpu import MAX_GPUS, HandOver
from gpushare.model.request import (
    ANY_GPU,
    MAX_ASKING,
    Affinity,
    Choice,
    ContainerKind,
    ContainerRequest,
    GpuSelector,
    LabelSelector,
    MigChoice,
    PodRequest,
    Policy,
    RequestShape,
)
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
_COMPARED: Final = 64  # most resources of a pod that are compared with ours: a pod may carry hundreds of thousands
_DOMAINS: Final = ("aliyun.com", "nano-gpu", names.DOMAIN)
_OF_HAMI: Final = {
    "nvidia.com/gpumem": f"{names.GPU_MEM} in {{unit}}, where HAMi counts MiB",
    "nvidia.com/gpumem-percentage": names.GPU_PERCENT,
    "nvidia.com/gpucores": names.GPU_CORE,
}
_LONGEST: Final = 63 + 1 + 63  # a name after the slash, and a domain that is worth comparing
_NEAR: Final = 0.6  # of 1: `gpu` and `gpu-mem`
_NEAR_DOMAIN: Final = 0.8  # `alyun.com`, `nanogpu`
_BEGINS: Final = 0.9  # one name is the beginning of the other


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
    reader = _Reader(pod, resource_config)
    shape = reader.shape()
    if reader.errors:
        raise InvalidRequestError(tuple(dict.fromkeys(reader.errors)))
    return shape


def counted(request: ContainerRequest, unit: MemoryUnit) -> tuple[str, int]:
    """The resource and the amount in which the kubelet counts a request, over all its GPUs."""
    if request.whole:
        return names.GPU, request.gpu_count
    if request.memory_percent:
        return names.GPU_PERCENT, request.memory_percent * request.gpu_count
    return names.GPU_MEM, unit.ceil(request.memory_mib) * request.gpu_count


def meant(resource: str, resource_config: ResourceConfig) -> str | None:
    """The resource of ours that an author probably meant; None if it is one of ours, or nothing like it."""
    if (of_hami := _OF_HAMI.get(resource)) is not None:
        return of_hami.format(unit=resource_config.unit.name)
    ours = (*resource_config.resources, names.GPU_CORE)
    domain, slash, name = resource.lower().partition("/")
    if not slash or len(resource) > _LONGEST or resource in {*ours, names.GPU_COUNT}:
        return None
    if not difflib.get_close_matches(domain, _DOMAINS, cutoff=_NEAR_DOMAIN):
        return next((each for each in ours if each != names.GPU and each.partition("/")[2] == name), None)
    best = max(ours, key=lambda each: (_likeness(name, each), each.startswith(f"{domain}/")))
    return best if _likeness(name, best) >= _NEAR else None


def misspelt(pod: Mapping[str, Any], resource_config: ResourceConfig) -> Iterator[tuple[str, str, str]]:
    """Container, resource and what was probably meant, for each misspelt limit among the first of a pod or template."""
    asked = (
        (str(container.get("name")), resource)
        for _, _, container in pods.containers(pod)
        for resource in pods.amounts(container, "limits")
        if "/" in resource
    )
    for name, resource in itertools.islice(asked, _COMPARED):
        if likely := meant(resource, resource_config):
            yield name, resource, likely


def _likeness(name: str, ours: str) -> float:
    other = ours.partition("/")[2]
    ratio = difflib.SequenceMatcher(None, name, other).ratio()
    begins = bool(name) and (name.startswith(other) or other.startswith(name))
    return max(ratio, _BEGINS) if begins else ratio


def _too_large(pod: pods.Pod, resource_config: ResourceConfig) -> FieldError | None:
    """What would take too much time or memory to look at."""
    spec = fields.mapping(pod, "spec", "pod")
    if too_many := pods.too_many_containers(spec, ("initContainers", "containers")):
        return too_many
    asking = sum(pods.asks(container, resource_config) for _, _, container in pods.containers(pod))
    if asking > MAX_ASKING:
        return FieldError("spec", f"{asking} containers ask for GPUs", f"let at most {MAX_ASKING} of a pod ask")
    return None


class _Reader:
    """Reads one pod, and collects all that is wrong in it."""

    def __init__(self, pod: pods.Pod, resource_config: ResourceConfig) -> None:
        self.errors: list[FieldError] = []
        self._pod = pod
        self._notes = pods.annotations(pod)
        self._resource_config = resource_config
        # How the amounts in containers' limits relate to GPUs.
        self._gpus = 1
        self._limits_are_totals = True
        self._said_at = f"metadata.labels[{names.LABEL_GPU_COUNT}]"  # where the number of GPUs is written

    def shape(self) -> RequestShape | None:
        self._read_spread()
        found = [self._container(path, kind, container) for path, kind, container in pods.containers(self._pod)]
        containers = tuple(request for request in found if request is not None)
        shape = RequestShape(
            containers=containers,
            policy=self._read(names.ANNOTATION_POLICY, Policy.parse),
            gpus=_where_shared(self._selector(), containers),
            affinity=self._affinity(),
            only_cdi=self._notes.get(names.ANNOTATION_HAND_OVER) == HandOver.CDI.value,
        )
        return shape if containers else None

    def _refuse(self, path: str, problem: str, fix: str) -> None:
        self.errors.append(FieldError(path, problem, fix))

    # Annotations.

    def _read(self, key: str, read: Callable[[str], T]) -> T | None:
        text = self._notes.get(key)
        if text is None:
            return None
        try:
            if not isinstance(text, str):
                raise ValueError(f"{text!r:.80} is not a string; write it in quotes")  # noqa: TRY301, TRY004 - one place for all
            return read(text)
        except ValueError as error:
            problem, _, fix = str(error).partition("; ")
            self._refuse(f"metadata.annotations[{key}]", problem, fix)
            return None

    def _selector(self) -> GpuSelector:
        unit = self._resource_config.unit
        found = GpuSelector(
            models=self._read(names.ANNOTATION_MODEL, lambda text: _choice(text, _MODEL, _MODELS)) or Choice(),
            uuids=self._read(names.ANNOTATION_UUID, lambda text: _choice(text, _UUID, _UUIDS)) or Choice(),
            min_memory_mib=self._read(names.ANNOTATION_MIN_MEMORY, lambda text: units.parse_memory(text, unit)) or 0,
            enforced=self._read(names.ANNOTATION_LIMIT, _ENFORCED) or False,
            mig=self._read(names.ANNOTATION_MIG, _MIG),
            physical=self._read(names.ANNOTATION_OVERSUBSCRIPTION, _NEVER) or False,
        )
        return ANY_GPU if found == ANY_GPU else found

    def _affinity(self) -> Affinity | None:
        same = self._read(names.ANNOTATION_SAME_GPU, LabelSelector.parse)
        other = self._read(names.ANNOTATION_OTHER_GPU, LabelSelector.parse)
        if same is None and other is None:
            return None
        return Affinity(namespace=pods.ref(self._pod).namespace, same=same, other=other)

    # Over how many GPUs.

    def _read_spread(self) -> None:
        at_annotation = f"metadata.annotations[{names.ANNOTATION_GPUS}]"
        total = self._count(pods.labels(self._pod).get(names.LABEL_GPU_COUNT), self._said_at)
        per_gpu = self._count(self._notes.get(names.ANNOTATION_GPUS), at_annotation)
        if total and per_gpu:
            problem = f"the label {names.LABEL_GPU_COUNT} (amounts are totals) contradicts it (amounts are per GPU)"
            self._refuse(at_annotation, problem, "keep one of the two")
        if per_gpu:
            self._gpus, self._said_at = per_gpu, at_annotation
            self._limits_are_totals = pods.limits_are_totals(self._pod)
        else:
            self._gpus = total or 1

    def _count(self, value: object, path: str) -> int | None:
        if value is None or value == "0":
            return None
        try:
            count = units.parse_amount(value)
        except ValueError as error:
            problem = str(error).partition("; ")[0]
            self._refuse(path, f"not a number of GPUs: {problem}", 'write a whole number in quotes, such as "2"')
            return None
        return self._within_a_node(path, count)

    def _within_a_node(self, path: str, count: int) -> int | None:
        if count <= MAX_GPUS:
            return count
        self._refuse(path, f"{count} GPUs are more than any node has", f"write a number up to {MAX_GPUS}")
        return None

    # Containers.

    def _container(self, path: str, kind: ContainerKind, container: Mapping[str, Any]) -> ContainerRequest | None:
        before = len(self.errors)
        limits, requests = pods.amounts(container, "limits"), pods.amounts(container, "requests")
        for field, amounts in (("limits", limits), ("requests", requests)):
            if names.GPU_COUNT in amounts:
                self._refuse(
                    f"{path}.resources.{field}[{names.GPU_COUNT}]",
                    "this resource is for the node's ledger and cannot be requested",
                    f"remove it; to use several GPUs, put the label {names.LABEL_GPU_COUNT} on the pod"
                    f" (amounts are totals) or the annotation {names.ANNOTATION_GPUS} (amounts are per GPU)",
                )
        known = (*self._resource_config.resources, names.GPU_CORE)
        asked = [resource for resource in known if resource in limits or resource in requests]
        values = {resource: self._amount(path, resource, limits, requests) for resource in asked}
        asked = [resource for resource in asked if resource != names.GPU_CORE]
        if len(asked) > 1:
            problem = f"asks for {' and '.join(asked)}, which count the same GPUs in different ways"
            self._refuse(f"{path}.resources.limits", problem, "keep one of them")
        if names.GPU_CORE in values and asked != [names.GPU_MEM]:
            fix = f"add {names.GPU_MEM}, or ask for {names.GPU_PERCENT} alone, which is memory and compute"
            problem = f"{names.GPU_CORE} is the part of compute beside {names.GPU_MEM}"
            self._refuse(f"{path}.resources.limits", problem, fix)
        if not asked or len(self.errors) > before:
            return None
        name = ContainerName(fields.needed(container, "name", path))
        amount, compute = values[asked[0]] or 0, values.get(names.GPU_CORE) or 0
        where = f"{path}.resources.limits[{asked[0]}]"
        match asked[0]:
            case names.GPU:
                if self._within_a_node(where, amount) is None:
                    return None
                return ContainerRequest(container=name, kind=kind, whole=True, compute_percent=100, gpu_count=amount)
            case names.GPU_PERCENT:
                return self._part(where, name, kind, amount)
            case _:
                return self._memory(where, name, kind, amount, compute)

    def _amount(self, path: str, resource: str, limits: Mapping[str, Any], requests: Mapping[str, Any]) -> int | None:
        if resource not in limits:
            problem = f"requests {resource} without a limit"
            self._refuse(f"{path}.resources.limits", problem, "write the same amount under limits")
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
            self._refuse(where, problem, fix)
            return None
        return amount

    def _part(self, path: str, name: ContainerName, kind: ContainerKind, percent: int) -> ContainerRequest | None:
        if percent > 100:
            self._refuse(path, f"{percent} per cent are more than one GPU", f"write up to 100; {_SEVERAL}")
            return None
        if self._gpus > 1:
            problem = f"container {name} asks for {names.GPU_PERCENT}, which is a part of one GPU"
            self._refuse(self._said_at, problem, f"remove it; {_SEVERAL}")
            return None
        return ContainerRequest(container=name, kind=kind, memory_percent=percent, compute_percent=percent)

    def _memory(
        self, path: str, name: ContainerName, kind: ContainerKind, amount: int, compute: int
    ) -> ContainerRequest | None:
        if compute > 100:
            core = path.replace(names.GPU_MEM, names.GPU_CORE)
            self._refuse(core, f"{compute} per cent are more than one GPU's compute", "write up to 100")
            return None
        if compute and self._gpus > 1:
            problem = f"container {name} asks for {names.GPU_CORE}, which is a part of one GPU"
            self._refuse(self._said_at, problem, f"remove it, or remove {names.GPU_CORE}")
            return None
        per_gpu, rest = divmod(amount, self._gpus) if self._limits_are_totals else (amount, 0)
        if rest:
            below, above = amount - rest, amount - rest + self._gpus
            problem = f"{amount} cannot be split evenly over {self._gpus} GPUs"
            self._refuse(path, problem, f"write {below} or {above}" if below else f"write {above}")
            return None
        memory_mib = self._resource_config.unit.to_mib(per_gpu)
        return ContainerRequest(
            container=name, kind=kind, memory_mib=memory_mib, compute_percent=compute, gpu_count=self._gpus
        )


def _where_shared(gpus: GpuSelector, containers: Sequence[ContainerRequest]) -> GpuSelector:
    """A pod that has its GPUs to itself has no share that a limit could keep it within, and no one beside it."""
    if not (gpus.enforced or gpus.physical) or not all(request.whole for request in containers):
        return gpus
    found = replace(gpus, enforced=False, physical=False)
    return ANY_GPU if found == ANY_GPU else found


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
