"""Quota and fairness by Kubernetes' own means: the manifests of `manifests/samples/quota`, as `docs/quota.md` says."""

import re
from collections.abc import Callable, Mapping

import pytest

from gpushare import names
from localcluster import installation
from localcluster.process import ClusterError
from tests.e2e import checks
from tests.e2e.system import Json, Share, System

pytestmark = pytest.mark.e2e
SAMPLES = installation.ROOT / "manifests" / "samples" / "quota"
MEMORY = f"requests.{names.GPU_MEM}"
PERCENT = f"requests.{names.GPU_PERCENT}"


def used(system: System, namespace: str, quota: str) -> Mapping[str, str]:
    path = f"/api/v1/namespaces/{namespace}/resourcequotas/{quota}"
    found: dict[str, str] = (system.api.get(path).get("status") or {}).get("used") or {}
    return found


def apply(system: System, namespace: str, sample: str, *quotas: str) -> None:
    """Apply a sample, and wait until the API server counts by it."""
    system.cluster.kubectl("apply", "-n", namespace, "-f", str(SAMPLES / sample))
    for quota in quotas:
        wait_until_counted(system, namespace, quota)


def wait_until_counted(system: System, namespace: str, quota: str) -> None:
    system.eventually(f"{quota} is counted", lambda: used(system, namespace, quota))


def refused(create: Callable[[], None]) -> str:
    with pytest.raises(ClusterError) as error:
        create()
    return str(error.value)


def percent(name: str, amount: int) -> Json:
    pod = Share(name=name, gib=(None,)).document()
    pod["spec"]["containers"][0]["resources"] = {"limits": {names.GPU_PERCENT: amount}}
    return pod


def test_a_quota_limits_what_a_namespace_holds(system: System, namespace: str) -> None:
    """10 units: 6 fit, 3 on each of 2 GPUs count as 6 and do not fit beside them, and other pods do not care."""
    apply(system, namespace, "quota.yaml", "gpu-quota")
    system.create(namespace, Share(name="six", gib=(6,)).document())
    message = refused(lambda: system.create(namespace, Share(name="more", gib=(5,)).document()))
    assert f"exceeded quota: gpu-quota, requested: {MEMORY}=5, used: {MEMORY}=6, limited: {MEMORY}=10" in message
    each = Share(name="each", gib=(3,), annotations={names.ANNOTATION_GPUS: "2"}).document()
    assert f"requested: {MEMORY}=6, used: {MEMORY}=6" in refused(lambda: system.create(namespace, each))
    system.create(namespace, Share(name="rest", gib=(4,)).document(), Share(name="plain", gib=(None,)).document())
    pods = [pod for pod in system.all_running(namespace, 3) if pod["metadata"]["name"] != "plain"]
    checks.every_container_sees_exactly_its_gpus(system, namespace, pods)
    assert used(system, namespace, "gpu-quota")[MEMORY] == "10"

    system.cluster.kubectl("delete", "pod", "-n", namespace, "six")
    system.eventually("given back", lambda: used(system, namespace, "gpu-quota")[MEMORY] == "4")
    system.create(namespace, Share(name="more", gib=(5,)).document())
    system.all_running(namespace, 3)


def test_a_quota_limits_parts_of_gpus(system: System, namespace: str) -> None:
    apply(system, namespace, "quota.yaml", "gpu-quota")
    system.create(namespace, percent("part", 40))
    message = refused(lambda: system.create(namespace, percent("more", 20)))
    assert f"exceeded quota: gpu-quota, requested: {PERCENT}=20, used: {PERCENT}=40, limited: {PERCENT}=50" in message
    system.create(namespace, percent("rest", 10))
    checks.every_container_sees_exactly_its_gpus(system, namespace, system.all_running(namespace, 2))


def test_a_quota_for_each_priority_class(system: System, namespace: str) -> None:
    """Interactive pods are few; batch pods are many, and give way."""
    apply(system, namespace, "by-priority.yaml", "gpu-interactive", "gpu-batch")
    try:
        batch, first, second = (Share(name=name, gib=(4,)).document() for name in ("batch", "first", "second"))
        batch["spec"]["priorityClassName"] = "gpu-batch"
        first["spec"]["priorityClassName"] = second["spec"]["priorityClassName"] = "gpu-interactive"
        system.create(namespace, batch, first)
        message = refused(lambda: system.create(namespace, second))
        assert f"exceeded quota: gpu-interactive, requested: {MEMORY}=4, used: {MEMORY}=4" in message
        pods = system.all_running(namespace, 2)
        assert {pod["metadata"]["name"]: pod["spec"]["priority"] for pod in pods} == {"batch": -10, "first": 1000}
        assert used(system, namespace, "gpu-batch")[MEMORY] == "4"
    finally:
        system.cluster.kubectl("delete", "priorityclass", "gpu-interactive", "gpu-batch")


def test_a_limit_range_gives_a_default_and_a_maximum(system: System, namespace: str) -> None:
    """In a namespace for GPU pods: every container without an amount gets 1 unit, and none gets more than 8."""
    apply(system, namespace, "limits.yaml")
    system.create(namespace, Share(name="default", gib=(None, 2)).document())
    [pod] = system.all_running(namespace, 1)
    amounts = {c["name"]: c["resources"]["limits"][names.GPU_MEM] for c in pod["spec"]["containers"]}
    assert amounts == {"c0": "1", "c1": "2"}
    checks.every_container_sees_exactly_its_gpus(system, namespace, [pod])
    assert system.environments(namespace)["default", "c0"][names.ALIYUN_CONTAINER] == "1"

    message = refused(lambda: system.create(namespace, Share(name="big", gib=(9,)).document()))
    assert re.search(rf"[Mm]aximum {names.GPU_MEM} usage per Container is 8, but limit is 9", message), message
    each = Share(name="each", gib=(3,), annotations={names.ANNOTATION_GPUS: "4"}).document()
    message = refused(lambda: system.create(namespace, each))
    assert re.search(rf"[Mm]aximum {names.GPU_MEM} usage per Container is 8, but limit is 12", message), message


def test_a_maximum_without_a_default_is_the_default(system: System, namespace: str) -> None:
    """Why `docs/quota.md` warns of a LimitRange: the API server itself makes the one from the other."""
    limit = {"type": "Container", "max": {names.GPU_MEM: "8"}}
    limit_range = {
        "apiVersion": "v1",
        "kind": "LimitRange",
        "metadata": {"name": "only-a-maximum"},
        "spec": {"limits": [limit]},
    }
    system.create(namespace, limit_range)
    made = system.api.get(f"/api/v1/namespaces/{namespace}/limitranges/only-a-maximum")["spec"]["limits"][0]
    assert made["default"] == made["defaultRequest"] == {names.GPU_MEM: "8"}


def test_a_maximum_for_pods_shuts_out_those_that_ask_for_nothing(system: System, namespace: str) -> None:
    limit = {"type": "Pod", "max": {names.GPU_MEM: "8"}}
    metadata = {"name": "for-pods"}
    system.create(
        namespace, {"apiVersion": "v1", "kind": "LimitRange", "metadata": metadata, "spec": {"limits": [limit]}}
    )
    message = refused(lambda: system.create(namespace, Share(name="plain", gib=(None,)).document()))
    assert re.search(rf"[Mm]aximum {names.GPU_MEM} usage per Pod is 8\. +No limit is specified", message), message
