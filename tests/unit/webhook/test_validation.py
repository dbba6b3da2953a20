"""Who may write a binding, and what of a request may still change."""

from typing import Any

import pytest

from gpushare.errors import InvalidRequestError
from gpushare.units import ResourceConfig
from testing.reviews import CONTROLLER, RULES, WHOLE, Json, asking, container, encoded, pod, review
from tests.unit.webhook.conftest import Webhook, denial
from webhook import review as reviews, validation

LEAVE = "only gpushare-controller may change it; leave it as it is"
FIXED = "part of the GPU request, which is fixed when the pod is created; create a new pod"
RESERVED = [
    *(f"{each}.gpushare.dev/a" for each in ("devices", "memory", "index", "capacity")),
    *("gpushare.dev/allocation", "gpushare.dev/bound-late", "nano-gpu/assume", "nano-gpu/container-a"),
    *("ALIYUN_COM_GPU_MEM_IDX", "ALIYUN_COM_GPU_MEM_ASSIGNED", "scheduler.framework.gpushare.allocation"),
]
MARKS = "gpus gpu-policy gpu-model gpu-uuid min-gpu-memory limit mig same-gpu-as other-gpu-than limits-are-totals"
REQUEST = [f"gpushare.dev/{each}" for each in MARKS.split()]
SUBRESOURCES = ["pods", "pods/status", "pods/ephemeralcontainers", "pods/resize"]
BINDINGS = pytest.mark.parametrize("resource", ["pods/binding", "bindings"])
CDI = "metadata.annotations[nvidia.cdi.k8s.io/x]: it would choose devices past the scheduler; "
AT_ONCE = CDI + "remove it, and ask for GPUs by resources.limits"
CHOSEN = {"nvidia.cdi.k8s.io/x": "nvidia.com/gpu=all"}


def gpu_pod(*, labels: dict[str, str] | None = None, annotations: dict[str, str] | None = None) -> Json:
    return pod(container("a", "3"), labels=labels, annotations=annotations)


def update(old: object, new: object, **request: Any) -> Json:
    return review(new, old=old, operation="UPDATE", **request)


def bind(resource: str, user: str = "system:kube-scheduler", **metadata: object) -> Json:
    binding = {"kind": "Binding", "metadata": {"name": "p", **metadata}, "target": {"name": "n"}}
    return review(binding, resource=resource, kind="Binding", user=user)


def refusal(body: Json, resource_config: ResourceConfig = RULES.resource_config) -> str | None:
    try:
        validation.validate(reviews.parse(encoded(body)), CONTROLLER, resource_config)
    except InvalidRequestError as error:
        return reviews.message(error.errors)
    return None


def test_a_change_that_is_not_the_users_to_make_is_forbidden(webhook: Webhook) -> None:
    body = update(gpu_pod(), gpu_pod(annotations={"gpushare.dev/gpus": "2"}))
    message = f"metadata.annotations[gpushare.dev/gpus]: {FIXED}"
    assert webhook.ask("/validate", body) == denial(403, "Forbidden", message)


@pytest.mark.parametrize("key", RESERVED)
@pytest.mark.parametrize("resource", SUBRESOURCES)
def test_a_tenant_cannot_add_change_or_remove_a_reserved_annotation(key: str, resource: str) -> None:
    without, first, second = gpu_pod(), gpu_pod(annotations={key: "1"}), gpu_pod(annotations={key: "2"})
    for old, new in ((without, first), (first, second), (first, without)):
        for user in ("alice", "system:node:n", CONTROLLER.replace("gpushare-system", "team-a")):
            message = f"metadata.annotations[{key}]: {LEAVE}"
            assert refusal(update(old, new, resource=resource, user=user)) == message
        assert refusal(update(old, new, resource=resource, user=CONTROLLER)) is None


@pytest.mark.parametrize("user", ["alice", CONTROLLER])
@pytest.mark.parametrize("resource", SUBRESOURCES)
@pytest.mark.parametrize("spec", [container("a"), container("a", "3")])
def test_no_one_chooses_devices_by_cdi_once_the_pod_exists(spec: Json, resource: str, user: str) -> None:
    key = "nvidia.cdi.k8s.io/x"
    without, first, second = (pod(spec, annotations=each) for each in ({}, {key: "1"}, {key: "2"}))
    later = CDI + "leave it out, and create a new pod that asks by resources.limits"
    for old, new in ((without, first), (first, second)):
        assert refusal(update(old, new, user=user, resource=resource)) == later
    for new in (first, without):
        assert refusal(update(first, new, user=user, resource=resource)) is None


def test_other_changes_of_a_bound_pod_are_free() -> None:
    marks = {"gpushare.dev/allocation": "{}", "devices.gpushare.dev/a": "GPU-1"}
    old = gpu_pod(annotations=marks, labels={"gpushare.dev/managed": "true"})
    more = {"x": "y", "team.example.com/devices.gpushare.dev": "z"}
    new = gpu_pod(annotations={**marks, **more}, labels={"gpushare.dev/managed": "true", "app": "b"})
    assert refusal(update(old, new)) is None
    assert refusal(update(gpu_pod(), gpu_pod(labels={"gpushare.dev/managed": "true"}))) is None
    old = {"kind": "EphemeralContainers", "metadata": {"name": "p"}, "ephemeralContainers": []}
    new = {**old, "metadata": {"name": "p", "annotations": {"gpushare.dev/gpus": "2"}}}
    assert refusal(update(old, new, resource="pods/ephemeralcontainers", kind="EphemeralContainers")) is None


def test_all_errors_of_a_change_come_at_once_and_the_managed_label_stays() -> None:
    new = gpu_pod(annotations={"memory.gpushare.dev/a": "1", "devices.gpushare.dev/a": "G", "gpushare.dev/gpus": "2"})
    assert refusal(update(gpu_pod(), new)) == (
        f"metadata.annotations[devices.gpushare.dev/a]: {LEAVE}"
        f" | metadata.annotations[memory.gpushare.dev/a]: {LEAVE}"
        f" | metadata.annotations[gpushare.dev/gpus]: {FIXED}"
    )
    for labels in [{}, {"gpushare.dev/managed": "false"}]:
        old, new = gpu_pod(labels={"gpushare.dev/managed": "true"}), gpu_pod(labels=labels)
        assert refusal(update(old, new)) == f"metadata.labels[gpushare.dev/managed]: {LEAVE}"
        assert refusal(update(old, new, user=CONTROLLER)) is None


@pytest.mark.parametrize("user", ["alice", CONTROLLER])
@pytest.mark.parametrize(
    ("field", "key"),
    [*(("annotations", key) for key in REQUEST), ("labels", "aliyun.com/gpu-count"), ("labels", "nano-gpu/assume")],
)
def test_a_request_is_fixed_once_the_pod_exists(field: str, key: str, user: str) -> None:
    old = gpu_pod(**{field: {key: "1"}})
    for new in (gpu_pod(), gpu_pod(**{field: {key: "2"}})):
        assert refusal(update(old, new, user=user)) == f"metadata.{field}[{key}]: {FIXED}"


@pytest.mark.parametrize("user", ["alice", CONTROLLER])
@pytest.mark.parametrize("key", ["gpushare.dev/overridden", "gpushare.dev/hand-over"])
def test_a_mark_stays_as_the_webhook_wrote_it(key: str, user: str) -> None:
    old = gpu_pod(annotations={key: "a"})
    message = f"metadata.annotations[{key}]: only gpushare-webhook may write it, when the pod is created"
    for new in (gpu_pod(), gpu_pod(annotations={key: "b"})):
        assert refusal(update(old, new, user=user)) == f"{message}; leave it as it is"
    assert refusal(review(old)) is None


@pytest.mark.parametrize(
    ("asked", "is_fixed"), [({"percent": 20}, True), ({"mem": 3, "core": 5}, True), ({"gpu": 1}, False), ({}, None)]
)
def test_every_kind_of_request_is_fixed_and_whole_gpus_only_if_they_are_ours(
    asked: Json, is_fixed: bool | None
) -> None:
    key = "gpushare.dev/gpu-model"
    body = update(pod(asking("a", **asked)), pod(asking("a", **asked), annotations={key: "T4"}))
    message = f"metadata.annotations[{key}]: {FIXED}"
    assert refusal(body) == (message if is_fixed else None)
    assert refusal(body, WHOLE.resource_config) == (None if is_fixed is None else message)


def test_a_new_pod_with_a_binding_is_refused_also_where_mutation_was_passed_by() -> None:
    marks = {"devices.gpushare.dev/a": "GPU-1", "ALIYUN_COM_GPU_MEM_POD": "3", "nano-gpu/container-a": "0"}
    forged = gpu_pod(annotations=marks)
    assert refusal(review(forged)) == " | ".join(
        f"metadata.annotations[{key}]: only gpushare-controller may write it; remove it" for key in sorted(marks)
    )
    assert refusal(review(forged, user=CONTROLLER)) is None
    assert refusal(review(gpu_pod(annotations=CHOSEN))) == AT_ONCE


@BINDINGS
@pytest.mark.parametrize("key", [*RESERVED, *REQUEST, "gpushare.dev/overridden", "gpushare.dev/hand-over"])
def test_only_the_controller_binds_with_gpus(resource: str, key: str) -> None:
    expected = f"metadata.annotations[{key}]: only gpushare-controller may write it in a Binding; remove it"
    assert refusal(bind(resource, annotations={key: "1"})) == expected
    assert refusal(bind(resource, CONTROLLER, annotations={key: "1"})) is None


@BINDINGS
@pytest.mark.parametrize("key", ["aliyun.com/gpu-count", "nano-gpu/assume", "gpushare.dev/managed"])
def test_no_one_changes_a_request_by_a_label_of_a_binding(key: str, resource: str) -> None:
    """From 1.35 on the API server writes a Binding's labels on the pod, over its own."""
    expected = f"metadata.labels[{key}]: it would change the pod's request or its mark; remove it"
    assert refusal(bind(resource, labels={key: "2"})) == expected


@BINDINGS
def test_no_one_chooses_devices_by_cdi_in_a_binding_and_other_schedulers_bind_as_always(resource: str) -> None:
    assert refusal(bind(resource, annotations=CHOSEN)) == AT_ONCE
    assert refusal(bind(resource, annotations={"x": "y"}, labels={"x": "y"})) is None
    assert refusal(review({"kind": "Binding"}, resource=resource, kind="Binding")) is None


@pytest.mark.parametrize(
    ("old", "new", "path"), [({}, None, "object"), (None, {}, "object"), ({}, {"metadata": []}, "metadata")]
)
def test_objects_that_cannot_be_read_are_refused(old: object, new: object, path: str) -> None:
    assert (refusal(update(old, new)) or "").startswith(f"{path}: expected an object, found ")
