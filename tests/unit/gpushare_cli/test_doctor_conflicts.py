"""Others who hand out the same GPUs, or need all of them: other systems, add-ons, DRA drivers."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from gpushare import names
from gpushare.kube import api as kube
from gpushare.kube.api import JsonObject
from gpushare.wire import inventory as inventory_wire
from gpushare_cli.doctor import foreign, objects
from gpushare_cli.doctor.foreign import Role
from testing.builders import make_container, make_pod
from testing.cli import doctor_cluster as world
from testing.cli.doctor_cluster import Change, edited, put, scheduler_file, seeded, together
from testing.manifests import tree
from tests.unit.gpushare_cli import findings


def offers(**amounts: str) -> Change:
    wanted = {f"nvidia.com/{name}": amount for name, amount in amounts.items()}
    return edited("Node", "node-a", lambda node: node["status"]["allocatable"].update(wanted))


def further_extender(**fields: object) -> Change:
    return scheduler_file(lambda value: value["extenders"].append(fields))


NVIDIA = "nvidia-device-plugin-daemonset"
MPS = "nvidia-device-plugin-mps-control-daemon"
CONFIG_OF_NVIDIA = """
version: v1
flags:
  migStrategy: none
sharing:
  # four pods on each GPU
  {way}:
    resources: [{{name: nvidia.com/gpu, replicas: 4}}]
"""


def labelled(**labels: str) -> Change:
    wanted = {f"nvidia.com/{key.replace('_', '.')}": value for key, value in labels.items()}
    wanted = {key.replace("sharing.strategy", "sharing-strategy"): value for key, value in wanted.items()}
    return edited("Node", "node-a", lambda node: node["metadata"]["labels"].update(wanted))


def configured(*ways: str) -> Change:
    data = {f"by-{way}": CONFIG_OF_NVIDIA.format(way=way) for way in ways} | {"none": "version: v1\nflags: {}\n"}
    metadata = {"name": "plugin-config", "namespace": "gpu-operator"}
    return seeded({"kind": "ConfigMap", "metadata": metadata, "data": data})


def kept_off(*nodes: str) -> Change:
    path = "metadata", "labels", "nvidia.com/gpu.deploy.device-plugin"
    return together(*(put("Node", name, *path, value="false") for name in nodes))


DRIVER = "gpu.nvidia.com"
LACKING = kube.NotFoundError("the server could not find the requested resource")
V1, V1BETA1 = "/apis/resource.k8s.io/v1", "/apis/resource.k8s.io/v1beta1"


def device(name: str, uuid: str = "", *, key: str = "uuid") -> JsonObject:
    return {"name": name, "attributes": {"type": {"string": "gpu"}, **({key: {"string": uuid}} if uuid else {})}}


def offer(*devices: JsonObject, node: str = "node-a", driver: str = DRIVER, group: str = V1) -> Change:
    spec = {"driver": driver, "nodeName": node, "pool": {"name": node}, "devices": list(devices)}
    metadata = {"name": "-".join([node, driver, *(each["name"] for each in devices)])}
    return lambda api: api.seed(
        f"{group}/resourceslices", {"kind": "ResourceSlice", "metadata": metadata, "spec": spec}
    )


def lacking(*prefixes: str) -> Change:
    return lambda api: api.fail_next(lambda call: call.path.startswith(prefixes), LACKING, times=9)


def claiming(*schedulers: str, node: str = "node-a") -> list[Change]:
    """A pod with claims of each of these schedulers."""
    spec = {"nodeName": node, "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "x"}], "containers": []}
    return [
        seeded(
            {
                "kind": "Pod",
                "metadata": {"namespace": "team", "name": f"claiming-{i}", "uid": f"claiming-{i}"},
                "spec": spec | ({"schedulerName": scheduler} if scheduler else {}),
                "status": {"phase": "Running"},
            }
        )
        for i, scheduler in enumerate(schedulers)
    ]


def named(resource: str, **more: object) -> Change:
    spec = {**({"extendedResourceName": resource} if resource else {}), **more}
    item = {"kind": "DeviceClass", "metadata": {"name": DRIVER}, "spec": spec}
    return lambda api: api.seed(f"{V1}/deviceclasses", item)


def claimed(node: JsonObject) -> None:
    """All of its GPUs are shared by ResourceClaims."""
    known = inventory_wire.of_node(node)
    assert known is not None
    given = replace(known, gpus=(), dra=known.gpus)
    node["metadata"]["annotations"][names.ANNOTATION_INVENTORY] = inventory_wire.encode(given)
    node["status"]["allocatable"] = world.allocatable(given)


GIVEN_TO_CLAIMS = together(
    lambda api: world.vanish(api, "Pod", "web", namespace="default"), edited("Node", "node-a", claimed)
)
CHANGES: dict[str, list[Change]] = {
    "nvidia-sharing": [
        seeded(world.daemon_pod(MPS)),
        labelled(gpu_sharing_strategy="time-slicing", gpu_replicas="4"),
        labelled(mps_capable="true", gpu_replicas="1"),
        together(configured("mps", "timeSlicing"), kept_off("node-b")),
    ],
    "nvidia-plugin": [
        together(seeded(world.daemon_pod(NVIDIA)), offers(gpu="4")),
        seeded(world.daemon_pod(NVIDIA)),
        offers(**{"gpu": "4", "mig-1g.10gb": "2", "gpu.shared": "0"}),
    ],
    "sharing-plugins": [
        seeded(world.daemon_pod("gpushare-device-plugin-ds")),
        seeded(world.daemon_pod("nano-gpu-agent")),
        seeded(world.daemon_pod("hami-device-plugin")),
        seeded(world.daemon_pod("volcano-device-plugin", namespace="volcano-system")),
    ],
    "other-schedulers": [
        *(seeded(world.deployed_pod(name)) for name in ("gpushare-schd-extender", "nano-gpu-scheduler")),
        further_extender(
            urlPrefix="http://127.0.0.1:32766/gpushare-scheduler",
            managedResources=[{"name": names.GPU}, {"name": "aliyun.com/gpu-mem"}],
        ),
    ],
    "dra-devices": [
        together(
            offer(device("gpu-0", "GPU-0"), device("gpu-1", "GPU-1")),
            offer(device("gpu-1-mig-1g5gb-19-0")),  # its UUID is known when it is made
        ),
        offer(device("a", "GPU-2", key="gpu.example.com/uuid"), device("b"), driver="gpu.example.com"),
        together(  # a server that serves only an older version
            lacking(f"{V1}/", "/apis/resource.k8s.io/v1beta2/"),
            offer({"name": "gpu-0", "basic": device("", "GPU-0")}, group=V1BETA1),
        ),
        together(GIVEN_TO_CLAIMS, offer(device("gpu-0", "GPU-0"))),
    ],
    "device-classes": [
        *(named(resource) for resource in (names.GPU_MEM, names.GPU_PERCENT, names.GPU_CORE)),
        named("", selectors=[{"cel": {"expression": f"device.driver == '{names.DRA_DRIVER}'"}}]),
    ],
    "claim-schedulers": [together(GIVEN_TO_CLAIMS, *claiming("default-scheduler", "", "volcano"))],
}


@pytest.mark.parametrize(("check", "changes"), CHANGES.items())
def test_each_change_has_its_line(check: str, changes: list[Change]) -> None:
    findings.compare(check, changes)


@pytest.mark.parametrize(
    "change",
    [
        seeded(world.daemon_pod(NVIDIA, node="node-z")),
        seeded({**world.daemon_pod(NVIDIA), "status": {"phase": "Failed"}}),
        seeded(world.daemon_pod("gpu-feature-discovery", image="nvcr.io/nvidia/k8s-device-plugin:v0.17.0")),
        seeded(world.daemon_pod("nvidia-device-plugin-mps-control-daemon", node="node-z")),
        labelled(gpu_sharing_strategy="none", mps_capable="false", gpu_replicas="1"),
        labelled(gpu_sharing_strategy="later", gpu_replicas="x"),
        configured(),
        together(configured("mps"), kept_off("node-a", "node-b")),
        further_extender(urlPrefix="http://other:80/x", managedResources=[{"name": "example.com/x"}]),
        offer(device("gpu-0", "GPU-0"), node="node-z"),  # shares nothing
        offer(device("gpu-7", "GPU-77")),  # a GPU that is not shared
        together(GIVEN_TO_CLAIMS, offer(device("gpu-0", "GPU-0"), driver=names.DRA_DRIVER)),  # our own slices
        offer(device("gpu-0", "GPU-0"), driver=names.DRA_DRIVER),  # of a GPU that has just changed
        offer(device("channel-0"), driver="compute-domain.nvidia.com"),
        offer(device("gpu-0", "GPU-0"), node=""),  # of a network, not of a node
        *map(named, ("", names.GPU, "nvidia.com/mig-1g.10gb")),  # NVIDIA's driver has one for nvidia.com/gpu
        together(GIVEN_TO_CLAIMS, *claiming("default-scheduler", "")),
        together(*claiming("default-scheduler", "volcano")),  # to GPUs of others
        lacking("/apis/resource.k8s.io/"),  # a server without dynamic resource allocation
    ],
)
def test_what_hands_out_nothing_here_is_no_conflict(change: Change) -> None:
    assert world.after(change) == []


@pytest.mark.parametrize(
    ("pod", "name", "role"),
    [
        (world.daemon_pod("nvdp-nvidia-device-plugin"), "NVIDIA", Role.PLUGIN),
        (world.daemon_pod("nvidia-gpu-device-plugin-medium-cos"), "NVIDIA", Role.PLUGIN),
        (world.daemon_pod("ours", image="reg:5000/nvidia/k8s-device-plugin@sha256:01"), "NVIDIA", Role.PLUGIN),
        (world.daemon_pod("gpus", image="registry.cn/acs/k8s-gpushare-plugin:v2"), "Aliyun gpushare", Role.PLUGIN),
        (make_pod(make_container(image="x/nano-gpu-agent:1")), "nano-gpu", Role.PLUGIN),
        (world.deployed_pod("vgpu-hami-scheduler"), "HAMi", Role.SCHEDULER),
    ],
)
def test_foreign_pods_are_told_by_their_workloads_or_images(pod: JsonObject, name: str, role: Role) -> None:
    found = foreign.foreign_pod(pod)
    assert found is not None
    assert (found.system.name, found.role) == (name, role)


OWNED = [{"name": "nano-gpu-agent"}, {"kind": "Job", "name": "nano-gpu-agent"}]


@pytest.mark.parametrize(
    "pod",
    [
        make_pod(),
        world.daemon_pod("gpushare-device-plugin"),
        *map(world.deployed_pod, ("gpushare-scheduler", "web")),
        *({**make_pod(), "metadata": {"name": "x", "ownerReferences": [owner]}} for owner in OWNED),
    ],
)
def test_our_own_pods_and_users_pods_are_no_foreign_pods(pod: JsonObject) -> None:
    assert foreign.foreign_pod(pod) is None


def test_beside_whole_gpus_of_ours_no_other_plugin_may_offer_parts_of_them() -> None:
    api = world.with_whole_gpus("production", "v1.30.2", "1.30")
    assert " nvidia-plugin " not in "".join(world.lines(api))
    offers(**{"mig-1g.10gb": "2"})(api)
    [line] = world.lines(api, "nvidia-plugin")
    assert line.startswith("error nvidia-plugin node/node-a | another plugin offers 2 nvidia.com/mig-1g.10gb there")


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
    if name != objects.KUBE_SYSTEM:
        metadata = {"name": name, "labels": {objects.LABEL_NAMESPACE: name, **labels}}
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
    [line] = lines(daemonset(**spec), version)
    assert line.startswith("warning gpu-addons daemonset/monitoring/dcgm-exporter | it must see all GPUs of its nodes")
    assert "kubectl label namespace monitoring gpushare.dev/isolation=disabled; then: " in line
    assert line.endswith("kubectl -n monitoring rollout restart daemonset dcgm-exporter")


@pytest.mark.parametrize("version", ["v1.30.2", "v1.20.2"])
def test_one_in_a_namespace_that_is_left_alone_gets_them(version: str) -> None:
    assert [
        line.split()[:2] for line in lines(daemonset(**UNDER_NVIDIA), version, **{names.LABEL_ISOLATION: "disabled"})
    ] == [["info", "isolation-exceptions"]]
    assert not any("gpu-addons" in line for line in lines(daemonset("kube-system", **UNDER_NVIDIA), version))
    for namespace in names.ADDON_NAMESPACES:
        [line] = lines(daemonset(namespace, **UNDER_NVIDIA), version)
        assert line.startswith(f"info isolation-exceptions namespace/{namespace} | its name excludes it")


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


def test_the_runtime_classes_are_those_of_the_policy() -> None:
    policy = tree.one(tree.objects("servers/1.30"), "ValidatingAdmissionPolicy", names.ISOLATION_POLICY)
    [condition] = policy["spec"]["matchConditions"]
    assert all(f"'{each}'" in condition["expression"] for each in objects.RUNTIME_CLASSES)
    assert not foreign.needs_every_gpu(daemonset(runtimeClassName="other"))


def test_one_for_whole_gpus_is_an_error_where_they_are_this_projects() -> None:
    api = world.with_whole_gpus("production", "v1.34.0", "1.30")
    named(names.GPU)(api)
    assert [line.partition(" | ")[0] for line in world.lines(api)] == [f"error device-classes deviceclass/{DRIVER}"]


OTHERS = [{"name": "other", "clientConfig": {}}]
BLIND = put("MutatingWebhookConfiguration", names.MUTATING_WEBHOOK, "webhooks", value=OTHERS)
CASES: dict[str, Change] = {
    "one pod of each system is named on a node": together(
        seeded(world.daemon_pod("nano-gpu-agent")), seeded(world.daemon_pod("elastic-gpu-agent"))
    ),
    "a configuration that cannot be read is reported once": put(
        "ConfigMap", names.SCHEDULER, "data", value={"scheduler.yaml": "["}
    ),
    "add-ons in a namespace without labels are blinded": seeded(daemonset(**UNDER_NVIDIA)),
    "a webhook that is missing blinds nothing": together(seeded(daemonset(**UNDER_NVIDIA)), BLIND),
    "before the inventory is there every GPU of NVIDIA's counts": together(
        put("Node", "node-a", "metadata", "annotations", value={}), offer(device("gpu-0", "GPU-77"))
    ),
    "a reader without rights on devices is told which checks are missing": lambda api: api.fail_next(
        lambda call: call.path.startswith(V1), kube.ForbiddenError("no"), times=9
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_what_is_said_of_conflicts(case: str) -> None:
    assert (world.after(CASES[case]) or ["nothing"]) == findings.golden("doctor", case)
