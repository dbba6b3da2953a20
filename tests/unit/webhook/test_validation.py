"""Who may write a binding, and what of a request may still change."""

from typing import Any

import pytest

from testing.reviews import CONTROLLER, Json, asking, container, pod, review
from tests.unit.webhook.conftest import Webhook

LEAVE = "only gpushare-controller may change it; leave it as it is"
FIXED = "part of the GPU request, which is fixed when the pod is created; create a new pod"
RESERVED = [
    "devices.gpushare.dev/a",
    "memory.gpushare.dev/a",
    "index.gpushare.dev/a",
    "capacity.gpushare.dev/a",
    "gpushare.dev/allocation",
    "gpushare.dev/bound-late",
    "nano-gpu/assume",
    "nano-gpu/container-a",
    "ALIYUN_COM_GPU_MEM_IDX",
    "ALIYUN_COM_GPU_MEM_ASSIGNED",
    "scheduler.framework.gpushare.allocation",
]
REQUEST = [
    "gpushare.dev/gpus",
    "gpushare.dev/gpu-policy",
    "gpushare.dev/gpu-model",
    "gpushare.dev/gpu-uuid",
    "gpushare.dev/min-gpu-memory",
    "gpushare.dev/limit",
    "gpushare.dev/mig",
    "gpushare.dev/same-gpu-as",
    "gpushare.dev/other-gpu-than",
    "gpushare.dev/limits-are-totals",
]
SUBRESOURCES = ["pods", "pods/status", "pods/ephemeralcontainers", "pods/resize"]


def gpu_pod(*, labels: dict[str, str] | None = None, annotations: dict[str, str] | None = None) -> Json:
    return pod(container("a", "3"), labels=labels, annotations=annotations)


def update(old: Json, new: Json, **request: Any) -> Json:
    return review(new, old=old, operation="UPDATE", **request)


def refusal(webhook: Webhook, body: Json) -> str | None:
    response = webhook.ask("/validate", body)
    assert "patch" not in response
    if response["allowed"]:
        return None
    status = response["status"]
    assert (status["code"], status["reason"]) == (403, "Forbidden")
    return str(status["message"])


@pytest.mark.parametrize("key", RESERVED)
@pytest.mark.parametrize("resource", SUBRESOURCES)
def test_a_tenant_cannot_add_change_or_remove_a_reserved_annotation(webhook: Webhook, key: str, resource: str) -> None:
    without, first, second = gpu_pod(), gpu_pod(annotations={key: "1"}), gpu_pod(annotations={key: "2"})
    for old, new in ((without, first), (first, second), (first, without)):
        message = f"metadata.annotations[{key}]: {LEAVE}"
        assert refusal(webhook, update(old, new, resource=resource)) == message
        assert refusal(webhook, update(old, new, resource=resource, user=CONTROLLER)) is None


def test_the_controllers_name_in_another_namespace_is_no_one(webhook: Webhook) -> None:
    body = update(
        gpu_pod(),
        gpu_pod(annotations={"gpushare.dev/allocation": "{}"}),
        user="system:serviceaccount:team-a:gpushare-controller",
    )
    assert refusal(webhook, body) == f"metadata.annotations[gpushare.dev/allocation]: {LEAVE}"


CDI = "metadata.annotations[nvidia.cdi.k8s.io/x]: it would choose devices past the scheduler; "
LATER = CDI + "leave it out, and create a new pod that asks by resources.limits"
AT_ONCE = CDI + "remove it, and ask for GPUs by resources.limits"


@pytest.mark.parametrize("user", ["alice", "system:node:n", CONTROLLER])
@pytest.mark.parametrize("resource", SUBRESOURCES)
@pytest.mark.parametrize("spec", [container("a"), container("a", "3")])
def test_no_one_chooses_devices_by_cdi_once_the_pod_exists(
    webhook: Webhook, spec: Json, resource: str, user: str
) -> None:
    without, first, second = (
        pod(spec, annotations=each) for each in ({}, {"nvidia.cdi.k8s.io/x": "1"}, {"nvidia.cdi.k8s.io/x": "2"})
    )
    for old, new in ((without, first), (first, second)):
        assert refusal(webhook, update(old, new, user=user, resource=resource)) == LATER
    for new in (first, without):
        assert refusal(webhook, update(first, new, user=user, resource=resource)) is None


@pytest.mark.parametrize("resource", ["pods/binding", "bindings"])
@pytest.mark.parametrize("key", ["aliyun.com/gpu-count", "nano-gpu/assume", "gpushare.dev/managed"])
def test_no_one_changes_a_request_by_a_label_of_a_binding(webhook: Webhook, key: str, resource: str) -> None:
    """From 1.35 on the API server writes a Binding's labels on the pod, over its own."""
    binding = {"kind": "Binding", "metadata": {"name": "p", "labels": {key: "2"}}, "target": {"name": "n"}}
    body = review(binding, resource=resource, kind="Binding", user="system:kube-scheduler")
    expected = f"metadata.labels[{key}]: it would change the pod's request or its mark; remove it"
    assert refusal(webhook, body) == expected


@pytest.mark.parametrize("resource", ["pods/binding", "bindings"])
def test_no_one_chooses_devices_by_cdi_in_a_binding(webhook: Webhook, resource: str) -> None:
    binding = {"metadata": {"name": "p", "annotations": {"nvidia.cdi.k8s.io/x": "nvidia.com/gpu=all"}}}
    body = review(binding, resource=resource, kind="Binding", user="system:kube-scheduler")
    assert refusal(webhook, body) == AT_ONCE


def test_a_new_pod_that_chooses_devices_by_cdi_is_refused_also_where_mutation_was_passed_by(webhook: Webhook) -> None:
    assert refusal(webhook, review(gpu_pod(annotations={"nvidia.cdi.k8s.io/x": "nvidia.com/gpu=all"}))) == AT_ONCE


def test_other_changes_of_a_bound_pod_are_free(webhook: Webhook) -> None:
    marks = {"gpushare.dev/allocation": "{}", "devices.gpushare.dev/a": "GPU-1"}
    old = gpu_pod(annotations=marks, labels={"gpushare.dev/managed": "true"})
    new = gpu_pod(annotations={**marks, "x": "y"}, labels={"gpushare.dev/managed": "true", "app": "b"})
    assert refusal(webhook, update(old, new)) is None


def test_all_errors_of_a_change_come_at_once(webhook: Webhook) -> None:
    new = gpu_pod(annotations={"memory.gpushare.dev/a": "1", "devices.gpushare.dev/a": "G", "gpushare.dev/gpus": "2"})
    assert refusal(webhook, update(gpu_pod(), new)) == (
        f"metadata.annotations[devices.gpushare.dev/a]: {LEAVE}"
        f" | metadata.annotations[memory.gpushare.dev/a]: {LEAVE}"
        f" | metadata.annotations[gpushare.dev/gpus]: {FIXED}"
    )


@pytest.mark.parametrize("labels", [{}, {"gpushare.dev/managed": "false"}])
def test_the_managed_label_stays(webhook: Webhook, labels: dict[str, str]) -> None:
    old, new = gpu_pod(labels={"gpushare.dev/managed": "true"}), gpu_pod(labels=labels)
    assert refusal(webhook, update(old, new)) == f"metadata.labels[gpushare.dev/managed]: {LEAVE}"
    assert refusal(webhook, update(old, new, user=CONTROLLER)) is None


def test_a_pod_from_before_the_webhook_may_get_the_managed_label(webhook: Webhook) -> None:
    assert refusal(webhook, update(gpu_pod(), gpu_pod(labels={"gpushare.dev/managed": "true"}))) is None


@pytest.mark.parametrize("user", ["alice", CONTROLLER])
@pytest.mark.parametrize("key", REQUEST)
def test_a_request_is_fixed_once_the_pod_exists(webhook: Webhook, key: str, user: str) -> None:
    old, new = gpu_pod(annotations={key: "1"}), gpu_pod(annotations={key: "2"})
    assert refusal(webhook, update(old, new, user=user)) == f"metadata.annotations[{key}]: {FIXED}"
    assert refusal(webhook, update(old, gpu_pod(), user=user)) == f"metadata.annotations[{key}]: {FIXED}"


@pytest.mark.parametrize("key", ["aliyun.com/gpu-count", "nano-gpu/assume"])
def test_so_are_the_labels_that_are_part_of_it(webhook: Webhook, key: str) -> None:
    old, new = gpu_pod(labels={key: "1"}), gpu_pod(labels={key: "3"})
    for after in (new, gpu_pod()):
        assert refusal(webhook, update(old, after)) == f"metadata.labels[{key}]: {FIXED}"


@pytest.mark.parametrize("user", ["alice", CONTROLLER])
def test_the_mark_for_the_event_stays_as_the_webhook_wrote_it(webhook: Webhook, user: str) -> None:
    key = "gpushare.dev/overridden"
    old = gpu_pod(annotations={key: "a"})
    message = f"metadata.annotations[{key}]: only gpushare-webhook may write it, when the pod is created"
    for new in (gpu_pod(), gpu_pod(annotations={key: "b"})):
        assert refusal(webhook, update(old, new, user=user)) == f"{message}; leave it as it is"
    assert refusal(webhook, review(old)) is None


@pytest.mark.parametrize(
    ("asked", "is_fixed"), [({"percent": 20}, True), ({"mem": 3, "core": 5}, True), ({"gpu": 1}, False)]
)
def test_every_kind_of_request_is_fixed_and_whole_gpus_only_if_they_are_ours(
    webhook: Webhook, whole: Webhook, asked: dict[str, int], is_fixed: bool
) -> None:
    key = "gpushare.dev/gpu-model"
    body = update(pod(asking("a", **asked)), pod(asking("a", **asked), annotations={key: "T4"}))
    message = f"metadata.annotations[{key}]: {FIXED}"
    assert refusal(webhook, body) == (message if is_fixed else None)
    assert refusal(whole, body) == message


def test_the_controller_binds_late_by_a_patch(webhook: Webhook) -> None:
    """And no one else does, not even the kubelet of the pod's node."""
    written = dict.fromkeys(RESERVED, "x")
    old, new = (
        pod(asking("a", percent=20), nodeName="n"),
        pod(asking("a", percent=20), annotations=written, nodeName="n"),
    )
    assert refusal(webhook, update(old, new, user=CONTROLLER)) is None
    assert refusal(webhook, update(old, new, user="system:node:n")) == " | ".join(
        f"metadata.annotations[{key}]: {LEAVE}" for key in sorted(RESERVED)
    )


def test_a_pod_without_a_request_may_change_such_marks(webhook: Webhook) -> None:
    old, new = pod(container()), pod(container(), annotations={"gpushare.dev/gpus": "2"})
    assert refusal(webhook, update(old, new)) is None


def test_a_new_pod_with_a_binding_is_refused_also_where_mutation_was_passed_by(webhook: Webhook) -> None:
    marks = {"devices.gpushare.dev/a": "GPU-1", "ALIYUN_COM_GPU_MEM_POD": "3", "nano-gpu/container-a": "0"}
    forged = gpu_pod(annotations=marks)
    assert refusal(webhook, review(forged)) == (
        "metadata.annotations[ALIYUN_COM_GPU_MEM_POD]: only gpushare-controller may write it; remove it"
        " | metadata.annotations[devices.gpushare.dev/a]: only gpushare-controller may write it; remove it"
        " | metadata.annotations[nano-gpu/container-a]: only gpushare-controller may write it; remove it"
    )
    assert refusal(webhook, review(forged, user=CONTROLLER)) is None
    assert refusal(webhook, review(gpu_pod())) is None


@pytest.mark.parametrize("resource", ["pods/binding", "bindings"])
@pytest.mark.parametrize("key", [*RESERVED, *REQUEST, "gpushare.dev/overridden"])
def test_only_the_controller_binds_with_gpus(webhook: Webhook, resource: str, key: str) -> None:
    binding = {"kind": "Binding", "metadata": {"name": "p", "annotations": {key: "1"}}, "target": {"name": "n"}}
    body = review(binding, resource=resource, kind="Binding", user="system:kube-scheduler")
    expected = f"metadata.annotations[{key}]: only gpushare-controller may write it in a Binding; remove it"
    assert refusal(webhook, body) == expected
    body["request"]["userInfo"]["username"] = CONTROLLER
    assert refusal(webhook, body) is None


@pytest.mark.parametrize("resource", ["pods/binding", "bindings"])
@pytest.mark.parametrize("metadata", [{"name": "p"}, {"name": "p", "annotations": {"x": "y"}}, None])
def test_other_schedulers_bind_as_always(webhook: Webhook, resource: str, metadata: object) -> None:
    binding = {"kind": "Binding", "metadata": metadata, "target": {"name": "n"}}
    assert refusal(webhook, review(binding, resource=resource, kind="Binding", user="system:kube-scheduler")) is None


def test_ephemeral_containers_of_old_servers_carry_their_own_kind(webhook: Webhook) -> None:
    old = {"kind": "EphemeralContainers", "metadata": {"name": "p"}, "ephemeralContainers": []}
    new = {**old, "metadata": {"name": "p", "annotations": {"gpushare.dev/gpus": "2"}}}
    body = update(old, new, resource="pods/ephemeralcontainers", kind="EphemeralContainers")
    assert refusal(webhook, body) is None


@pytest.mark.parametrize(
    ("operation", "resource"),
    [("DELETE", "pods"), ("CONNECT", "pods/exec"), ("UPDATE", "nodes"), ("CREATE", "pods/eviction")],
)
def test_what_is_none_of_its_business_is_admitted(webhook: Webhook, operation: str, resource: str) -> None:
    for path in ("/validate", "/mutate"):
        response = webhook.ask(path, review(None, operation=operation, resource=resource))
        assert response == {"uid": "u-1", "allowed": True}


def test_a_resource_of_another_group_is_none_of_its_business(webhook: Webhook) -> None:
    body = review([], resource="pods")
    body["request"]["resource"]["group"] = "metrics.k8s.io"
    assert webhook.ask("/validate", body) == webhook.ask("/mutate", body) == {"uid": "u-1", "allowed": True}


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ({}, None, "object: expected an object, found nothing; see kubectl explain pod"),
        (None, {}, "object: expected an object, found nothing; see kubectl explain pod"),
        (
            {},
            {"metadata": {"annotations": []}},
            "metadata.annotations: expected an object, found a list; see kubectl explain pod.metadata.annotations",
        ),
    ],
)
def test_objects_that_cannot_be_read_are_refused(webhook: Webhook, old: object, new: object, message: str) -> None:
    assert refusal(webhook, review(new, old=old, operation="UPDATE")) == message
