"""Pods that ask by gpu-mem -> the ResourceClaimTemplate that asks for the same, and what it cannot say. Pure."""

import hashlib
import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import orjson

from gpushare import names, units
from gpushare.errors import FieldError, InvalidRequestError, WireError
from gpushare.model.gpu import Limit
from gpushare.model.request import (
    Choice,
    ContainerKind,
    ContainerRequest,
    GpuSelector,
    MigChoice,
    model_pattern,
    takes_mig,
)
from gpushare.units import ResourceConfig
from gpushare.wire import claims, fields, pods, requests
from gpushare.wire.fields import JsonObject

PATH: Final = f"{claims.API}/namespaces/{{}}/resourceclaimtemplates"
ALL: Final = f"{claims.API}/resourceclaimtemplates"
# What the policy gpushare-claims admits.
MOST_REQUESTS: Final = 4
MOST_GPUS: Final = 32  # of one request
_LONGEST: Final = 1024  # characters of a selector
_MOST_MIB: Final = 2**30  # 1 Pi
_LARGEST: Final = 16 * 1024  # bytes of a spec, above those of all requests with their selectors
_MEMORY: Final = re.compile(r"[1-9][0-9]{0,9}[MGTP]i")
_COMPUTE: Final = re.compile(r"[1-9][0-9]?|100")
_STRONG: Final = [limit.value for limit in Limit if limit.enforced and limit is not Limit.MIG]
_OF_GPU: Final = f"device.attributes[{names.DRA_DRIVER!r}]"
_SIZE: Final = f"device.capacity[{names.DRA_DRIVER!r}].{names.DRA_MEMORY}.compareTo(quantity({{!r}}))"
_LOST: Final = {
    names.ANNOTATION_POLICY: "kube-scheduler chooses the node, and there the fullest GPU that fits",
    names.WATCHDOG: "usage of claims is not read",
    names.ANNOTATION_FRAMEWORK_VARIABLES: "containers with claims are told no framework's limit",
}


@dataclass(frozen=True, slots=True)
class Template:
    text: str  # canonical JSON of the spec of its claims

    @property
    def name(self) -> str:
        return f"{names.DEVICE_CLASS}-{hashlib.sha256(self.text.encode()).hexdigest()[:20]}"

    def object(self, namespace: str = "", **metadata: object) -> JsonObject:
        where = {"namespace": namespace} if namespace else {}
        return {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaimTemplate",
            "metadata": {"name": self.name, **where, **metadata},
            "spec": {"spec": orjson.loads(self.text)},
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Translated:
    template: Template
    spec: JsonObject  # of the pod, which claims instead
    lost: tuple[str, ...] = ()  # what is different now, in words


def translate(pod: pods.Pod, resource_config: ResourceConfig) -> Translated | None:
    """A pod that claims what it asks for; None if it asks for nothing. Raises as `requests.shape_of`."""
    shape = requests.shape_of(pod, resource_config)
    if shape is None:
        return None
    asking = [path for path, _, each in pods.containers(pod) if pods.asks(each, resource_config)]
    if errors := tuple(_errors(pod, shape.gpus, dict(zip(asking, shape.containers, strict=True)))):
        raise InvalidRequestError(errors)
    made = [_of_container(number, each, shape.gpus) for number, each in enumerate(shape.containers)]
    template = Template(_canonical({"devices": {"requests": made}}))
    spec = {**pod["spec"], "resourceClaims": [*(pod["spec"].get("resourceClaims") or ()), _entry(template)]}
    numbers = itertools.count()
    for field in ("initContainers", "containers"):
        if spec.get(field):
            spec[field] = [_claiming(each, resource_config, numbers) for each in spec[field]]
    lost = _lost(pod, [each.kind for each in shape.containers])
    if spec.get("runtimeClassName") == names.RUNTIME_CLASS:  # which a policy refuses to pods without gpu-mem
        del spec["runtimeClassName"]
    return Translated(template=template, spec=spec, lost=tuple(lost))


def of_pod(pod: pods.Pod) -> Template | None:
    """The one that a translated pod's annotation has and its spec names; None for none, also for a forged one."""
    text = pods.annotations(pod).get(names.CLAIM_TEMPLATE)
    if not isinstance(text, str) or len(text) > _LARGEST:
        return None
    template = Template(text)
    try:
        entries = fields.objects(fields.mapping(pod, "spec", "pod"), "resourceClaims", "spec")
        made = [_remade(number, each) for number, each in enumerate(orjson.loads(text)["devices"]["requests"])]
    except (AttributeError, LookupError, TypeError, ValueError, WireError):
        return None
    is_ours = 0 < len(made) <= MOST_REQUESTS and text == _canonical({"devices": {"requests": made}})
    return template if is_ours and _entry(template) in entries else None


def _entry(template: Template) -> JsonObject:
    return {"name": names.DEVICE_CLASS, "resourceClaimTemplateName": template.name}


def _claiming(container: JsonObject, resource_config: ResourceConfig, numbers: Iterator[int]) -> JsonObject:
    if not pods.asks(container, resource_config):
        return container
    ours, resources = {*resource_config.resources, names.GPU_CORE}, dict(container["resources"])
    for field in ("limits", "requests"):
        kept = {key: amount for key, amount in (resources.pop(field, None) or {}).items() if key not in ours}
        resources |= {field: kept} if kept else {}
    claim = {"name": names.DEVICE_CLASS, "request": _name(next(numbers))}
    return {**container, "resources": {**resources, "claims": [*(resources.get("claims") or ()), claim]}}


# The claim.


def _canonical(spec: JsonObject) -> str:
    return orjson.dumps(spec, option=orjson.OPT_SORT_KEYS).decode()


def _name(number: int) -> str:
    return f"gpu-{number}"


def _of_container(number: int, request: ContainerRequest, gpus: GpuSelector) -> JsonObject:
    # Without memory it has all of a GPU, and so all compute: each other claim needs some memory.
    amounts = {names.DRA_MEMORY: units.binary(request.memory_mib)} if request.memory_mib else {}
    if request.memory_mib and request.compute_percent:
        amounts[names.DRA_COMPUTE] = str(request.compute_percent)
    return _request(number, request.gpu_count, amounts, list(_selectors(request, gpus)))


def _request(number: int, count: int, amounts: Mapping[str, str], selectors: Sequence[str]) -> JsonObject:
    """With the defaults of the API server, so that it is read back the same."""
    exactly: JsonObject = {"deviceClassName": names.DEVICE_CLASS, "allocationMode": "ExactCount", "count": count}
    if amounts:
        exactly["capacity"] = {"requests": amounts}
    if selectors:
        exactly["selectors"] = [{"cel": {"expression": each}} for each in selectors]
    return {"name": _name(number), "exactly": exactly}


def _remade(number: int, request: Mapping[str, Any]) -> JsonObject:
    """A request from what may differ in it. Raises ValueError if that cannot be from `translate`."""
    exactly = request["exactly"]
    count, amounts = exactly["count"], exactly.get("capacity", {}).get("requests", {})
    selectors = [each["cel"]["expression"] for each in exactly.get("selectors", [])]
    known = {names.DRA_MEMORY: _MEMORY, names.DRA_COMPUTE: _COMPUTE}
    if (
        type(count) is not int
        or not 0 < count <= MOST_GPUS
        or any(known[name].fullmatch(amount) is None for name, amount in amounts.items())
        or len(selectors) > MOST_REQUESTS
        or any(not isinstance(each, str) or len(each) > _LONGEST for each in selectors)
    ):
        raise ValueError
    return _request(number, count, amounts, selectors)


# Selectors. What comes from a pod is quoted by JSON, whose strings and lists are those of CEL. Nothing is bound to a
# short name: the API server estimates costs by the path of what is matched, and refuses what it does not know.


def _selectors(request: ContainerRequest, gpus: GpuSelector) -> Iterator[str]:
    yield from filter(None, (_by_model(gpus), _by_uuid(gpus)))
    kind = ""
    if gpus.mig is MigChoice.ONLY:
        kind = "mig"
    elif gpus.mig is MigChoice.NEVER or not takes_mig(gpus.mig, request.gpu_count, whole=request.whole):
        kind = "gpu"
    conditions = [_has("type"), f"{_OF_GPU}.type == {kind!r}"] if kind else []
    if gpus.min_memory_mib:
        conditions.append(f"{_SIZE.format(units.binary(gpus.min_memory_mib))} >= 0")
    if gpus.enforced:  # of a MIG instance, the hardware holds nothing less than all of it
        whole = "" if request.whole else f" && {_SIZE.format(units.binary(request.memory_mib))} <= 0"
        of_mig = f"{_OF_GPU}.limit == {Limit.MIG.value!r}{whole}"
        conditions += [_has("limit"), f"({_OF_GPU}.limit in {_quoted(_STRONG)} || ({of_mig}))"]
    if conditions:
        yield " && ".join(conditions)


def _by_model(gpus: GpuSelector) -> str:
    return _chosen("productName", gpus.models, lambda meant: f".matches({_quoted(model_pattern(meant))})")


def _by_uuid(gpus: GpuSelector) -> str:
    return _chosen("uuid", gpus.uuids, lambda uuids: f" in {_quoted(uuids)}")


def _chosen(name: str, choice: Choice, said: Callable[[Sequence[str]], str]) -> str:
    conditions = [f"{_OF_GPU}.{name}{said(choice.wanted)}"] if choice.wanted else []
    conditions += [f"!({_OF_GPU}.{name}{said(choice.unwanted)})"] if choice.unwanted else []
    return " && ".join([_has(name), *conditions]) if conditions else ""


def _has(name: str) -> str:
    """An attribute that a device lacks would be an error for the pod, on every node."""
    return f"{name!r} in {_OF_GPU}"


def _quoted(value: object) -> str:
    return orjson.dumps(value).decode()


# What cannot be said, and what is lost.


def _errors(pod: pods.Pod, gpus: GpuSelector, asking: Mapping[str, ContainerRequest]) -> Iterator[FieldError]:
    spec, notes = pod["spec"], pods.annotations(pod)
    if spec.get("nodeName"):
        problem = "a preset node bypasses the scheduler, which allocates claims"
        yield FieldError("spec.nodeName", problem, "choose the node by spec.nodeSelector or node affinity")
    if any(each.get("name") == names.DEVICE_CLASS for each in fields.objects(spec, "resourceClaims", "spec")):
        problem = f"{names.DEVICE_CLASS} is the name of the claim that is made from the pod's limits"
        yield FieldError("spec.resourceClaims", problem, "give the other claim another name")
    for key in (names.ANNOTATION_SAME_GPU, names.ANNOTATION_OTHER_GPU):
        if key in notes:
            problem = "a claim cannot say beside which pods its GPUs are"
            yield FieldError(f"metadata.annotations[{key}]", problem, "remove it")
    if len(asking) > MOST_REQUESTS:
        problem = f"{len(asking)} containers ask for GPUs, and a claim has {MOST_REQUESTS} requests"
        yield FieldError("spec.containers", problem, f"let at most {MOST_REQUESTS} ask")
    count, most = sum(each.gpu_count for each in asking.values()), MOST_GPUS if len(asking) == 1 else MOST_REQUESTS
    if count > most >= len(asking):
        problem = f"its containers ask for {count} GPUs, and a claim with {len(asking)} requests may have {most}"
        yield FieldError("spec.containers", problem, "ask for fewer, or let one container ask")
    yield from _amounts(gpus, asking)
    for key, selector in ((names.ANNOTATION_MODEL, _by_model(gpus)), (names.ANNOTATION_UUID, _by_uuid(gpus))):
        if len(selector) > _LONGEST:
            problem = f"as a selector of a claim it would have {len(selector)} characters, more than {_LONGEST}"
            yield FieldError(f"metadata.annotations[{key}]", problem, "write fewer entries")


def _amounts(gpus: GpuSelector, asking: Mapping[str, ContainerRequest]) -> Iterator[FieldError]:
    for path, request in asking.items():
        if request.memory_percent:
            problem = "a claim asks for bytes, and how many these are is known when the GPU is chosen"
            where = f"{path}.resources.limits[{names.GPU_PERCENT}]"
            yield FieldError(where, problem, f"ask for {names.GPU_MEM}, and {names.GPU_CORE} if need be")
        if request.memory_mib > _MOST_MIB:
            problem = "no claim may have more than 1Pi on a GPU"
            yield FieldError(f"{path}.resources.limits[{names.GPU_MEM}]", problem, "write less")
        if gpus.mig is MigChoice.ONLY and request.gpu_count > 1:
            problem = f"container {request.container} asks for {request.gpu_count} GPUs, and can use one MIG instance"
            yield FieldError(f"metadata.annotations[{names.ANNOTATION_MIG}]", problem, "ask for one, or remove it")


def _lost(pod: pods.Pod, kinds: Sequence[ContainerKind]) -> Iterator[str]:
    spec, notes = pod["spec"], pods.annotations(pod)
    for key, why in _LOST.items():
        if key in notes:
            yield f"{key} has no effect on a claim: {why}"
    if spec.get("priorityClassName"):
        yield "spec.priorityClassName: no pod is evicted to make room on a GPU for a claim"
    if ContainerKind.INIT in kinds and len(kinds) > 1:
        yield "the claim holds what init containers ask for beside that of the others, as long as the pod lives"
    if spec.get("runtimeClassName") == names.RUNTIME_CLASS:
        yield f"spec.runtimeClassName {names.RUNTIME_CLASS} is removed: claims are handed over by CDI"
