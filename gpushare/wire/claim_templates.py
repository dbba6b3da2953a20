"""Pods that ask by gpu-mem -> the ResourceClaimTemplate that asks for the same, and what it cannot say. Pure."""

import hashlib
import itertools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import orjson

from gpushare import names, units
from gpushare.errors import FieldError, InvalidRequestError, WireError
from gpushare.model import request as model
from gpushare.model.gpu import Limit
from gpushare.model.request import ContainerKind, ContainerRequest, GpuSelector, MigChoice
from gpushare.units import ResourceConfig
from gpushare.wire import claims, fields, pods, requests
from gpushare.wire.fields import JsonObject

PATH: Final = f"{claims.API}/namespaces/{{}}/resourceclaimtemplates"
ALL: Final = f"{claims.API}/resourceclaimtemplates"
_MOST_REQUESTS, _MOST_GPUS, _LONGEST = 4, 32, 1024  # what the policy gpushare-claims admits
_LARGEST: Final = 16 * 1024  # characters of a spec, above those of all requests with their selectors
_STRONG: Final = [limit.value for limit in Limit if limit.enforced and limit is not Limit.MIG]
_OF_GPU: Final = f"device.attributes[{names.DRA_DRIVER!r}]"
_SIZE: Final = f"device.capacity[{names.DRA_DRIVER!r}].{names.DRA_MEMORY}.compareTo(quantity({{!r}}))"
_LOST: Final = {
    names.ANNOTATION_POLICY: "kube-scheduler chooses the node, and there the fullest GPU that fits",
    names.ANNOTATION_FRAMEWORK_VARIABLES: "containers with claims are told no framework's limit",
}


@dataclass(frozen=True, slots=True)
class Template:
    text: str  # canonical JSON of the spec of its claims
    prefix: str = names.DEVICE_CLASS  # which a policy leaves to the controller

    @property
    def name(self) -> str:
        return f"{self.prefix}-{hashlib.sha256(self.text.encode()).hexdigest()[:20]}"

    def object(self, namespace: str = "", **metadata: object) -> JsonObject:
        where = {"namespace": namespace} if namespace else {}
        return {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaimTemplate",
            "metadata": {"name": self.name, **where, **metadata},
            "spec": {"spec": orjson.loads(self.text)},
        }


class Translated(NamedTuple):
    template: Template
    spec: JsonObject  # of the pod, which claims instead
    lost: Sequence[str]  # what is different now, in words


def translate(pod: pods.Pod, resource_config: ResourceConfig, prefix: str = names.DEVICE_CLASS) -> Translated | None:
    """A pod that claims what it asks for; None if it asks for nothing. Raises as `requests.shape_of`."""
    shape = requests.shape_of(pod, resource_config)
    if shape is None:
        return None
    asking = [path for path, _, each in pods.containers(pod) if pods.asks(each, resource_config)]
    if errors := tuple(_errors(pod, shape.gpus, dict(zip(asking, shape.containers, strict=True)))):
        raise InvalidRequestError(errors)
    requests_of = [_of_container(number, each, shape.gpus) for number, each in enumerate(shape.containers)]
    template = _template(requests_of, prefix)
    spec = {**pod["spec"], "resourceClaims": [*(pod["spec"].get("resourceClaims") or ()), _entry(template)]}
    numbers = itertools.count()
    for field in ("initContainers", "containers"):
        if spec.get(field):
            spec[field] = [_claiming(each, resource_config, numbers) for each in spec[field]]
    lost = list(_lost(pod, [each.kind for each in shape.containers]))
    if spec.get("runtimeClassName") == names.RUNTIME_CLASS:  # which a policy refuses to pods without gpu-mem
        del spec["runtimeClassName"]
    return Translated(template, spec, lost)


def of_pod(pod: pods.Pod) -> Template | None:
    """The one that a translated pod's annotation has and its spec names; None for none, also for a forged one."""
    text = pods.annotations(pod).get(names.CLAIM_TEMPLATE)
    if not isinstance(text, str) or len(text) > _LARGEST:
        return None
    try:
        entries = fields.objects(fields.mapping(pod, "spec", "pod"), "resourceClaims", "spec")
        found = orjson.loads(text)["devices"]["requests"]
        made = _template([_remade(number, each) for number, each in enumerate(found)])
    except (AttributeError, LookupError, TypeError, ValueError, WireError):
        return None
    return made if made.text == text and _entry(made) in entries else None


def _entry(template: Template) -> JsonObject:
    return {"name": names.DEVICE_CLASS, "resourceClaimTemplateName": template.name}


def _claiming(container: JsonObject, resource_config: ResourceConfig, numbers: Iterator[int]) -> JsonObject:
    if not pods.asks(container, resource_config):
        return container
    ours, resources = {*resource_config.resources, names.GPU_CORE}, dict(container["resources"])
    for field in ("limits", "requests"):
        if kept := {key: amount for key, amount in (resources.pop(field, None) or {}).items() if key not in ours}:
            resources[field] = kept
    claim = {"name": names.DEVICE_CLASS, "request": f"gpu-{next(numbers)}"}
    return {**container, "resources": {**resources, "claims": [*(resources.get("claims") or ()), claim]}}


def _template(requests: Sequence[JsonObject], prefix: str = names.DEVICE_CLASS) -> Template:
    return Template(orjson.dumps({"devices": {"requests": requests}}, option=orjson.OPT_SORT_KEYS).decode(), prefix)


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
    return {"name": f"gpu-{number}", "exactly": exactly}


def _remade(number: int, request: Mapping[str, Any]) -> JsonObject:
    """From what may differ in it; the values are for the API server, and a policy, to check."""
    exactly = request["exactly"]
    selectors = [each["cel"]["expression"] for each in exactly.get("selectors", ())]
    return _request(number, exactly["count"], exactly.get("capacity", {}).get("requests"), selectors)


# Selectors. What comes from a pod is quoted by JSON, whose strings and lists are those of CEL. Nothing is bound to a
# short name: the API server estimates costs by the path of what is matched, and refuses what it does not know.


def _selectors(request: ContainerRequest, gpus: GpuSelector) -> Iterator[str]:
    yield from _choices(gpus).values()
    takes_mig = model.takes_mig(gpus.mig, request.gpu_count, whole=request.whole)
    kinds = {
        "mig": gpus.mig is MigChoice.ONLY,
        "gpu": gpus.mig is MigChoice.NEVER or not takes_mig,
    }  # both: there is none
    conditions = [f"{_has('type')} && {_OF_GPU}.type == {kind!r}" for kind, wanted in kinds.items() if wanted]
    if gpus.min_memory_mib:
        conditions.append(f"{_SIZE.format(units.binary(gpus.min_memory_mib))} >= 0")
    if gpus.enforced:  # of a MIG instance, the hardware holds nothing less than all of it
        whole = "" if request.whole else f" && {_SIZE.format(units.binary(request.memory_mib))} <= 0"
        of_mig = f"{_OF_GPU}.limit == {Limit.MIG.value!r}{whole}"
        conditions += [_has("limit"), f"({_OF_GPU}.limit in {json.dumps(_STRONG)} || ({of_mig}))"]
    if conditions:
        yield " && ".join(conditions)


def _choices(gpus: GpuSelector) -> Mapping[str, str]:
    """Selectors, by the annotations that they are made of."""
    models = _chosen("productName", gpus.models, lambda meant: f".matches({json.dumps(model.model_pattern(meant))})")
    uuids = _chosen("uuid", gpus.uuids, lambda uuids: f" in {json.dumps(uuids)}")
    return {key: each for key, each in ((names.ANNOTATION_MODEL, models), (names.ANNOTATION_UUID, uuids)) if each}


def _chosen(name: str, choice: model.Choice, said: Callable[[Sequence[str]], str]) -> str:
    conditions = [f"{_OF_GPU}.{name}{said(choice.wanted)}"] if choice.wanted else []
    conditions += [f"!({_OF_GPU}.{name}{said(choice.unwanted)})"] if choice.unwanted else []
    return " && ".join([_has(name), *conditions]) if conditions else ""


def _has(name: str) -> str:
    """An attribute that a device lacks would be an error for the pod, on every node."""
    return f"{name!r} in {_OF_GPU}"


# What cannot be said, and what is lost.


def _errors(pod: pods.Pod, gpus: GpuSelector, asking: Mapping[str, ContainerRequest]) -> Iterator[FieldError]:
    spec, notes = pod["spec"], pods.annotations(pod)
    if spec.get("nodeName"):
        yield FieldError("spec.nodeName", "it bypasses the scheduler, which allocates claims", "write node affinity")
    if any(each.get("name") == names.DEVICE_CLASS for each in fields.objects(spec, "resourceClaims", "spec")):
        yield FieldError("spec.resourceClaims", f"{names.DEVICE_CLASS} is what gpu-mem becomes", "use another name")
    for key in {names.ANNOTATION_SAME_GPU, names.ANNOTATION_OTHER_GPU} & notes.keys():
        yield _note(key, "a claim cannot say beside which pods its GPUs are", "remove it")
    most = _MOST_GPUS if len(asking) == 1 else _MOST_REQUESTS
    if (count := sum(each.gpu_count for each in asking.values())) > most:
        problem = f"{len(asking)} containers ask for {count} GPUs, and their claim may have {most}"
        yield FieldError("spec.containers", problem, f"let them ask for {most} at most")
    for path, request in asking.items():
        if request.memory_percent:
            problem = "a claim asks for bytes, and how many these are is known when the GPU is chosen"
            where = f"{path}.resources.limits[{names.GPU_PERCENT}]"
            yield FieldError(where, problem, f"ask for {names.GPU_MEM}")
    for key, selector in _choices(gpus).items():
        if len(selector) > _LONGEST:
            problem = f"as a selector it has {len(selector)} characters, and {_LONGEST} are admitted"
            yield _note(key, problem, "write fewer entries")


def _note(key: str, problem: str, fix: str) -> FieldError:
    return FieldError(f"metadata.annotations[{key}]", problem, fix)


def _lost(pod: pods.Pod, kinds: Sequence[ContainerKind]) -> Iterator[str]:
    spec, notes = pod["spec"], pods.annotations(pod)
    yield from (f"{key} has no effect on a claim: {why}" for key, why in _LOST.items() if key in notes)
    if spec.get("priorityClassName"):
        yield "spec.priorityClassName: no pod is evicted to make room on a GPU for a claim"
    if ContainerKind.INIT in kinds and len(kinds) > 1:
        yield "the claim holds what init containers ask for beside that of the others, as long as the pod lives"
    if spec.get("runtimeClassName") == names.RUNTIME_CLASS:
        yield f"spec.runtimeClassName {names.RUNTIME_CLASS} is removed: claims are handed over by CDI"
