"""P7 and P8: no one sees a GPU that was not granted, and no one forges a grant."""

import json

import pytest

from gpushare import names
from localcluster.process import ClusterError
from tests.e2e import checks
from tests.e2e.system import Json, Share, System

pytestmark = pytest.mark.e2e

FORGED = {
    "devices.gpushare.dev/c0": "GPU-forged",
    "memory.gpushare.dev/c0": "99999",
    "ALIYUN_COM_GPU_MEM_IDX": "3",
    "gpushare.dev/allocation": '{"version":1,"node":"node-1","containers":[]}',
}


@pytest.fixture(scope="module")
def namespace(shared_namespace: str) -> str:
    """One for all tests here; each has pods with names of their own."""
    return shared_namespace


def test_an_author_who_asks_for_all_gpus_gets_what_was_granted(system: System, namespace: str) -> None:
    system.create(namespace, Share(name="greedy", env={names.ENV_VISIBLE_DEVICES: "all"}).document())
    checks.every_container_sees_exactly_its_gpus(system, namespace, system.running(namespace, "greedy"))


def test_a_container_that_asks_for_nothing_sees_nothing(system: System, namespace: str) -> None:
    """Its image says NVIDIA_VISIBLE_DEVICES=all, as CUDA images do."""
    system.create(namespace, Share(name="beside", gib=(1, None)).document())
    system.create(namespace, Share(name="alone", gib=(None,)).document())
    system.create(namespace, Share(name="sly", gib=(None,), env={names.ENV_VISIBLE_DEVICES: "all"}).document())
    checks.every_container_sees_exactly_its_gpus(system, namespace, system.running(namespace, "beside", "alone", "sly"))


def test_forged_annotations_are_stripped(system: System, namespace: str) -> None:
    system.create(namespace, Share(name="forger", annotations=FORGED).document())
    system.create(namespace, Share(name="idle-forger", gib=(None,), annotations=FORGED).document())
    forger, idle = system.running(namespace, "forger", "idle-forger")
    assert "GPU-forged" not in json.dumps(forger["metadata"]["annotations"].get("gpushare.dev/allocation"))
    checks.every_container_sees_exactly_its_gpus(system, namespace, [forger])
    assert not any(names.is_reserved(key) for key in idle["metadata"].get("annotations", {}))


def test_variables_from_a_config_map_do_not_win(system: System, namespace: str) -> None:
    config = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "sly"},
        "data": {names.ENV_VISIBLE_DEVICES: "all"},
    }
    pod = Share(name="config", gib=(1, None)).document()
    for container in pod["spec"]["containers"]:
        container["envFrom"] = [{"configMapRef": {"name": "sly"}}]
    system.create(namespace, config, pod)
    checks.every_container_sees_exactly_its_gpus(system, namespace, system.running(namespace, "config"))


@pytest.fixture(scope="module")
def tenant(system: System, namespace: str) -> str:
    """A user who may do everything that Kubernetes' own role `edit` allows in the namespace, with the pod `mine`."""
    user = f"tenant-of-{namespace}"
    system.cluster.kubectl("create", "rolebinding", "tenant", "--clusterrole=edit", f"--user={user}", "-n", namespace)
    system.create(namespace, Share(name="mine").document())
    system.running(namespace, "mine")
    return user


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ("devices.gpushare.dev/c0=GPU-other", "devices.gpushare.dev/c0"),
        ("gpushare.dev/allocation={}", "gpushare.dev/allocation"),
        ("devices.gpushare.dev/c0-", "devices.gpushare.dev/c0"),
        ("ALIYUN_COM_GPU_MEM_IDX=7", "ALIYUN_COM_GPU_MEM_IDX"),
        ("gpushare.dev/gpus=4", "gpushare.dev/gpus"),
    ],
)
def test_a_tenant_cannot_change_a_binding(system: System, namespace: str, tenant: str, change: str, key: str) -> None:
    before = system.pod(namespace, "mine")["metadata"]["annotations"]
    command = ["annotate", "--overwrite", "-n", namespace, "pod", "mine", change, f"--as={tenant}"]
    with pytest.raises(ClusterError) as refused:
        system.cluster.kubectl(*command)
    assert key in str(refused.value)
    assert system.pod(namespace, "mine")["metadata"]["annotations"] == before


def test_a_tenant_may_still_annotate_and_label_its_pods(system: System, namespace: str, tenant: str) -> None:
    system.cluster.kubectl("annotate", "-n", namespace, "pod", "mine", "team=a", f"--as={tenant}")
    system.cluster.kubectl("label", "-n", namespace, "pod", "mine", "team=a", f"--as={tenant}")


BAD: list[tuple[str, Json, str]] = [
    ("zero", {"limits": {names.GPU_MEM: "0"}}, "0 asks for nothing; remove the entry or write at least 1"),
    ("suffix", {"limits": {names.GPU_MEM: "10G"}}, "10G has a suffix, but the resource is counted in units"),
    ("count", {"limits": {names.GPU_COUNT: "1"}}, "this resource is for the node's ledger and cannot be requested"),
]


@pytest.mark.parametrize(("name", "resources", "message"), BAD)
def test_a_bad_request_is_refused_by_kubectl_apply_with_the_fix(
    system: System, namespace: str, name: str, resources: Json, message: str
) -> None:
    pod = Share(name=name).document()
    pod["spec"]["containers"][0]["resources"] = resources
    with pytest.raises(ClusterError) as refused:
        system.create(namespace, pod)
    assert message in str(refused.value)


def test_the_author_of_a_preset_node_is_told_that_it_is_unwise(system: System, namespace: str) -> None:
    document = Share(name="preset").document()
    document["spec"]["nodeName"] = system.cluster.nodes[0].name
    applied = system.cluster.kubectl("apply", "-n", namespace, "-f", "-", input=json.dumps(document))
    assert "spec.nodeName by-passes the scheduler" in applied.stderr
