"""Quota and fairness by Kubernetes' own means: the manifests of `manifests/samples/quota`, as `docs/quota.md` says."""

import functools
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Final

import pytest

from gpushare import names
from gpushare.kube import api as kube
from localcluster import installation
from tests.apiserver.server import Json, Server, pod, refusal

SAMPLES: Final = installation.ROOT / "manifests" / "samples" / "quota"
MEMORY: Final = f"requests.{names.GPU_MEM}"
PERCENT: Final = f"requests.{names.GPU_PERCENT}"


@pytest.fixture(autouse=True)
def node(server: Server) -> Iterator[None]:
    with server.node("quota-node", (16, 16)):
        yield


def used(server: Server, namespace: str, quota: str) -> Mapping[str, str]:
    path = f"/api/v1/namespaces/{namespace}/resourcequotas/{quota}"
    found: dict[str, str] = (server.api.get(path).get("status") or {}).get("used") or {}
    return found


def apply(server: Server, namespace: str, sample: str, *quotas: str) -> None:
    """Apply a sample, and wait until the API server counts by it."""
    server.running.kubectl("apply", "--validate=false", "-n", namespace, "-f", str(SAMPLES / sample))
    for quota in quotas:
        server.eventually(f"{quota} is counted", functools.partial(used, server, namespace, quota))


def refused(create: Callable[[], object]) -> str:
    error = refusal(create)
    assert isinstance(error, kube.ForbiddenError), error
    return str(error)


def percent(name: str, amount: int) -> Json:
    made = pod(name, None)
    made["spec"]["containers"][0]["resources"] = {"limits": {names.GPU_PERCENT: amount}}
    return made


def test_a_quota_limits_what_a_namespace_holds(server: Server, namespace: str) -> None:
    """10 units: 6 fit, 3 on each of 2 GPUs count as 6 and do not fit beside them, and other pods do not care."""
    apply(server, namespace, "quota.yaml", "gpu-quota")
    server.create_pod(namespace, pod("six", 6))
    message = refused(lambda: server.create_pod(namespace, pod("more", 5)))
    assert f"exceeded quota: gpu-quota, requested: {MEMORY}=5, used: {MEMORY}=6, limited: {MEMORY}=10" in message
    each = pod("each", 3, annotations={names.ANNOTATION_GPUS: "2"})
    assert f"requested: {MEMORY}=6, used: {MEMORY}=6" in refused(lambda: server.create_pod(namespace, each))
    server.create_pod(namespace, pod("rest", 4))
    server.create_pod(namespace, pod("plain", None))
    server.bound(namespace, "six", "rest", "plain")
    assert used(server, namespace, "gpu-quota")[MEMORY] == "10"

    server.delete_pod(namespace, "six")
    server.eventually("given back", lambda: used(server, namespace, "gpu-quota")[MEMORY] == "4")
    server.create_pod(namespace, pod("more", 5))
    server.bound(namespace, "more")


def test_a_quota_limits_parts_of_gpus(server: Server, namespace: str) -> None:
    apply(server, namespace, "quota.yaml", "gpu-quota")
    server.create_pod(namespace, percent("part", 40))
    message = refused(lambda: server.create_pod(namespace, percent("more", 20)))
    assert f"exceeded quota: gpu-quota, requested: {PERCENT}=20, used: {PERCENT}=40, limited: {PERCENT}=50" in message
    server.create_pod(namespace, percent("rest", 10))
    server.bound(namespace, "part", "rest")


def test_a_quota_for_each_priority_class(server: Server, namespace: str) -> None:
    """Interactive pods are few; batch pods are many, and give way."""
    apply(server, namespace, "by-priority.yaml", "gpu-interactive", "gpu-batch")
    try:
        server.create_pod(namespace, pod("batch", 4, priorityClassName="gpu-batch"))
        server.create_pod(namespace, pod("first", 4, priorityClassName="gpu-interactive"))
        message = refused(lambda: server.create_pod(namespace, pod("second", 4, priorityClassName="gpu-interactive")))
        assert f"exceeded quota: gpu-interactive, requested: {MEMORY}=4, used: {MEMORY}=4" in message
        found = server.bound(namespace, "batch", "first")
        assert [each["spec"]["priority"] for each in found] == [-10, 1000]
        assert used(server, namespace, "gpu-batch")[MEMORY] == "4"
    finally:
        server.running.kubectl("delete", "priorityclass", "gpu-interactive", "gpu-batch")


def test_a_limit_range_gives_a_default_and_a_maximum(server: Server, namespace: str) -> None:
    """In a namespace for GPU pods: every container without an amount gets 1 unit, and none gets more than 8."""
    apply(server, namespace, "limits.yaml")
    server.create_pod(namespace, pod("default", None, 2))
    [found] = server.bound(namespace, "default")
    containers = found["spec"]["containers"]
    assert {c["name"]: c["resources"]["limits"][names.GPU_MEM] for c in containers} == {"c0": "1", "c1": "2"}
    variables = {c["name"]: {each["name"]: each.get("value") for each in c["env"]} for c in containers}
    assert {name: found[names.ALIYUN_CONTAINER] for name, found in variables.items()} == {"c0": "1", "c1": "2"}

    message = refused(lambda: server.create_pod(namespace, pod("big", 9)))
    assert re.search(rf"[Mm]aximum {names.GPU_MEM} usage per Container is 8, but limit is 9", message), message
    each = pod("each", 3, annotations={names.ANNOTATION_GPUS: "4"})
    message = refused(lambda: server.create_pod(namespace, each))
    assert re.search(rf"[Mm]aximum {names.GPU_MEM} usage per Container is 8, but limit is 12", message), message


def test_what_the_page_warns_of_is_what_the_api_server_does(server: Server, namespace: str) -> None:
    """It makes a default of a maximum for containers; one for pods shuts out those that ask for nothing."""
    path = f"/api/v1/namespaces/{namespace}/limitranges"
    of_pods, of_containers = ({"type": kind, "max": {names.GPU_MEM: "8"}} for kind in ("Pod", "Container"))
    server.api.create(path, {"metadata": {"name": "pods"}, "spec": {"limits": [of_pods]}})
    message = refused(lambda: server.create_pod(namespace, pod("plain", None)))
    assert re.search(rf"[Mm]aximum {names.GPU_MEM} usage per Pod is 8\. +No limit is specified", message), message
    made = server.api.create(path, {"metadata": {"name": "containers"}, "spec": {"limits": [of_containers]}})
    [limit] = made["spec"]["limits"]
    assert limit["default"] == limit["defaultRequest"] == {names.GPU_MEM: "8"}
