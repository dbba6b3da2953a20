"""Others who hand out the same GPUs, line by line."""

import pytest
import yaml

from gpushare import names
from gpushare.kube.api import JsonObject
from gpushare_cli.doctor import foreign
from gpushare_cli.doctor.foreign import Role
from testing.builders import make_container, make_pod
from testing.cli import doctor_cluster as world
from testing.cli.doctor_cluster import NS, Change, DoctorKube

CONFIG = f"configmap/{NS}/gpushare-scheduler"


def runs(pod: JsonObject) -> Change:
    return lambda api: world.seed(api, pod)


def offers(**amounts: str) -> Change:
    wanted = {f"nvidia.com/{name}": amount for name, amount in amounts.items()}
    return lambda api: world.edit(api, "Node", "node-a", lambda node: node["status"]["allocatable"].update(wanted))


def further_extender(**fields: object) -> Change:
    def edit(item: JsonObject) -> None:
        value = yaml.safe_load(item["data"]["scheduler.yaml"])
        value["extenders"].append(fields)
        item["data"]["scheduler.yaml"] = yaml.safe_dump(value)

    return lambda api: world.edit(api, "ConfigMap", names.SCHEDULER, edit)


NVIDIA = "nvidia-device-plugin-daemonset"
KEEP_OFF = (
    f"keep it off the nodes that share: kubectl -n kube-system edit daemonset {NVIDIA} (its nodeSelector or affinity),"
    " or with the GPU Operator: kubectl label node node-a nvidia.com/gpu.deploy.device-plugin=false"
)
MPS = "nvidia-device-plugin-mps-control-daemon"
UNLABEL = (
    "kubectl label node node-a nvidia.com/gpu.deploy.device-plugin=false --overwrite; kubectl label node node-a"
    " nvidia.com/device-plugin.config- nvidia.com/mps.capable-; see docs/gpu-operator.md"
)
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
    return lambda api: world.edit(api, "Node", "node-a", lambda node: node["metadata"]["labels"].update(wanted))


def configured(*ways: str) -> Change:
    data = {f"by-{way}": CONFIG_OF_NVIDIA.format(way=way) for way in ways} | {"none": "version: v1\nflags: {}\n"}
    config = {"kind": "ConfigMap", "metadata": {"name": "plugin-config", "namespace": "gpu-operator"}, "data": data}
    return lambda api: world.seed(api, config)


def kept_off(*nodes: str) -> Change:
    label = {"nvidia.com/gpu.deploy.device-plugin": "false"}

    def change(api: DoctorKube) -> None:
        for name in nodes:
            world.edit(api, "Node", name, lambda node: node["metadata"]["labels"].update(label))

    return change


ROWS: list[tuple[Change, str]] = [
    (
        runs(world.daemon_pod(MPS)),
        f"error nvidia-sharing node/node-a | the MPS control daemon of NVIDIA (pod kube-system/{MPS}-x7k2p) runs there:"
        " it keeps GPUs in exclusive mode, so that one container alone can use each | kubectl label node node-a"
        " nvidia.com/mps.capable- nvidia.com/device-plugin.config-, and see docs/gpu-operator.md",
    ),
    (
        labelled(gpu_sharing_strategy="time-slicing", gpu_replicas="4"),
        "warning nvidia-sharing node/node-a | NVIDIA's software is configured to share its GPUs as well"
        f" (nvidia.com/gpu.sharing-strategy=time-slicing, nvidia.com/gpu.replicas=4) | {UNLABEL}",
    ),
    (
        labelled(mps_capable="true", gpu_replicas="1"),
        "warning nvidia-sharing node/node-a | NVIDIA's software is configured to share its GPUs as well"
        f" (nvidia.com/mps.capable=true) | {UNLABEL}",
    ),
    (
        world.together(configured("mps", "timeSlicing"), kept_off("node-b")),
        "warning nvidia-sharing configmap/gpu-operator/plugin-config | it has NVIDIA's plugin share GPUs (by-mps by"
        " MPS, by-timeSlicing by time-slicing), and that plugin is not kept off node node-a, which shares | kubectl"
        " label node node-a nvidia.com/gpu.deploy.device-plugin=false, and so on for each",
    ),
    (
        world.together(runs(world.daemon_pod(NVIDIA)), offers(gpu="4")),
        f"error nvidia-plugin node/node-a | the device plugin of NVIDIA (pod kube-system/{NVIDIA}-x7k2p) hands out the"
        f" same GPUs; the node offers 4 nvidia.com/gpu | {KEEP_OFF}",
    ),
    (
        runs(world.daemon_pod(NVIDIA)),
        f"error nvidia-plugin node/node-a | the device plugin of NVIDIA (pod kube-system/{NVIDIA}-x7k2p) hands out the"
        f" same GPUs | {KEEP_OFF}",
    ),
    (
        offers(**{"gpu": "4", "mig-1g.10gb": "2", "gpu.shared": "0"}),
        "error nvidia-plugin node/node-a | another plugin offers 4 nvidia.com/gpu, 2 nvidia.com/mig-1g.10gb there,"
        " which are the GPUs that are shared | find who: kubectl get pods -A --field-selector spec.nodeName=node-a;"
        " take it off the node",
    ),
    (
        runs(world.daemon_pod("gpushare-device-plugin-ds")),
        "error sharing-plugins node/node-a | the device plugin of Aliyun gpushare (pod"
        " kube-system/gpushare-device-plugin-ds-x7k2p) hands out the same GPUs | kubectl -n kube-system delete"
        " daemonset gpushare-device-plugin-ds",
    ),
    (
        runs(world.daemon_pod("nano-gpu-agent")),
        "error sharing-plugins node/node-a | the device plugin of nano-gpu (pod kube-system/nano-gpu-agent-x7k2p)"
        " hands out the same GPUs | kubectl -n kube-system delete daemonset nano-gpu-agent, and restore the NVIDIA"
        " runtime's hook that its init container replaced on the node",
    ),
    (
        runs(world.daemon_pod("hami-device-plugin")),
        "error sharing-plugins node/node-a | the device plugin of HAMi (pod kube-system/hami-device-plugin-x7k2p)"
        " hands out the same GPUs | kubectl label node node-a gpu- (the label that its DaemonSet hami-device-plugin"
        " selects)",
    ),
    (
        runs(world.daemon_pod("volcano-device-plugin", namespace="volcano-system")),
        "error sharing-plugins node/node-a | the device plugin of Volcano (pod"
        " volcano-system/volcano-device-plugin-x7k2p) hands out the same GPUs | kubectl -n volcano-system delete"
        " daemonset volcano-device-plugin",
    ),
    (
        runs(world.deployed_pod("gpushare-schd-extender")),
        "warning other-schedulers deployment/kube-system/gpushare-schd-extender | the scheduler of Aliyun gpushare"
        " still runs; where kube-scheduler asks it as well, both choose GPUs | take its entry out of kube-scheduler's"
        " extenders, then: kubectl -n kube-system delete deployment gpushare-schd-extender",
    ),
    (
        runs(world.deployed_pod("nano-gpu-scheduler")),
        "warning other-schedulers deployment/kube-system/nano-gpu-scheduler | the scheduler of nano-gpu still runs;"
        " where kube-scheduler asks it as well, both choose GPUs | take its entry out of kube-scheduler's extenders,"
        " then: kubectl -n kube-system delete deployment nano-gpu-scheduler",
    ),
    (
        further_extender(
            urlPrefix="http://127.0.0.1:32766/gpushare-scheduler", managedResources=[{"name": "aliyun.com/gpu-mem"}]
        ),
        f"error other-schedulers {CONFIG} | the extender http://127.0.0.1:32766/gpushare-scheduler is asked about"
        f" aliyun.com/gpu-mem as well | remove it from the extenders: kubectl -n {NS} edit configmap"
        " gpushare-scheduler",
    ),
]


@pytest.mark.parametrize(("change", "line"), ROWS)
def test_each_has_its_line(change: Change, line: str) -> None:
    assert world.after(change) == [line]


@pytest.mark.parametrize(
    "change",
    [
        runs(world.daemon_pod(NVIDIA, node="node-z")),
        runs({**world.daemon_pod(NVIDIA), "status": {"phase": "Failed"}}),
        runs(world.daemon_pod("gpu-feature-discovery", image="nvcr.io/nvidia/k8s-device-plugin:v0.17.0")),
        runs(world.daemon_pod("nvidia-device-plugin-mps-control-daemon", node="node-z")),
        labelled(gpu_sharing_strategy="none", mps_capable="false", gpu_replicas="1"),
        labelled(gpu_sharing_strategy="later", gpu_replicas="x"),
        configured(),
        world.together(configured("mps"), kept_off("node-a", "node-b")),
        further_extender(urlPrefix="http://other:80/x", managedResources=[{"name": "example.com/x"}]),
    ],
)
def test_what_hands_out_nothing_here_is_no_conflict(change: Change) -> None:
    assert world.after(change) == []


def test_one_pod_of_each_system_is_named_on_a_node() -> None:
    api = world.healthy()
    world.seed(api, world.daemon_pod("nano-gpu-agent"))
    world.seed(api, world.daemon_pod("elastic-gpu-agent"))
    assert len(world.lines(api)) == 1


def test_a_configuration_that_cannot_be_read_is_reported_once() -> None:
    api = world.healthy()
    world.edit(api, "ConfigMap", names.SCHEDULER, lambda each: each.update(data={"scheduler.yaml": "["}))
    assert [line.split()[1] for line in world.lines(api)] == ["scheduler-config"]


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


@pytest.mark.parametrize(
    "pod",
    [
        make_pod(),
        world.daemon_pod("gpushare-device-plugin"),
        world.deployed_pod("gpushare-scheduler"),
        world.deployed_pod("web"),
        {**make_pod(), "metadata": {"name": "x", "ownerReferences": [{"name": "nano-gpu-agent"}]}},
        {**make_pod(), "metadata": {"name": "x", "ownerReferences": [{"kind": "Job", "name": "nano-gpu-agent"}]}},
    ],
)
def test_our_own_pods_and_users_pods_are_no_foreign_pods(pod: JsonObject) -> None:
    assert foreign.foreign_pod(pod) is None


def test_beside_whole_gpus_of_ours_no_other_plugin_may_offer_parts_of_them() -> None:
    api = world.with_whole_gpus("production", "v1.30.2", "1.30")
    assert " nvidia-plugin " not in "".join(world.lines(api))
    offers(**{"mig-1g.10gb": "2"})(api)
    assert (
        "error nvidia-plugin node/node-a | another plugin offers 2 nvidia.com/mig-1g.10gb there, which are the GPUs"
        " that are shared | find who: kubectl get pods -A --field-selector spec.nodeName=node-a; take it off the node"
    ) in world.lines(api)
