"""What the webhook cannot close it warns of: mounts by which a container may reach GPUs that it was not granted."""

import pytest

from tests.unit.webhook.builders import RULES, VOID, Json, asking, container, pod
from webhook import mutation
from webhook.mutation import Denied, Mutated


def warnings(value: Json) -> tuple[str, ...]:
    decision = mutation.mutate(value, RULES)
    assert isinstance(decision, Mutated), decision
    return decision.warnings


def mounting(path: str, name: str = "m") -> Json:
    return container(name, volumeMounts=[{"name": "v", "mountPath": path}])


@pytest.mark.parametrize(
    "path",
    [
        "/var/run/nvidia-container-devices",
        "/var/run/nvidia-container-devices/all",
        "/var/run/nvidia-container-devices/GPU-1",
        "/var/run//x/../nvidia-container-devices/cdi/nvidia.com/gpu/0",
        "/run/nvidia-container-devices/0",
        "var/run/nvidia-container-devices/",
    ],
)
def test_a_mount_that_chooses_devices_is_told_whether_or_not_the_pod_asks_for_gpus(path: str) -> None:
    text = (
        f"container m mounts {path}: NVIDIA's runtime may take that for a choice of GPUs that were not granted to it;"
        " remove it, and ask by resources.limits"
    )
    for value in (
        pod(mounting(path)),
        pod(container("a"), init=[mounting(path)]),
        pod(asking("a", mem=1), mounting(path)),
    ):
        assert warnings(value) == (text,)


@pytest.mark.parametrize(
    "path", ["/var/run/nvidia-container-devicesx", "/var/run", "/data", "/nvidia-container-devices"]
)
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
