"""Ways to break and to change a running installation, as machines and people do."""

import contextlib
import json
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent import futures
from typing import Any, Final, Self

import yaml

from gpushare import names
from gpushare.cluster import node_records
from gpushare.kube import api as kube
from gpushare.model.gpu import NodeInventory
from gpushare.wire import profile as profile_wire
from localcluster import process
from localcluster.node import Node
from localcluster.process import ClusterError
from tests.e2e.system import Json, System, control_groups, ended, is_in, is_ready, restarts

PLUGINS: Final = f"/apis/apps/v1/namespaces/{names.NAMESPACE}/daemonsets/{names.PLUGIN}"
LEASE: Final = f"/apis/coordination.k8s.io/v1/namespaces/{names.NAMESPACE}/leases/{names.LEASE}"


class Background:
    """Threads that are told to stop by an event; what one of them raises stops the others, and is raised at the end."""

    def __init__(self, *parts: Callable[[threading.Event], None]) -> None:
        self.stop = threading.Event()
        self._parts = parts
        self._pool = futures.ThreadPoolExecutor(len(parts) or 1)
        self._running: list[futures.Future[None]] = []

    def __enter__(self) -> Self:
        for part in self._parts:
            self._running.append(self._pool.submit(part, self.stop))
            self._running[-1].add_done_callback(lambda ended: self.stop.set() if ended.exception() else None)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.stop.set()
        self.join()
        if kind is None:
            for ended in self._running:
                ended.result()

    def join(self, timeout_s: float | None = None) -> None:
        futures.wait(self._running, timeout_s)


def processes_of(pod: Json) -> list[int]:
    """Process IDs, on this machine, of a pod's containers and of its sandbox."""
    return [pid for pid, groups in control_groups().items() if is_in(groups, pod)]


def container_processes(pod: Json) -> list[int]:
    """The same without the sandbox."""
    found = (status.get("containerID", "").rpartition("/")[2] for status in pod["status"]["containerStatuses"])
    containers = [*filter(None, found)]
    return [pid for pid, groups in control_groups().items() if any(each in groups for each in containers)]


def _sigkill(processes: list[int]) -> None:
    for pid in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def kill(system: System, pod: Json) -> None:
    """SIGKILL to every process of a pod, then forget the pod so that its replacement starts without back-off."""
    _sigkill(processes_of(pod))
    system.forget([pod])


def kill_containers(pod: Json) -> None:
    _sigkill(container_processes(pod))


def start_again(system: System, namespace: str, *pods: str) -> list[Json]:
    """End every container of the pods, and wait for the next one of each."""
    before = {name: system.pod(namespace, name) for name in pods}
    for pod in before.values():
        kill_containers(pod)

    def all_again() -> list[Json]:
        found = [system.pod(namespace, name) for name in pods]
        again = all(is_ready(pod) and has_started_again(pod, before[pod["metadata"]["name"]]) for pod in found)
        return found if again else []

    return system.eventually(f"containers of {', '.join(pods)} have started again", all_again)


def has_started_again(pod: Json, before: Json) -> bool:
    counts = restarts(pod)
    return all(counts[container] > count for container, count in restarts(before).items())


def component_pods(system: System, component: str) -> list[Json]:
    """Pods of one component of this system that are not being deleted."""
    pods = system.pods(names.NAMESPACE, f"app.kubernetes.io/name=gpushare-{component}")
    return [pod for pod in pods if not pod["metadata"].get("deletionTimestamp")]


def leader(system: System) -> str:
    """Identity in the lease; starts with the pod's name."""
    return str(system.api.get(LEASE)["spec"].get("holderIdentity") or "")


def leaders_pod(system: System) -> Json:
    holder = leader(system)
    return next(pod for pod in component_pods(system, "controller") if holder.startswith(pod["metadata"]["name"]))


def kill_leader(system: System) -> str:
    """Its name; empty if there is none."""
    try:
        pod = leaders_pod(system)
    except StopIteration:
        return ""
    kill(system, pod)
    return str(pod["metadata"]["name"])


@contextlib.contextmanager
def frozen_leader(system: System) -> Iterator[Json]:
    """Its pod, of which nothing runs until the end of the block. It keeps its connections, and is not told anything."""
    pod = leaders_pod(system)
    processes = container_processes(pod)
    try:
        for pid in processes:
            os.kill(pid, signal.SIGSTOP)
        yield pod
    finally:
        for pid in processes:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


def served_by(system: System) -> list[str]:
    """Pods that the controller's Service sends to, by their names."""
    found = system.api.get(f"/api/v1/namespaces/{names.NAMESPACE}/endpoints/{names.CONTROLLER_SERVICE}")
    addresses = (each for subset in found.get("subsets") or () for each in subset.get("addresses") or ())
    return [each["targetRef"]["name"] for each in addresses]


def wait_for_new_leader(system: System, done: threading.Event, old: str) -> None:
    """Until the Service leads to the holder of the lease, which is another one; `done` ends the wait early."""

    def leads() -> bool:
        served = served_by(system)
        return len(served) == 1 and leader(system).startswith(served[0]) and served[0] != old

    system.eventually("a new leader", lambda: done.is_set() or leads())


def restart_kubelet(system: System, node: Node) -> None:
    """Restart a node's kubelet, and wait until it knows the device plugin: it rejects GPU pods that come before.

    The plugin's pod is still ready by what the former process has reported.
    """

    def last_report() -> str:
        conditions = system.node(node.name)["status"]["conditions"]
        return str(next(each["lastHeartbeatTime"] for each in conditions if each["type"] == "Ready"))

    before = last_report()
    only_restart_kubelet(node)
    admits = f"{node.name} admits GPU pods again"
    system.eventually(admits, lambda: last_report() != before and offered(system, node.name) > 0)


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
    for pod in component_pods(system, "device-plugin"):
        if pod["spec"].get("nodeName") == node:
            kill(system, pod)


def plugin_of(system: System, node: str) -> Json:
    [pod] = [each for each in component_pods(system, "device-plugin") if each["spec"].get("nodeName") == node]
    return pod


def plugin_metrics(system: System, node: str) -> str:
    """What Prometheus reads from a node's device plugin."""
    name = plugin_of(system, node)["metadata"]["name"]
    return system.api.ask(kube.pod_path(names.NAMESPACE, f"{name}:12347", "proxy/metrics"), timeout_s=30).text


def restart_plugins(system: System, *nodes: Node) -> None:
    """Kill the device plugins of these nodes, and wait until others serve: kubelets reject pods that come between."""
    for node in nodes:
        kill_plugin(system, node.name)
    system.eventually("all plugins are ready", lambda: plugins_ready(system))


def plugins_ready(system: System) -> bool:
    pods = component_pods(system, "device-plugin")
    return len(pods) == len(system.cluster.nodes) and all(map(is_ready, pods))


def offered(system: System, node: str) -> int:
    """Units of GPU memory that kube-scheduler counts."""
    return int(system.node(node)["status"]["allocatable"].get(names.GPU_MEM, "0"))


def remove_ended(system: System, stop: threading.Event, every_s: float = 2.0) -> None:
    """Delete pods whose deletion was asked for when their containers have ended, until told to stop."""
    while not stop.wait(every_s):
        with contextlib.suppress(kube.KubeError):  # the API server is stopped by some tests
            pods = system.api.get("/api/v1/pods", {"resourceVersion": "0"}, timeout_s=30)["items"]
            system.forget(ended(pod for pod in pods if pod["metadata"].get("deletionTimestamp")))


def wait_for_bound(system: System, namespace: str, count: int) -> None:
    """Until so many pods have been bound: the middle of the work."""
    system.eventually(
        f"{count} pods bound", lambda: sum(bool(pod["spec"].get("nodeName")) for pod in system.pods(namespace)) >= count
    )


@contextlib.contextmanager
def patched_plugins(system: System, settings: Mapping[str, str], *patches: Mapping[str, Any]) -> Iterator[None]:
    """Plugins with these patches and then these variables, as an administrator has them; afterwards as before."""
    before = system.api.get(PLUGINS)["spec"]["template"]
    env = [{"name": name, "value": value} for name, value in settings.items()]
    own = {"spec": {"template": {"spec": {"containers": [{"name": "device-plugin", "env": env}]}}}}
    for patch in (*patches, own):
        kubectl = ("-n", names.NAMESPACE, "patch", "daemonset", names.PLUGIN)
        system.cluster.kubectl(*kubectl, "--patch", json.dumps(patch))
    _plugins_rolled(system)
    try:
        yield
    finally:
        system.api.patch(
            PLUGINS, [{"op": "replace", "path": "/spec/template", "value": before}], kind=kube.PatchKind.JSON
        )
        _plugins_rolled(system)


def _plugins_rolled(system: System) -> None:
    """Wait until all plugins are of the newest template. The others are killed: to end takes each up to a minute."""

    def observed() -> bool:
        found = system.api.get(PLUGINS)
        return bool(found["status"].get("observedGeneration") == found["metadata"]["generation"])

    system.eventually("the DaemonSet's controller knows it", observed)
    restart_plugins(system, *system.cluster.nodes)
    command = ("-n", names.NAMESPACE, "rollout", "status", f"daemonset/{names.PLUGIN}", "--timeout=300s")
    system.cluster.kubectl(*command, timeout_s=320)


@contextlib.contextmanager
def exchanged_gpus(system: System, profile: Mapping[str, Any], usual: str) -> Iterator[None]:
    """The nodes have the GPUs of `profile`, and those of `usual` afterwards. No pod may hold GPUs before and after."""
    exchange_gpus(system, profile)
    try:
        yield
    finally:
        exchange_gpus(system, yaml.safe_load(usual))


@contextlib.contextmanager
def other_profile(system: System, profile: Mapping[str, Any], usual: Mapping[str, Any]) -> Iterator[None]:
    """The plugins have another profile, and afterwards the usual one."""
    give_profile(system, profile)
    try:
        yield
    finally:
        give_profile(system, usual)


def give_profile(system: System, profile: Mapping[str, Any]) -> None:
    data = {"data": {"profile.yaml": json.dumps(profile)}}
    namespace = ("-n", names.NAMESPACE)
    system.cluster.kubectl("patch", "configmap", *namespace, "gpushare-simulated-gpus", "-p", json.dumps(data))
    # A mounted ConfigMap takes a minute to change; a new pod has it at once. To remove a pod that ends by itself takes
    # a kubelet up to a minute.
    for node in system.cluster.nodes:
        kill_plugin(system, node.name)


def exchange_gpus(system: System, profile: Mapping[str, Any]) -> None:
    """As if somebody had changed the cards: give plugins another profile, and wait until every node advertises it."""
    give_profile(system, profile)

    def shown() -> bool:
        inventories = system.inventories()
        return all(
            node.name in inventories and _is_shown(system, inventories[node.name], profile)
            for node in system.cluster.nodes
        )

    advertised = "the nodes advertise the new GPUs, by plugins that live"
    system.eventually(advertised, lambda: shown() and plugins_ready(system))


def _is_shown(system: System, found: NodeInventory, profile: Mapping[str, Any]) -> bool:
    wanted = profile_wire.inventory(profile, found.node, found.unit).gpus
    if [(gpu.uuid, gpu.model, gpu.memory_mib) for gpu in found.gpus] != [
        (gpu.uuid, gpu.model, gpu.memory_mib) for gpu in wanted
    ]:
        return False
    faulty = {fault.gpu for fault in profile_wire.parse(profile, found.node).faults}
    units = sum(found.unit.floor(gpu.memory_mib) for gpu in wanted if not node_records.gpu_numbers(gpu) & faulty)
    return offered(system, found.node) == units


@contextlib.contextmanager
def cut_off(system: System, node: Node, *, only_pods: bool = False) -> Iterator[None]:
    """Drop packets between a node, its pods too, and the API server, in both directions and without an answer.

    The node reaches the API server by the address of its Service, unless only its pods are cut off.
    """
    plan = system.cluster.plan
    pods = plan.pod_subnet(int(node.name.removeprefix("node-")))
    of_node = [
        ("OUTPUT", "--match", "conntrack", "--ctorigdst", plan.api_service_ip),  # both directions
        ("OUTPUT", "--destination", node.ip),
    ]
    rules = [
        *(() if only_pods else of_node),
        ("OUTPUT", "--source", plan.api_ip, "--destination", pods),
        ("PREROUTING", "--source", pods, "--destination", plan.api_ip),
        ("PREROUTING", "--source", pods, "--destination", plan.api_service_ip),
    ]

    def change(command: str) -> None:
        """Before addresses of Services are translated."""
        for rule in rules:
            process.run([*node.enter, "iptables", "--wait", "--table", "mangle", command, *rule, "--jump", "DROP"])

    change("--insert")
    try:
        yield
    finally:
        change("--delete")
