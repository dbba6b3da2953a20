"""What the API server refuses by itself, without the webhook: pods that could see GPUs which no one granted."""

from collections.abc import Mapping
from typing import Any

import pytest

from gpushare import names
from testing.manifests import tree
from testing.manifests.tree import Json
from testing.reviews import CHOOSING, RULES, asking, container, from_annotation
from testing.reviews import pod as new_pod
from tests.manifests import cel
from webhook import mutation
from webhook.mutation import Mutated

NEW = tree.objects("servers/1.30")
POLICY = tree.one(NEW, "ValidatingAdmissionPolicy", names.ISOLATION_POLICY)["spec"]
UNCHANGED = (
    "a pod with a RuntimeClass of NVIDIA that gpushare-webhook has not completed could see every GPU of its node;"
    " create it again when the webhook runs, or remove spec.runtimeClassName"
)
CHOSEN = "a new pod must not choose devices by annotations that start with devices.gpushare.dev/; remove them"
DEBUGGER = (
    "an ephemeral container that gpushare-webhook has not completed could see every GPU of the node; try again when the"
    " webhook runs"
)
BELOW = "below /var/run/nvidia-container-devices choose devices past the scheduler; remove them"
VOID: Json = {"name": names.ENV_VISIBLE_DEVICES, "value": "void"}
ALL: Json = {"name": names.ENV_VISIBLE_DEVICES, "value": "all"}
GRANTED = from_annotation(names.ENV_VISIBLE_DEVICES, f"{names.PREFIX_DEVICES}a")


def pod(
    *env: Json, limits: Mapping[str, str] | None = None, annotations: dict[str, str] | None = None, **spec: object
) -> Json:
    """One container, under the RuntimeClass nvidia, as the API server stores it: what is empty is not there."""
    only: Json = {"name": "a", "image": "cuda"}
    if env:
        only["env"] = list(env)
    if limits:
        only["resources"] = {"limits": dict(limits)}
    made = new_pod(only, annotations=annotations)
    return {**made, "spec": {**made["spec"], "runtimeClassName": "nvidia", **spec}}


def refusals(obj: Json, old: Json | None = None) -> list[str]:
    """Messages of the policy, of those that the API server would check."""
    request = {"operation": "CREATE" if old is None else "UPDATE", "resource": {"group": "", "resource": "pods"}}
    scope: dict[str, Any] = {"object": obj, "oldObject": old, "request": request}
    return cel.refusals(POLICY, scope)


def test_it_is_asked_about_new_pods_and_new_ephemeral_containers_and_nothing_passes_without() -> None:
    asked = {(*rule["operations"], *rule["resources"]) for rule in POLICY["matchConstraints"]["resourceRules"]}
    assert asked == {("CREATE", "pods"), ("UPDATE", "pods/ephemeralcontainers")}
    assert POLICY["failurePolicy"] == "Fail"


@pytest.mark.parametrize("runtime", ["nvidia", "nvidia-cdi", "nvidia-legacy", "nvidia-experimental"])
def test_a_pod_under_a_runtime_of_nvidia_needs_the_webhook(runtime: str) -> None:
    assert refusals(pod(runtimeClassName=runtime)) == [UNCHANGED]


@pytest.mark.parametrize("runtime", ["runc", "gvisor", "nvidia-other"])
def test_a_pod_under_another_runtime_is_not_looked_at(runtime: str) -> None:
    assert refusals(pod(ALL, runtimeClassName=runtime)) == []
    assert refusals(new_pod({"name": "a"})) == []


@pytest.mark.parametrize(
    "obj",
    [
        pod(VOID),
        pod(GRANTED),
        pod(GRANTED, nodeName="node-a", annotations={"x": "y", "gpushare.dev/gpus": "2"}),
        pod(limits={"nvidia.com/mig-1g.5gb": "1"}),
        pod({"name": "X", "value": "all"}, VOID),
    ],
)
def test_a_pod_that_sees_what_it_was_granted_passes(obj: Json) -> None:
    assert refusals(obj) == []
    assert refusals({**obj, "spec": {**obj["spec"], "initContainers": obj["spec"]["containers"]}}) == []


@pytest.mark.parametrize(
    "wanted",
    [
        new_pod(asking("a", mem=3), container("b"), runtimeClassName="nvidia"),
        new_pod(
            asking("a", percent=20), init=[container("i", env=[ALL])], runtimeClassName="nvidia", nodeName="node-a"
        ),
        new_pod(container("a"), runtimeClassName="nvidia", annotations={f"{names.PREFIX_DEVICES}a": "all"}),
    ],
)
def test_what_the_webhook_makes_of_a_pod_passes(wanted: Json) -> None:
    assert refusals(wanted) != []
    decision = mutation.mutate(wanted, RULES)
    assert isinstance(decision, Mutated)
    stored = {**decision.pod, "metadata": {key: value for key, value in decision.pod["metadata"].items() if value}}
    assert refusals(stored) == []


@pytest.mark.parametrize(
    "obj",
    [
        pod(ALL),
        pod(VOID, ALL),
        pod(GRANTED, VOID),
        pod(from_annotation(names.ENV_VISIBLE_DEVICES, "devices.gpushare.dev/b")),
        pod(from_annotation(names.ENV_VISIBLE_DEVICES, "mine")),
        pod({"name": names.ENV_VISIBLE_DEVICES, "valueFrom": {"configMapKeyRef": {"name": "mine", "key": "x"}}}),
        pod(limits={"nvidia.com/gpu": "0"}),
        pod(limits={"example.com/gpu": "1"}),
        pod(limits={"nvidia.com/hostdev": "1"}),
        pod(limits={"nvidia.com/gpux": "1"}),
        pod(ALL, limits={"nvidia.com/gpu": "1"}),
    ],
)
def test_a_pod_that_could_see_more_is_refused(obj: Json) -> None:
    assert refusals(obj) == [UNCHANGED]
    void = new_pod({"name": "b", "env": [VOID]}, init=obj["spec"]["containers"], runtimeClassName="nvidia")
    assert refusals(void) == [UNCHANGED]


@pytest.mark.parametrize("key", ["devices.gpushare.dev/a", "devices.gpushare.dev/other"])
def test_a_new_pod_does_not_bring_the_devices_that_it_is_to_see(key: str) -> None:
    for entry in (GRANTED, VOID):
        assert refusals(pod(entry, annotations={"x": "y", key: "all"})) == [CHOSEN]


@pytest.mark.parametrize("resource", ["nvidia.com/gpu", "nvidia.com/gpu.shared", "nvidia.com/mig-1g.5gb"])
def test_a_container_of_another_plugin_comes_to_its_node_by_a_scheduler(resource: str) -> None:
    limits = {resource: "1"}
    assert refusals(pod(limits=limits, nodeName="")) == []
    assert refusals(pod(limits=limits, nodeName="node-a")) == [UNCHANGED]
    init = [{"name": "i", "resources": {"limits": limits}}]
    assert refusals(new_pod({"name": "a", "env": [VOID]}, init=init, runtimeClassName="nvidia", nodeName="node-a")) == [
        UNCHANGED
    ]


@pytest.mark.parametrize("limits", [{}, {"nvidia.com/gpu": "1"}])
def test_ephemeral_containers_of_running_pods_see_no_gpu(limits: dict[str, str]) -> None:
    """The pod has its node and its binding then."""
    marks = {"devices.gpushare.dev/a": "GPU-1"}
    old = pod(*([] if limits else [GRANTED]), limits=limits, nodeName="node-a", annotations=marks)
    for env, expected in (([VOID], []), ([], [DEBUGGER]), ([ALL], [DEBUGGER]), ([GRANTED], [DEBUGGER])):
        debug = {"name": "d", "env": env} if env else {"name": "d"}
        new = {**old, "spec": {**old["spec"], "ephemeralContainers": [debug]}}
        assert refusals(new, old) == expected


@pytest.mark.parametrize("path", CHOOSING)
def test_a_mount_that_chooses_devices_is_refused_also_while_the_webhook_is_away(path: str) -> None:
    mounting: Json = {"name": "b", "env": [VOID], "volumeMounts": [{"name": "x", "mountPath": "/data"}]}
    assert refusals(pod(VOID, initContainers=[mounting])) == []
    choosing: Json = {**mounting, "volumeMounts": [*mounting["volumeMounts"], {"name": "v", "mountPath": path}]}
    assert refusals(pod(VOID, initContainers=[choosing])) == [f"mounts {BELOW}"]
    assert refusals(pod(VOID, containers=[choosing])) == [f"mounts {BELOW}"]
    before = pod(VOID, containers=[choosing])
    assert refusals(pod(VOID, containers=[choosing], ephemeralContainers=[mounting]), before) == []
    after = pod(VOID, ephemeralContainers=[choosing])
    assert refusals(after, pod(VOID)) == [f"mounts of an ephemeral container {BELOW}"]
