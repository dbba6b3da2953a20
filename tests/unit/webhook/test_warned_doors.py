"""Mounts by which a container may reach GPUs that it was not granted: refused, or warned of where they cannot be."""

import pytest

from testing.reviews import CHOOSING, RULES, VOID, Json, asking, container, pod, warnings
from webhook import mutation
from webhook.mutation import Denied


def mounting(path: str, name: str = "m") -> Json:
    return container(name, volumeMounts=[{"name": "v", "mountPath": path}])


def refused(value: Json, field: str) -> None:
    decision = mutation.mutate(value, RULES)
    assert isinstance(decision, Denied)
    assert [str(error) for error in decision.errors] == [
        f"{field}.volumeMounts[0].mountPath: it would choose devices past the scheduler;"
        " remove it, and ask for GPUs by resources.limits"
    ]


@pytest.mark.parametrize("path", CHOOSING)
def test_a_mount_that_chooses_devices_is_refused_whether_or_not_the_pod_asks_for_gpus(path: str) -> None:
    refused(pod(mounting(path)), "spec.containers[0]")
    refused(pod(container("a"), init=[mounting(path)]), "spec.initContainers[0]")
    refused(pod(asking("a", mem=1), mounting(path)), "spec.containers[1]")
    refused(pod(asking("a", mem=1), init=[mounting(path)]), "spec.initContainers[0]")


@pytest.mark.parametrize("path", CHOOSING)
def test_so_it_is_of_an_ephemeral_container_that_is_new(path: str) -> None:
    old, new = mounting(path, "old"), mounting(path, "new")
    before = pod(container("a", env=[VOID]), ephemeralContainers=[old])
    decision = mutation.mutate_ephemeral(
        {**before, "spec": {**before["spec"], "ephemeralContainers": [old, new]}}, before
    )
    assert isinstance(decision, Denied)
    assert [error.path for error in decision.errors] == ["spec.ephemeralContainers[1].volumeMounts[0].mountPath"]
    assert not isinstance(mutation.mutate_ephemeral(before, before), Denied)


@pytest.mark.parametrize("path", ["/var/run", "/data", "/var/run/nvidia", "/dev/nvidia0"])
def test_other_mounts_need_no_word(path: str) -> None:
    assert warnings(pod(asking("a", mem=1), mounting(path))) == ()


def host(path: str) -> list[Json]:
    return [{"name": "data", "emptyDir": {}}, {"name": "v", "hostPath": {"path": path}}]


@pytest.mark.parametrize(
    "path",
    [
        *("/", "/var", "/var/lib", "/var/lib/kubelet", "/var/lib/kubelet/", "/var/lib/../lib/kubelet", "//var/lib"),
        *("/var/lib/kubelet/device-plugins", "/var/lib/kubelet/device-plugins/kubelet.sock"),
        *("/var/lib/kubelet/pod-resources", "/var/lib/kubelet/pod-resources/kubelet.sock"),
    ],
)
def test_a_gpu_pod_with_the_kubelets_sockets_is_told(path: str) -> None:
    assert warnings(pod(asking("a", mem=1), volumes=host(path))) == (
        f"volume v (hostPath {path}) has the kubelet's sockets: a container that mounts it can reach all GPUs of its"
        " node, not only those granted to it",
    )
    assert warnings(pod(container("a"), volumes=host(path))) == ()


@pytest.mark.parametrize(
    "path", ["/etc", "/etc/cdi", "/etc/cdi/x.yaml", "/var/run", "/var/run/cdi/", "/run", "/run/cdi"]
)
def test_a_gpu_pod_with_the_nodes_cdi_specs_is_told(path: str) -> None:
    assert warnings(pod(asking("a", mem=1), volumes=host(path))) == (
        f"volume v (hostPath {path}) has the node's CDI specs: a container that mounts it can reach all GPUs of its"
        " node, not only those granted to it",
    )


@pytest.mark.parametrize("path", ["/data", "/var/log", "/var/lib/kubelet/pods", "/var/lib/kubelet2", "/var/lib/docker"])
def test_other_paths_of_the_node_need_no_word(path: str) -> None:
    assert warnings(pod(asking("a", mem=1), volumes=host(path))) == ()


@pytest.mark.parametrize(
    ("value", "path"),
    [
        (pod(container(volumeMounts={})), "spec.containers[0].volumeMounts"),
        (pod(container(volumeMounts=[1])), "spec.containers[0].volumeMounts[0]"),
        (pod(container(), volumes="x"), "spec.volumes"),
        (pod(container(), volumes=[{}, 1]), "spec.volumes[1]"),
        (pod(container(), volumes=[{"name": "v", "hostPath": "/"}]), "spec.volumes[0].hostPath"),
    ],
)
def test_volumes_that_cannot_be_read_are_refused(value: Json, path: str) -> None:
    decision = mutation.mutate(value, RULES)
    assert isinstance(decision, Denied)
    assert [error.path for error in decision.errors] == [path]


def test_volumes_without_what_is_looked_for_are_fine() -> None:
    odd = pod(container(env=[VOID], volumeMounts=[{}]), volumes=[{}, {"hostPath": None}, {"hostPath": {}}])
    assert not isinstance(mutation.mutate(odd, RULES), Denied)
