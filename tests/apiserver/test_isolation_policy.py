"""What the API server refuses by itself, without the webhook: pods that could see GPUs which no one granted."""

from functools import partial
from typing import Any

import pytest

from gpushare import names
from gpushare.kube import api as kube
from tests.apiserver.policies import (
    ALL,
    OF_NVIDIA,
    OTHERS,
    TEAM,
    VOID,
    admit,
    annotated,
    container,
    deny,
    devices_of,
    pod,
    under,
)
from tests.apiserver.server import Json, Server, refused_by

pytestmark = pytest.mark.usefixtures("without_class_policy")
POLICY = names.ISOLATION_POLICY
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
MIG = "nvidia.com/mig-1g.5gb"
SECRET: Json = {"secretKeyRef": {"name": "mine", "key": "x"}}


def nvidia(*containers: Json, init: tuple[Json, ...] = (), **fields: Any) -> Json:
    return under("nvidia", pod(*containers, init=init, **fields))


@pytest.mark.parametrize("runtime", ["nvidia", *OF_NVIDIA])
def test_a_pod_under_a_runtime_of_nvidia_needs_the_webhook(policies: Server, runtime: str) -> None:
    assert UNCHANGED in deny(policies, POLICY, under(runtime, pod()))


@pytest.mark.parametrize("runtime", [*OTHERS, None])
def test_a_pod_under_another_runtime_is_not_looked_at(policies: Server, runtime: str | None) -> None:
    admit(policies, under(runtime, pod(container("a", ALL))))


COMPLETED = {
    "void": container("a", VOID),
    "granted": container("a", devices_of("a")),
    "of-another-plugin": container("a", limits={MIG: 1}),
    "other-variables": container("a", {"name": "X", "value": "all"}, VOID),
}


@pytest.mark.parametrize("name", COMPLETED)
def test_a_container_that_sees_what_it_was_granted_passes(policies: Server, name: str) -> None:
    admit(policies, nvidia(COMPLETED[name], init=({**COMPLETED["void"], "name": "i"},)))
    admit(policies, nvidia({**COMPLETED["void"], "name": "b"}, init=(COMPLETED[name],)))


OPEN = {
    "all": container("a", ALL),
    "then-all": container("a", VOID, ALL),
    "then-void": container("a", devices_of("a"), VOID),
    "of-a-neighbour": container("a", devices_of("b")),
    "of-the-first": container("c", devices_of("a")),
    "an-annotation": container("a", annotated("mine")),
    "a-secret": container("a", {"name": names.ENV_VISIBLE_DEVICES, "valueFrom": SECRET}),
    "zero": container("a", limits={names.GPU: 0}),
    "other-resource": container("a", limits={"example.com/gpu": 1}),
    "hostdev": container("a", limits={"nvidia.com/hostdev": 1}),
    "longer-name": container("a", limits={"nvidia.com/gpux": 1}),
    "another-plugin-and-all": container("a", ALL, limits={names.GPU: 1}),
}


@pytest.mark.parametrize("name", OPEN)
def test_a_container_that_could_see_more_is_refused(policies: Server, name: str) -> None:
    assert UNCHANGED in deny(policies, POLICY, nvidia(OPEN[name]))
    assert UNCHANGED in deny(policies, POLICY, nvidia(container("b", VOID), init=(OPEN[name],)))


@pytest.mark.parametrize("key", ["devices.gpushare.dev/a", "devices.gpushare.dev/other"])
def test_a_new_pod_does_not_bring_the_devices_that_it_is_to_see(policies: Server, key: str) -> None:
    for entry in (devices_of("a"), VOID):
        assert CHOSEN in deny(policies, POLICY, nvidia(container("a", entry), annotations={key: "all"}))


@pytest.mark.parametrize("resource", [names.GPU, "nvidia.com/gpu.shared", MIG])
def test_a_container_of_another_plugin_comes_to_its_node_by_a_scheduler(policies: Server, resource: str) -> None:
    theirs = container("a", limits={resource: 1})
    admit(policies, nvidia(theirs))
    assert UNCHANGED in deny(policies, POLICY, nvidia(theirs, nodeName="node-a"))
    assert UNCHANGED in deny(policies, POLICY, nvidia(container("b", VOID), init=(theirs,), nodeName="node-a"))


@pytest.mark.parametrize("theirs", [False, True])
def test_an_ephemeral_container_of_a_running_pod_sees_no_gpu(policies: Server, theirs: bool) -> None:
    only = container("a", limits={MIG: 1}) if theirs else container("a", devices_of("a"))
    policies.create_pod(TEAM, {**nvidia(only), "metadata": {"name": "runs"}})
    target = {"metadata": {"name": "runs"}, "target": {"kind": "Node", "name": "node-a"}}
    policies.api.create(f"{kube.pod_path(TEAM, 'runs')}/binding", target)
    policies.api.patch(kube.pod_path(TEAM, "runs"), {"metadata": {"annotations": {"devices.gpushare.dev/a": "GPU-1"}}})

    def debug(*env: Json, **fields: object) -> object:
        body = {"spec": {"ephemeralContainers": [{"name": "d", "image": "x", "env": list(env), **fields}]}}
        path = kube.pod_path(TEAM, "runs", "ephemeralcontainers")
        return policies.api.patch(path, body, kind=kube.PatchKind.STRATEGIC, params={"dryRun": "All"})

    debug(VOID)
    for env in ((), (ALL,), (devices_of("a"),), (VOID, ALL)):
        assert DEBUGGER in refused_by(POLICY, partial(debug, *env))
    policies.delete_pod(TEAM, "runs")


CHOOSING = [
    "/var/run/nvidia-container-devices",
    "/var/run/nvidia-container-devices/all",
    "/var/run/nvidia-container-devicesall",  # NVIDIA's runtime needs no slash there
    "/var/run//x/../nvidia-container-devices/cdi/nvidia.com/gpu/0",
    "var/run/nvidia-container-devices/",
]


@pytest.mark.parametrize("path", CHOOSING)
def test_a_mount_that_chooses_devices_is_refused(policies: Server, path: str) -> None:
    volumes = [{"name": "v", "emptyDir": {}}]
    harmless = container("b", VOID, volumeMounts=[{"name": "v", "mountPath": "/data"}])
    admit(policies, nvidia(harmless, volumes=volumes))
    harmful = container("h", VOID, volumeMounts=[{"name": "v", "mountPath": "/data"}, {"name": "v", "mountPath": path}])
    assert f"mounts {BELOW}" in deny(policies, POLICY, nvidia(harmful, volumes=volumes))
    assert f"mounts {BELOW}" in deny(policies, POLICY, nvidia(harmless, init=(harmful,), volumes=volumes))
