"""What the API server refuses by itself, without the webhook: amounts of GPUs whose sum would leave 64 bits, marks
by which runtimes and NVIDIA's NRI plugin choose devices, and pods that could see GPUs which no one granted.

test_tenant.py has all that a tenant tries; here is what else must be refused, and what must not be.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from gpushare import names, units
from gpushare.kube import api as kube
from localcluster.provision import Version
from testing import skips
from testing.reviews import ALL, VOID, visible
from tests.apiserver.policies import OF_NVIDIA, OTHERS, TEAM, admit, container, deny, pod, under
from tests.apiserver.server import Json, Server, refused_by

pytestmark = pytest.mark.usefixtures("without_class_policy")
MIG = "nvidia.com/mig-1g.5gb"
RESOURCES = [names.GPU, names.GPU_MEM, names.GPU_PERCENT, MIG, "nvidia.com/x", "aliyun.com/x"]


@pytest.mark.parametrize("resource", RESOURCES)
def test_an_amount_that_no_node_has_is_refused(policies: Server, resource: str) -> None:
    message = "a container asks for more of a GPU resource than any node can have; write a number up to"
    big = container("x", limits={resource: "10E"})
    for value in (pod(container("a"), big), pod(init=(big,)), pod(init=({**big, "restartPolicy": "Always"},))):
        assert f"{message} {units.MAX_UNITS}" in deny(policies, names.AMOUNTS_POLICY, value)


def test_what_a_node_may_have_passes(policies: Server) -> None:
    for amount in ("1", "1k", "1G", str(units.MAX_UNITS)):
        admit(policies, pod(container("a", limits={"cpu": "1", **dict.fromkeys(RESOURCES, amount)})))
    admit(policies, pod(container("a", limits={"example.com/x": "9E", "memory": "7Ei"})))


BY_CDI = "annotations of cdi.k8s.io or one of its subdomains choose devices past the scheduler; remove them"
KEY = "nvidia.cdi.k8s.io/pod"
OLD = "old"
RESIZE_SINCE = Version(1, 33)
MOST = 5_000
"""Annotations, far above what anyone writes."""


@pytest.fixture(scope="module")
def existing(policies: Server) -> Iterator[str]:
    """A pod from before the policy, with such an annotation."""
    exempt = f"/api/v1/namespaces/{TEAM}"
    policies.api.patch(exempt, {"metadata": {"labels": {names.LABEL_ISOLATION: "disabled"}}})
    policies.eventually("the namespace is exempt", lambda: created(policies, pod(name=OLD, annotations={KEY: "x"})))
    policies.api.patch(exempt, {"metadata": {"labels": {names.LABEL_ISOLATION: None}}})
    policies.eventually("it is not", lambda: not created(policies, pod(name="probe", annotations={KEY: "x"}), dry=True))
    yield OLD
    policies.delete_pod(TEAM, OLD)


def created(server: Server, value: Json, *, dry: bool = False) -> bool:
    try:
        (server.admitted if dry else server.create_pod)(TEAM, value)
    except kube.BadRequestError:
        return False
    return True


@pytest.mark.parametrize("key", ["x", "cdi.k8s.io", "notcdi.k8s.io/x", "cdi.k8s.io.example.com/x", "k8s.io/cdi.k8s.io"])
def test_annotations_that_choose_no_devices_pass(policies: Server, key: str) -> None:
    assert not names.is_cdi(key)
    admit(policies, pod(annotations={key: "x"}))


@pytest.mark.parametrize("path", [f"pods/{OLD}/binding", "bindings"])
def test_a_binding_brings_none(policies: Server, existing: str, path: str) -> None:
    def bind(**annotations: str) -> object:
        body = {"metadata": {"name": existing, "annotations": annotations}, "target": {"kind": "Node", "name": "n"}}
        return policies.api.create(f"/api/v1/namespaces/{TEAM}/{path}", body, params={"dryRun": "All"})

    assert BY_CDI in refused_by(names.CDI_POLICY, lambda: bind(**{KEY: "nvidia.com/gpu=0"}))
    bind(x="y")


@pytest.mark.parametrize("subresource", ["", "status", "ephemeralcontainers", "resize"])
def test_no_update_of_a_pod_adds_or_changes_one_and_what_was_there_may_stay_or_go(
    policies: Server, existing: str, subresource: str
) -> None:
    if subresource == "resize":
        skips.older(policies.version, RESIZE_SINCE, "it has no such subresource")
    path = kube.pod_path(TEAM, existing, subresource)

    def update(**annotations: str | None) -> Json:
        body = {"metadata": {"annotations": annotations}}
        return policies.api.patch(path, body, kind=kube.PatchKind.STRATEGIC, params={"dryRun": "All"})

    for refused in ({KEY: "other"}, {"cdi.k8s.io/x": "nvidia.com/gpu=all"}):
        if subresource in {"ephemeralcontainers", "resize"}:
            assert update(**refused)["metadata"]["annotations"] == {KEY: "x"}  # the API server leaves them as they are
        else:
            assert BY_CDI in refused_by(names.CDI_POLICY, partial(update, **refused))
    update(a="b")
    update(**{KEY: None})


def test_as_many_annotations_as_a_pod_can_have_cost_no_more_than_an_api_server_allows(policies: Server) -> None:
    """Every pod of the cluster comes here, and its status every time that it changes."""
    many = {f"a{i}": "" for i in range(MOST)}
    policies.create_pod(TEAM, pod(name="many", annotations=many))
    policies.api.patch(kube.pod_path(TEAM, "many", "status"), {"status": {"phase": "Running"}}, timeout_s=30)
    policies.api.patch(kube.pod_path(TEAM, "many"), {"metadata": {"annotations": {"b": ""}}}, timeout_s=30)
    policies.delete_pod(TEAM, "many")


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
    "granted": container("a", visible("a")),
    "of-another-plugin": container("a", limits={MIG: 1}),
    "other-variables": container("a", {"name": "X", "value": "all"}, VOID),
}
OPEN = {
    "then-void": container("a", visible("a"), VOID),
    "of-a-neighbour": container("a", visible("b")),
    "of-the-first": container("c", visible("a")),
    "other-resource": container("a", limits={"example.com/gpu": 1}),
    "hostdev": container("a", limits={"nvidia.com/hostdev": 1}),
    "longer-name": container("a", limits={"nvidia.com/gpux": 1}),
    "another-plugin-and-all": container("a", ALL, limits={names.GPU: 1}),
}


@pytest.mark.parametrize("name", COMPLETED)
def test_a_container_that_sees_what_it_was_granted_passes(policies: Server, name: str) -> None:
    admit(policies, nvidia(COMPLETED[name], init=({**COMPLETED["void"], "name": "i"},)))
    admit(policies, nvidia({**COMPLETED["void"], "name": "b"}, init=(COMPLETED[name],)))


@pytest.mark.parametrize("name", OPEN)
def test_a_container_that_could_see_more_is_refused(policies: Server, name: str) -> None:
    assert UNCHANGED in deny(policies, POLICY, nvidia(OPEN[name]))
    assert UNCHANGED in deny(policies, POLICY, nvidia(container("b", VOID), init=(OPEN[name],)))


@pytest.mark.parametrize("entry", [visible("a"), VOID], ids=["granted", "void"])
def test_a_new_pod_does_not_bring_the_devices_that_it_is_to_see(policies: Server, entry: Json) -> None:
    for key in ("devices.gpushare.dev/a", "devices.gpushare.dev/other"):
        assert CHOSEN in deny(policies, POLICY, nvidia(container("a", entry), annotations={key: "all"}))


@pytest.mark.parametrize("resource", [names.GPU, "nvidia.com/gpu.shared", MIG])
def test_a_container_of_another_plugin_comes_to_its_node_by_a_scheduler(policies: Server, resource: str) -> None:
    theirs = container("a", limits={resource: 1})
    admit(policies, nvidia(theirs))
    assert UNCHANGED in deny(policies, POLICY, nvidia(container("b", VOID), init=(theirs,), nodeName="node-a"))


@pytest.mark.parametrize("entry", [None, visible("a")], ids=["of another plugin", "of ours"])
def test_an_ephemeral_container_of_a_running_pod_sees_no_gpu(policies: Server, entry: Json | None) -> None:
    only = container("a", entry) if entry else container("a", limits={MIG: 1})
    policies.create_pod(TEAM, {**nvidia(only), "metadata": {"name": "runs"}})
    target = {"metadata": {"name": "runs"}, "target": {"kind": "Node", "name": "node-a"}}
    policies.api.create(f"{kube.pod_path(TEAM, 'runs')}/binding", target)
    policies.api.patch(kube.pod_path(TEAM, "runs"), {"metadata": {"annotations": {"devices.gpushare.dev/a": "GPU-1"}}})

    def debug(*env: Json, **fields: object) -> object:
        body = {"spec": {"ephemeralContainers": [{"name": "d", "image": "x", "env": list(env), **fields}]}}
        path = kube.pod_path(TEAM, "runs", "ephemeralcontainers")
        return policies.api.patch(path, body, kind=kube.PatchKind.STRATEGIC, params={"dryRun": "All"})

    debug(VOID)
    for env in ((), (ALL,), (visible("a"),), (VOID, ALL)):
        assert DEBUGGER in refused_by(POLICY, partial(debug, *env))
    policies.delete_pod(TEAM, "runs")


CHOOSING = [
    "/var/run/nvidia-container-devices",
    "/var/run/nvidia-container-devicesall",  # NVIDIA's runtime needs no slash there
    "/var/run//x/../nvidia-container-devices/cdi/nvidia.com/gpu/0",
    "var/run/nvidia-container-devices/",
]


@pytest.mark.parametrize("path", CHOOSING)
def test_a_mount_that_chooses_devices_is_refused_in_every_kind_of_container(policies: Server, path: str) -> None:
    volumes = [{"name": "v", "emptyDir": {}}]
    harmless, harmful = (
        container(name, VOID, volumeMounts=[{"name": "v", "mountPath": "/data"}, {"name": "v", "mountPath": mount}])
        for name, mount in (("b", "/other"), ("h", path))
    )
    admit(policies, nvidia(harmless, volumes=volumes))
    for value in (nvidia(harmful, volumes=volumes), nvidia(harmless, init=(harmful,), volumes=volumes)):
        assert f"mounts {BELOW}" in deny(policies, POLICY, value)
