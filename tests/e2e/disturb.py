"""Ways to break a running installation, as machines and people do."""

import contextlib
import os
import signal
import threading
import time
from pathlib import Path

from gpushare import names
from gpushare.kube import api as kube
from localcluster.node import Node
from localcluster.process import ClusterError
from tests.e2e.system import PATIENCE_S, Json, System, ended, is_ready

LEASE = f"/apis/coordination.k8s.io/v1/namespaces/{names.NAMESPACE}/leases/{names.LEASE}"


def processes_of(pod: Json) -> list[int]:
    """Process IDs, on this machine, of a pod's containers."""
    uid = pod["metadata"]["uid"]
    spellings = (uid, uid.replace("-", "_"))
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError):
            groups = (entry / "cgroup").read_text()
            if any(spelling in groups for spelling in spellings):
                found.append(int(entry.name))
    return found


def sigkill(pod: Json) -> None:
    """SIGKILL to every process of a pod, then forget the pod so that its replacement starts without back-off."""
    for pid in processes_of(pod):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def kill_containers(pod: Json) -> None:
    """SIGKILL to what runs in a pod's containers; the pod's sandbox stays."""
    started = [status.get("containerID", "").rpartition("/")[2] for status in pod["status"]["containerStatuses"]]
    for pid in processes_of(pod):
        with contextlib.suppress(OSError):
            groups = Path(f"/proc/{pid}/cgroup").read_text()
            if any(container and container in groups for container in started):
                os.kill(pid, signal.SIGKILL)


def component_pods(system: System, component: str) -> list[Json]:
    """Pods of one component of this system that are not being deleted."""
    pods = system.pods(names.NAMESPACE, f"app.kubernetes.io/name=gpushare-{component}")
    return [pod for pod in pods if not pod["metadata"].get("deletionTimestamp")]


def leader(system: System) -> str:
    """Identity in the lease; starts with the pod's name."""
    return str(system.api.get(LEASE)["spec"].get("holderIdentity") or "")


def kill_leader(system: System) -> None:
    """SIGKILL to the leading controller."""
    holder = leader(system)
    for pod in component_pods(system, "controller"):
        if holder.startswith(pod["metadata"]["name"]):
            sigkill(pod)
            delete_now(system, pod)
            return


def wait_for_new_leader(system: System, done: threading.Event, timeout_s: float = PATIENCE_S) -> None:
    """Until a controller that is alive holds the lease and reports ready; `done` ends the wait early."""
    end = time.monotonic() + timeout_s
    while time.monotonic() < end and not done.is_set():
        holder = leader(system)
        for pod in component_pods(system, "controller"):
            ready = any(c["type"] == "Ready" and c["status"] == "True" for c in pod["status"].get("conditions", []))
            if ready and holder.startswith(pod["metadata"]["name"]):
                return
        time.sleep(0.25)
    assert done.is_set(), f"no new leader in {timeout_s} s"


def restart_kubelet(system: System, node: Node) -> None:
    """Restart a node's kubelet, and wait until it admits GPU pods again: it rejects those that come before."""
    before = last_report(system, node)
    only_restart_kubelet(node)
    system.eventually(f"{node.name} admits GPU pods again", lambda: admits_gpu_pods(system, node, before))


def only_restart_kubelet(node: Node) -> None:
    """Restart a node's kubelet as systemd does, again and again until it stays.

    Kubelet 1.20 gives up at its start when mounts change while it reads them, which they do while pods start.
    """
    for _ in range(20):
        node.restart_kubelet()
        try:
            node.wait_kubelet()
        except ClusterError:
            continue
        return
    raise AssertionError(f"the kubelet of {node.name} does not stay")


def kill_plugin(system: System, node: str) -> None:
    """SIGKILL to the device plugin of a node."""
    for pod in component_pods(system, "device-plugin"):
        if pod["spec"].get("nodeName") == node:
            sigkill(pod)
            delete_now(system, pod)


def restart_plugins(system: System, *nodes: Node) -> None:
    """Kill the device plugins of these nodes, and wait until others serve: kubelets reject pods that come between."""
    for node in nodes:
        kill_plugin(system, node.name)
    system.eventually("all plugins are ready", lambda: plugins_ready(system))


def plugins_ready(system: System) -> bool:
    """Whether every node has a device plugin that is ready."""
    pods = component_pods(system, "device-plugin")
    return len(pods) == len(system.cluster.nodes) and all(map(is_ready, pods))


def last_report(system: System, node: Node) -> str:
    """When a node's kubelet has reported its status."""
    conditions = system.api.get(f"/api/v1/nodes/{node.name}")["status"]["conditions"]
    return str(next(each["lastHeartbeatTime"] for each in conditions if each["type"] == "Ready"))


def admits_gpu_pods(system: System, node: Node, before: str) -> bool:
    """Whether a kubelet that was restarted after a report knows the device plugin: until then it rejects GPU pods.

    The plugin's pod is still ready by what the former process has reported.
    """
    allocatable = system.api.get(f"/api/v1/nodes/{node.name}")["status"]["allocatable"]
    return last_report(system, node) != before and int(allocatable[names.GPU_MEM]) > 0


def remove_ended(system: System, stop: threading.Event, every_s: float = 2.0) -> None:
    """Delete pods whose deletion was asked for when their containers have ended, until told to stop."""
    while not stop.wait(every_s):
        with contextlib.suppress(kube.KubeError):  # the API server is stopped by some tests
            pods = system.api.get("/api/v1/pods", {"resourceVersion": "0"}, timeout_s=30)["items"]
            for pod in ended(pod for pod in pods if pod["metadata"].get("deletionTimestamp")):
                delete_now(system, pod)


def delete_now(system: System, pod: Json) -> None:
    """Delete a pod object without grace."""
    path = kube.pod_path(pod["metadata"]["namespace"], pod["metadata"]["name"])
    with contextlib.suppress(kube.NotFoundError):
        system.api.delete(path, {"gracePeriodSeconds": 0, "preconditions": {"uid": pod["metadata"]["uid"]}})


def wait_for_bound(system: System, namespace: str, count: int) -> None:
    """Until so many pods have been bound: the middle of the work."""
    system.eventually(
        f"{count} pods bound",
        lambda: sum(bool(pod["spec"].get("nodeName")) for pod in system.pods(namespace)) >= count,
    )
