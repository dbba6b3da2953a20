"""A system that is being replaced, as far as a cluster sees it: its plugin, its objects, and pods that it has placed.

What stands in for it is real where it matters: a device plugin that kubelets know, and containers that run with the
devices that it has given them. The cluster's own scheduler binds the pods, which bring the former one's annotations.
"""

import contextlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from gpushare import names
from gpushare.kube import api as kube
from localcluster import installation
from localcluster.cluster import BUSYBOX_IMAGE
from tests.e2e.conftest import CONFIG, GPUS_PER_NODE, PROFILE, components_of
from tests.e2e.system import Json, System, make_pod

NAMESPACE: Final = "kube-system"
PLUGIN: Final = Path(__file__).with_name("former_plugin.py")
WEBHOOKS: Final = "mutatingwebhookconfiguration,validatingwebhookconfiguration"
OURS: Final = "app.kubernetes.io/name=gpushare-device-plugin"
SHARING: Final = ("gpushare", "true")
"""The label of nodes that this project's plugin comes to."""
GPU: Final = 1
"""The GPU of every node on which the former system has placed its pods."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Former:
    daemon_set: str
    labels: Mapping[str, str]
    """Of the plugin's pods."""
    node_label: tuple[str, str] | None
    """Of the nodes that its plugin comes to; None if it comes to all."""
    scheduler: str
    """Its Deployment, and the file with which that is created; empty if there is none in the cluster."""
    plugin_file: str
    resource: str = names.GPU_MEM
    socket: str = "aliyungpushare.sock"
    devices_per_gpu: int
    amount: int
    """Of the resource, for each of its pods here."""
    annotations: Mapping[str, str] = field(default_factory=dict)
    """That it writes on such a pod when it gives it a part of GPU 1."""
    pod_labels: Mapping[str, str] = field(default_factory=dict)

    @property
    def selector(self) -> str:
        """Of the plugin's pods."""
        return ",".join(f"{key}={value}" for key, value in self.labels.items())

    def documents(self) -> Mapping[str, Json]:
        found = {self.plugin_file: self._daemon_set()}
        if self.scheduler:
            container = {"name": "extender", "image": BUSYBOX_IMAGE}
            spec = {"terminationGracePeriodSeconds": 1, "containers": [container]}
            found[f"{self.scheduler}.yaml"] = _workload("Deployment", self.scheduler, {"app": self.scheduler}, spec)
        return found

    def _daemon_set(self) -> Json:
        variables = {
            "RESOURCE": self.resource,
            "SOCKET": self.socket,
            "DEVICES": str(self.devices_per_gpu * GPUS_PER_NODE),
            "GPU": str(GPU),
        }
        sockets = "/var/lib/kubelet/device-plugins"
        registered = ["python3", "-c", "import os; os.stat('/tmp/registered')"]
        container = {
            "name": "plugin",
            "image": installation.IMAGE,
            "command": ["python3", f"/former/{PLUGIN.name}", "--memory-unit=GiB"],
            "securityContext": {"runAsUser": 0},  # as they do; the sockets' directory is root's
            "env": [{"name": name, "value": value} for name, value in variables.items()],
            "readinessProbe": {"exec": {"command": registered}, "periodSeconds": 1, "timeoutSeconds": 5},
            "volumeMounts": [{"name": "program", "mountPath": "/former"}, {"name": "sockets", "mountPath": sockets}],
        }
        spec = {
            "nodeSelector": dict([self.node_label] if self.node_label else []),
            "tolerations": [{"operator": "Exists"}],
            "terminationGracePeriodSeconds": 5,
            "containers": [container],
            "volumes": [
                {"name": "program", "configMap": {"name": "former-plugin"}},
                {"name": "sockets", "hostPath": {"path": sockets}},
            ],
        }
        return _workload("DaemonSet", self.daemon_set, dict(self.labels), spec)

    def pod(self, name: str, node: str) -> Json:
        """A pod that asks for the amount, with what the former scheduler writes before it binds.

        A pod that its owner makes again from this brings that along, as if its author had forged it.
        """
        document = make_pod(name, None, node=node, annotations=self.annotations)
        document["metadata"]["labels"] = dict(self.pod_labels)
        document["spec"]["containers"][0]["resources"] = {"limits": {self.resource: self.amount}}
        return document


def _workload(kind: str, name: str, labels: Json, spec: Json) -> Json:
    return {
        "apiVersion": "apps/v1",
        "kind": kind,
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {"selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}, "spec": spec}},
    }


ALIYUN = Former(
    daemon_set="gpushare-device-plugin-ds",
    labels={"component": "gpushare-device-plugin", "app": "gpushare", "name": "gpushare-device-plugin-ds"},
    node_label=SHARING,
    scheduler="gpushare-schd-extender",
    plugin_file="device-plugin-ds.yaml",
    devices_per_gpu=26,
    amount=3,
    annotations={
        "ALIYUN_COM_GPU_MEM_IDX": str(GPU),
        "ALIYUN_COM_GPU_MEM_DEV": "26",
        "ALIYUN_COM_GPU_MEM_POD": "3",
        "ALIYUN_COM_GPU_MEM_ASSIGNED": "true",
        "ALIYUN_COM_GPU_MEM_ASSUME_TIME": "1600000000000000000",
    },
)
ACK = replace(
    ALIYUN,
    labels={"name": "gpushare-device-plugin-ds"},
    node_label=("ack.node.gpu.schedule", "share"),
    scheduler="",
    annotations={
        "scheduler.framework.gpushare.allocation": json.dumps({"0": {str(GPU): 3}}),
        "scheduler.framework.gpushare.assigned": "true",
        "scheduler.framework.gpushare.assume-time": "1600000000000000000",
    },
)
NANO = Former(
    daemon_set="nano-gpu-agent",
    labels={"app": "nano-gpu-agent"},
    node_label=None,
    scheduler="nano-gpu-scheduler",
    plugin_file="nano-gpu-agent.yaml",
    resource=names.GPU_PERCENT,
    socket="nano-gpu.sock",
    devices_per_gpu=100,
    amount=50,
    annotations={"nano-gpu/assume": "true", "nano-gpu/container-c0": str(GPU)},
    pod_labels={"nano-gpu/assume": "true"},
)


@contextlib.contextmanager
def rules(system: System, former: Former, files: Path) -> Iterator[None]:
    """A cluster of the former system, on which this project is not active; afterwards it is as it was.

    Webhooks and device plugins are removed, and the nodes' inventories with them; controller and scheduler run on, with
    nothing to do.

    Args:
        system: the installation.
        former: the other one.
        files: where its manifests are written.
    """
    kubectl, nodes = system.cluster.kubectl, [node.name for node in system.cluster.nodes]
    kubectl("delete", WEBHOOKS, "gpushare-webhook")
    kubectl("delete", "daemonset", "-n", names.NAMESPACE, "gpushare-device-plugin")
    system.eventually("no plugin of this project", lambda: not system.pods(names.NAMESPACE, OURS))
    program = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "former-plugin", "namespace": NAMESPACE},
        "data": {PLUGIN.name: PLUGIN.read_text(encoding="utf-8")},
    }
    expected, within = str(former.devices_per_gpu * GPUS_PER_NODE), ("-n", NAMESPACE)

    def offered() -> bool:
        return all(node["status"]["allocatable"].get(former.resource) == expected for node in system.nodes())

    try:
        if former.node_label != SHARING:
            kubectl("label", "nodes", *nodes, "gpushare-")
        if former.node_label:
            kubectl("label", "--overwrite", "nodes", *nodes, "=".join(former.node_label))
        kubectl("annotate", "nodes", *nodes, f"{names.ANNOTATION_INVENTORY}-")
        system.cluster.apply(program)
        for name, document in former.documents().items():
            (files / name).write_text(json.dumps(document))
            kubectl("apply", "-f", str(files / name))
        kubectl("rollout", "status", *within, f"daemonset/{former.daemon_set}", "--timeout=300s", timeout_s=330)
        system.eventually("the former plugin's devices are offered", offered)
        yield
    finally:
        gone = ["--ignore-not-found", "--wait=false"]
        kubectl("delete", *within, "configmap/former-plugin", f"daemonset/{former.daemon_set}", *gone)
        if former.scheduler:
            kubectl("delete", *within, f"deployment/{former.scheduler}", *gone)
        kubectl("delete", "pods", *within, "-l", former.selector, "--grace-period=1", *gone)
        system.eventually("no plugin of the former system", lambda: not system.pods(NAMESPACE, former.selector))
        kubectl("label", "nodes", *nodes, "ack.node.gpu.schedule-")
        kubectl("uncordon", *nodes)
        installation.label_nodes(system.cluster)
        added = components_of(system.cluster)
        written = installation.kustomization(system.cluster, CONFIG, PROFILE, components=added)
        kubectl("apply", "-k", str(written), timeout_s=180)
        installation.wait_ready(system.cluster)
        webhooks_work(system)


def webhooks_work(system: System) -> None:
    """Wait until the API server asks the webhook again, which writes its CA into the configurations first."""

    def completed() -> bool:
        try:
            made = system.admitted("default", make_pod("probe"))
        except kube.ServerFaultError:
            return False  # until the CA is written, the API server does not believe the webhook
        return names.LABEL_MANAGED in (made["metadata"].get("labels") or {})

    system.eventually("the webhook completes pods", completed)
