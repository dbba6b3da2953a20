"""GPU add-ons of the whole cluster, which need every GPU: those that the webhook blinds are named."""

from collections.abc import Mapping
from typing import Any

import pytest

from gpushare import names
from gpushare.kube.api import JsonObject
from gpushare_cli.doctor import foreign, own
from testing.builders import make_container
from testing.cli import doctor_cluster as world
from testing.manifests import tree

ALL = [{"name": names.ENV_VISIBLE_DEVICES, "value": "all"}]


def daemonset(namespace: str = "monitoring", name: str = "dcgm-exporter", **spec: Any) -> JsonObject:
    pods = {"containers": [make_container(image="x")], **spec}
    return {
        "kind": "DaemonSet",
        "metadata": {"namespace": namespace, "name": name},
        "spec": {"template": {"spec": pods}},
    }


def lines(workload: JsonObject, version: str = "v1.30.2", **labels: str) -> list[str]:
    api = world.healthy("production" if version == "v1.30.2" else "production-1.20", version)
    name = workload["metadata"]["namespace"]
    if name != own.KUBE_SYSTEM:
        metadata = {"name": name, "labels": {own.LABEL_NAMESPACE: name, **labels}}
        world.seed(api, {"kind": "Namespace", "metadata": metadata})
    world.seed(api, workload)
    return world.lines(api)


UNDER_NVIDIA: dict[str, Any] = {"runtimeClassName": "nvidia"}


@pytest.mark.parametrize("version", ["v1.30.2", "v1.20.2"])
@pytest.mark.parametrize(
    "spec",
    [
        UNDER_NVIDIA,
        {"runtimeClassName": "nvidia-cdi"},
        {"containers": [make_container("a", image="x"), {"name": "b", "image": "x", "env": ALL}]},
        {"containers": [make_container(image="nvcr.io/nvidia/k8s/dcgm-exporter:4.2.0-ubi9")]},
        {"containers": [make_container(image="r:5000/nvidia/cloud-native/gpu-operator-validator@sha256:01")]},
    ],
)
def test_one_that_needs_every_gpu_and_gets_none_is_named_with_the_fix(spec: Mapping[str, Any], version: str) -> None:
    assert lines(daemonset(**spec), version) == [
        "warning gpu-addons daemonset/monitoring/dcgm-exporter | it needs every GPU of its nodes, but gpushare-webhook"
        " gives its containers none | if no one but administrators may create pods there: kubectl label namespace"
        " monitoring gpushare.dev/isolation=disabled; then: kubectl -n monitoring rollout restart daemonset"
        " dcgm-exporter"
    ]


@pytest.mark.parametrize("version", ["v1.30.2", "v1.20.2"])
def test_one_in_a_namespace_that_is_left_alone_gets_them(version: str) -> None:
    assert [
        line.split()[:2] for line in lines(daemonset(**UNDER_NVIDIA), version, **{names.LABEL_ISOLATION: "disabled"})
    ] == [["ok", "isolation-exceptions"]]
    assert not any("gpu-addons" in line for line in lines(daemonset("kube-system", **UNDER_NVIDIA), version))
    for namespace in names.ADDON_NAMESPACES:
        [line] = lines(daemonset(namespace, **UNDER_NVIDIA), version)
        assert line.startswith(f"ok isolation-exceptions namespace/{namespace} | its name excludes it")


@pytest.mark.parametrize(
    "spec",
    [
        {},
        {"runtimeClassName": "gvisor"},
        {**UNDER_NVIDIA, "containers": [{"name": "a", "resources": {"limits": {names.GPU: "1"}}}]},
        {**UNDER_NVIDIA, "containers": [{"name": "a", "resources": {"limits": {names.GPU_MEM: "1"}}}]},
        {"containers": [{"name": "a", "env": [{"name": names.ENV_VISIBLE_DEVICES, "value": "void"}]}]},
    ],
)
def test_one_that_needs_none_or_asks_for_some_is_no_matter(spec: Mapping[str, Any]) -> None:
    assert lines(daemonset(**spec)) == []


def test_a_webhook_that_is_missing_blinds_nothing() -> None:
    api = world.healthy()
    world.edit(
        api,
        "MutatingWebhookConfiguration",
        names.MUTATING_WEBHOOK,
        lambda config: config.update(webhooks=[{"name": "other", "clientConfig": {}}]),
    )
    world.seed(api, daemonset(**UNDER_NVIDIA))
    assert not any("gpu-addons" in line for line in world.lines(api))


def test_the_runtime_classes_are_those_of_the_policy() -> None:
    policy = tree.one(tree.objects("servers/1.30"), "ValidatingAdmissionPolicy", names.ISOLATION_POLICY)
    [condition] = policy["spec"]["matchConditions"]
    assert all(f"'{each}'" in condition["expression"] for each in own.RUNTIME_CLASSES)
    assert not foreign.needs_every_gpu(daemonset(runtimeClassName="other"))
