"""Pods and reviews as the API server sends them."""

from collections.abc import Callable
from typing import Any

import orjson
import pytest

from gpushare import names
from gpushare.errors import FieldError, InvalidRequestError
from gpushare.units import ResourceConfig
from webhook import mutation
from webhook.edits import Rules
from webhook.mutation import Patched
from webhook.runtimeclass import RuntimeClassChoice

Json = dict[str, Any]


def rules(*, runtime_class: str | None = names.RUNTIME_CLASS, only_cdi: bool = False, **more: Any) -> Rules:
    """With a RuntimeClass that is known."""
    choice = RuntimeClassChoice(runtime_class, only_cdi=only_cdi)
    return Rules(**{"resource_config": ResourceConfig(), "runtime_class": lambda: choice, **more})


RULES = rules()
PLAIN = rules(scheduler="", runtime_class=None)
WHOLE = rules(resource_config=ResourceConfig(whole_gpus=True))
CONTROLLER = "system:serviceaccount:gpushare-system:gpushare-controller"
DEVICES = "devices.gpushare.dev/"
RESOURCES = {
    "mem": names.GPU_MEM,
    "percent": names.GPU_PERCENT,
    "core": names.GPU_CORE,
    "gpu": names.GPU,
    "count": names.GPU_COUNT,
}

CHOOSING = [
    "/var/run/nvidia-container-devices",
    "/var/run/nvidia-container-devices/all",
    "/var/run/nvidia-container-devicesall",  # NVIDIA's runtime needs no slash there
    "/var/run/nvidia-container-devices/GPU-1",
    "/var/run//x/../nvidia-container-devices/cdi/nvidia.com/gpu/0",
    "/var/run/nvidia-container-devices/cdi/gpushare.dev/share/0123456789abcdef",
    "var/run/nvidia-container-devices/",
]
"""Paths of mounts by which NVIDIA's runtime chooses devices."""
TOO_MUCH = [
    *("10E", "8Ei", "9223372036854775807", "9223372036854775808", "4611686018427387904", "1000000001", "1e10", "1E10"),
    *("1000000001000m", "999999999999999999999999999999999999999999999999999", 2**63 - 1, 1e19),
]
"""Amounts that no node has."""


def asking(name: str = "a", /, *, requests: Any = None, **limits: object) -> Json:
    """A container that asks for `percent`, `core`, `mem` or `gpu`."""
    resources: Json = {"limits": {RESOURCES[key]: amount for key, amount in limits.items()}}
    if requests is not None:
        resources["requests"] = {RESOURCES[key]: amount for key, amount in requests.items()}
    return {"name": name, "image": "cuda", "resources": resources}


def container(name: str = "a", gpu_mem: object = None, **fields: object) -> Json:
    resources = {} if gpu_mem is None else {"resources": {"limits": {names.GPU_MEM: gpu_mem}}}
    return {"name": name, "image": "cuda", **resources, **fields}


def pod(
    *containers: Json,
    init: list[Json] | None = None,
    labels: dict[str, str] | None = None,
    annotations: dict[str, str] | None = None,
    **spec: object,
) -> Json:
    metadata: Json = {"name": "p", "namespace": "team-a"}
    if labels is not None:
        metadata["labels"] = labels
    if annotations is not None:
        metadata["annotations"] = annotations
    body: Json = {"containers": list(containers), **spec}
    if init is not None:
        body["initContainers"] = init
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": body}


def from_annotation(name: str, annotation: str) -> Json:
    reference = {"apiVersion": "v1", "fieldPath": f"metadata.annotations['{annotation}']"}
    return {"name": name, "valueFrom": {"fieldRef": reference}}


def visible(container_name: str) -> Json:
    return from_annotation("NVIDIA_VISIBLE_DEVICES", DEVICES + container_name)


VOID = {"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}
ALL = {"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}


def review(obj: object, *, operation: str = "CREATE", old: object = None, user: str = "alice", **request: Any) -> Json:
    """An AdmissionReview; `resource` may name a subresource after a slash."""
    resource, _, subresource = str(request.pop("resource", "pods")).partition("/")
    body: Json = {
        "uid": "u-1",
        "kind": {"group": "", "version": "v1", "kind": request.pop("kind", "Pod")},
        "resource": {"group": "", "version": "v1", "resource": resource},
        "operation": operation,
        "namespace": "team-a",
        "name": "p",
        "userInfo": {"username": user},
        "object": obj,
        "oldObject": old,
        "dryRun": False,
        **request,
    }
    if subresource:
        body["subResource"] = subresource
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": body}


def encoded(value: object) -> bytes:
    return orjson.dumps(value)


def debugged(*ephemeral: object) -> Json:
    """A pod that asks for nothing, with these ephemeral containers."""
    return pod(container("a", env=[VOID]), ephemeralContainers=list(ephemeral))


def admitted(value: Json, rules: Rules = RULES) -> Patched:
    """What an admission that changes the pod makes of it."""
    decision = mutation.mutate(value, rules)
    assert decision is not None, "it is admitted as it is"
    return decision


def mutated(value: Json, rules: Rules = RULES) -> Any:
    """The pod that an admission makes of it."""
    return admitted(value, rules).pod


def warnings(value: Json, rules: Rules = RULES) -> tuple[str, ...]:
    """What its author is told."""
    return admitted(value, rules).warnings


def refused(decide: Callable[[], object]) -> tuple[FieldError, ...]:
    """What is wrong with an object that is refused."""
    with pytest.raises(InvalidRequestError) as caught:
        decide()
    return caught.value.errors


def refusals(value: object, rules: Rules = WHOLE) -> list[str]:
    """What its author is told where it is refused."""
    return [str(error) for error in refused(lambda: mutation.mutate(value, rules))]


def values(found: Json) -> dict[str, str]:
    """Of the variables that a container has by value."""
    return {entry["name"]: entry["value"] for entry in found["env"] if "value" in entry}
