"""A running installation on a test cluster, and the questions that tests ask it."""

import contextlib
import json
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from gpushare import names
from gpushare.identity import NodeName
from gpushare.kube import api as kube
from gpushare.kube.client import RestClient
from gpushare.model.gpu import Limit, NodeInventory
from gpushare.model.ledger import NodeLedger
from gpushare.wire import allocations, inventory as inventory_wire, pods as pod_wire
from localcluster.cluster import BUSYBOX_IMAGE, Cluster
from localcluster.provision import Version
from testing import asking
from testing.asking import Asking

Json = dict[str, Any]
T = TypeVar("T")
HOSTNAME: Final = "kubernetes.io/hostname"
POLL_S: Final = 0.25
PATIENCE_S: Final = 600.0
"""What comes true sooner is noticed sooner; a machine may be too busy for anything shorter."""
LAST_PRINTED: Final = "PATH"
"""Sorted, it comes after the GPUs: without it the output is not complete, or was lost with its container runtime."""
PROMPT_S: Final = 240.0
"""For what must not wait for the 300 s after which kube-scheduler tries every pod again by itself."""


@dataclass(frozen=True, slots=True)
class System(Asking):
    """What a test sees of the cluster: the API server, its own containers' logs, and the machine's processes."""

    cluster: Cluster
    api: RestClient

    def create_namespace(self, name: str) -> None:
        """Make a namespace, and wait until pods can be created there: they need its service account, with its token."""
        self.api.create("/api/v1/namespaces", {"metadata": {"name": name}})

        def admits() -> bool:
            with contextlib.suppress(kube.ForbiddenError, kube.ServerFaultError):
                return bool(self.admitted(name, make_pod("probe", None)))
            return False

        self.eventually(f"pods can be created in {name}", admits)

    def admitted(self, namespace: str, pod: Json) -> Json:
        """The pod as it would be stored."""
        return self.api.create(f"/api/v1/namespaces/{namespace}/pods", pod, params={"dryRun": "All"}, timeout_s=30)

    def create(self, namespace: str, *pods: Json) -> None:
        """Apply objects in a namespace, as an author would; a refusal is a ClusterError with the server's words."""
        document = json.dumps({"apiVersion": "v1", "kind": "List", "items": list(pods)})
        self.cluster.kubectl("apply", "-n", namespace, "-f", "-", input=document, timeout_s=300)

    def create_complete(self, namespace: str, *pods: Json) -> None:
        """The same, and again for pods that an old API server under load has created without asking the webhook."""
        self.create(namespace, *pods)
        named = {document["metadata"]["name"]: document for document in pods}
        for _ in range(10):
            incomplete = [
                pod["metadata"]["name"]
                for pod in self.pods(namespace)
                if is_incomplete(pod) and names.GPU_MEM in json.dumps(pod["spec"])
            ]
            again = [name for name in incomplete if name in named]
            if not again:
                return
            self.delete(namespace, *again, force=True)
            self.create(namespace, *(named[name] for name in again))

    def run(self, namespace: str, *pods: Json) -> list[Json]:
        """The same, and wait until these run: the pods in this order."""
        self.create_complete(namespace, *pods)
        return self.running(namespace, *(pod["metadata"]["name"] for pod in pods))

    def delete(self, namespace: str, *pods: str, force: bool = False) -> None:
        """Ask for the end of pods, or remove the objects at once."""
        for name in pods:
            self.api.delete(kube.pod_path(namespace, name), {"gracePeriodSeconds": 0} if force else None)

    def delete_all(self, namespace: str) -> None:
        """Delete a namespace's workloads and pods, and wait until these are gone.

        An old kubelet may remove a pod only a minute after the end of its containers, which no test waits for.
        """
        for workloads in ("statefulsets", "replicasets"):
            self.api.delete(f"/apis/apps/v1/namespaces/{namespace}/{workloads}", timeout_s=60)
        self.api.delete(f"/api/v1/namespaces/{namespace}/pods", {"gracePeriodSeconds": 1}, timeout_s=300)

        def left() -> list[Json]:
            pods = self.pods(namespace)
            self.forget(ended(pods))
            return pods

        self.eventually(f"pods of {namespace} gone", lambda: not left())

    def forget(self, pods: Iterable[Json]) -> None:
        """Remove the objects of just these pods at once, without their kubelets."""
        for pod in pods:
            path = kube.pod_path(pod["metadata"]["namespace"], pod["metadata"]["name"])
            body = {"gracePeriodSeconds": 0, "preconditions": {"uid": pod["metadata"]["uid"]}}
            with contextlib.suppress(kube.NotFoundError, kube.ConflictError):  # gone since it was read
                self.api.delete(path, body)

    def eventually(self, what: str, condition: Callable[[], T], timeout_s: float = PATIENCE_S, *, of: str = "") -> T:
        """The condition's first true value; an AssertionError with its last one, or why pods `of` a namespace wait."""

        def check() -> None:
            assert not of, (what, why_not(self.pods(of)), self.events(of)[-20:])

        return asking.eventually(what, condition, timeout_s, poll_s=POLL_S, check=check)

    def wait_told(self, namespace: str, pod: str, *words: str) -> None:
        def told() -> bool:
            events = "".join(self.events(namespace, pod))
            return all(each in events for each in words)

        self.eventually(f"{pod} is told {words}", told)

    def all_running(self, namespace: str, count: int, timeout_s: float = PATIENCE_S) -> list[Json]:
        """Wait until so many pods run with every container ready; these pods."""

        def ready() -> list[Json]:
            found = self.ready_pods(namespace)
            return found if len(found) == count else []

        return self.eventually(f"{count} run", ready, timeout_s, of=namespace)

    def ready_pods(self, namespace: str) -> list[Json]:
        return [pod for pod in self.pods(namespace) if is_ready(pod)]

    def running(self, namespace: str, *pods: str, timeout_s: float = PATIENCE_S) -> list[Json]:
        """Wait until the named pods run, whatever else is in the namespace; these pods."""

        def ready() -> list[Json]:
            found = [self.pod(namespace, name) for name in pods]
            ended = [pod for pod in found if pod["status"].get("phase") == "Failed"]
            assert not ended, why_not(ended)
            return found if all(is_ready(pod) for pod in found) else []

        return self.eventually(f"{', '.join(pods)} run", ready, timeout_s, of=namespace)

    def environments(self, namespace: str, *pods: str) -> Mapping[tuple[str, str], Mapping[str, str]]:
        """The own environment of every container that has started, from its log: (pod, container) -> variables.

        Args:
            namespace: where they are.
            pods: their names; without any, all pods, each of which must print it.
        """

        def printed() -> dict[tuple[str, str], Mapping[str, str]]:
            found: dict[tuple[str, str], Mapping[str, str]] = {}
            for pod in self.pods(namespace):
                name = pod["metadata"]["name"]
                for status in filter(has_started, statuses(pod) if name in pods or not pods else ()):
                    # One that has just started may not have printed yet, and one of a pod that ends is gone.
                    variables = self.environment(pod, status["name"])
                    if variables is None:
                        return {}
                    found[name, status["name"]] = variables
            return found

        return self.eventually("logs of all containers", printed)

    def environment(self, pod: Json, container: str) -> Mapping[str, str] | None:
        """What a container has printed of its own environment; None before it has printed all of it."""
        path = kube.pod_path(pod["metadata"]["namespace"], pod["metadata"]["name"], "log")
        try:
            log = self.api.ask(f"{path}?container={container}", timeout_s=30)
        except kube.KubeError:
            return None
        lines = [line.partition("=") for line in log.text.splitlines()]
        variables = {name: value for name, equals, value in lines if equals}
        return variables if log.is_good and LAST_PRINTED in variables else None

    def log(self, namespace: str, pod: str, *, until: str) -> list[str]:
        """The lines of a pod's log before the one that it prints last: it runs before its log is written."""
        path = kube.pod_path(namespace, pod, "log")

        def whole() -> list[str]:
            log = self.api.ask(path, timeout_s=30)
            lines = log.text.splitlines()
            return lines if log.is_good and until in lines else []

        lines = self.eventually(f"{path} is whole", whole)
        return lines[: lines.index(until)]

    def nodes(self) -> list[Json]:
        listed: list[Json] = self.api.get("/api/v1/nodes", timeout_s=30)["items"]
        return listed

    def node(self, name: str) -> Json:
        return self.api.get(kube.node_path(name), timeout_s=30)

    def label(self, node: str, key: str, value: str | None) -> None:
        self.api.patch(kube.node_path(node), {"metadata": {"labels": {key: value}}})

    def inventories(self) -> Mapping[str, NodeInventory]:
        found = map(inventory_wire.of_node, self.nodes())
        return {inventory.node: inventory for inventory in found if inventory is not None}

    def limits(self, node: str) -> set[Limit]:
        return {gpu.limit for gpu in self.inventories()[node].gpus}

    def ledgers(self) -> Mapping[NodeName, NodeLedger]:
        """The ledger, computed here from what the API server says, with nothing from the controller."""
        holding = list(filter(pod_wire.holds_gpus, self.api.get("/api/v1/pods", timeout_s=30)["items"]))
        found = {}
        for node, inventory in self.inventories().items():
            granted = (allocations.granted(pod, inventory.unit) for pod in holding if pod_wire.node_of(pod) == node)
            found[inventory.node] = NodeLedger.of(inventory, [each for each in granted if each is not None])
        return found

    def inspect(self) -> Json:
        """The controller's own ledger, over its Service."""
        service = self.api.get(f"/api/v1/namespaces/{names.NAMESPACE}/services/{names.CONTROLLER_SERVICE}")
        address, port = service["spec"]["clusterIP"], service["spec"]["ports"][0]["port"]
        with urllib.request.urlopen(f"http://{address}:{port}{names.EXTENDER_PREFIX}/inspect", timeout=10) as answer:
            value: Json = json.load(answer)
        return value


FOUND: Final = 3
"""Exit code of commands that have found something wrong, or nothing that fits."""


def gpushare(system: System, *arguments: str, given: str = "") -> tuple[int, str, str]:
    """Run a command as its user does: exit code, output and errors."""
    argv = [sys.executable, "-m", "gpushare_cli", *arguments, "--kubeconfig", str(system.cluster.kubeconfig)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=600, check=False, input=given)
    return done.returncode, done.stdout, done.stderr


def gpushare_json(system: System, code: int, *arguments: str) -> Json:
    """What it prints for programs, if it ends as expected."""
    found, out, err = gpushare(system, *arguments, "-o", "json")
    assert found == code, out + err
    value: Json = json.loads(out)
    return value


def shown_by_inspect(system: System, namespace: str) -> Mapping[str, Mapping[int, int]]:
    """What `gpushare inspect -o json` prints of a namespace's pods: name -> GPU index -> MiB."""
    return {
        pod["name"]: {share["index"]: share["usedMiB"] for share in pod["gpus"]}
        for node in gpushare_json(system, 0, "inspect")["nodes"]
        for pod in node["pods"]
        if pod["namespace"] == namespace
    }


def statuses(pod: Json) -> list[Json]:
    """Of all its containers, the initial ones first."""
    return [*pod["status"].get("initContainerStatuses", ()), *pod["status"].get("containerStatuses", ())]


def has_started(status: Json) -> bool:
    return bool({"running", "terminated"} & (status["state"] | status.get("lastState", {})).keys())


def is_ready(pod: Json) -> bool:
    statuses = pod.get("status", {}).get("containerStatuses", [])
    return bool(statuses) and all(status["ready"] for status in statuses)


def restarts(pod: Json) -> dict[str, int]:
    return {status["name"]: status["restartCount"] for status in pod["status"]["containerStatuses"]}


def has_ended(pod: Json) -> bool:
    """Whether its containers have run, and none does; of a removed container a kubelet says that it waits."""
    states = [status["state"] for status in pod["status"].get("containerStatuses", [])]
    return pod["status"]["phase"] != "Pending" and not any("running" in state for state in states)


def ended(pods: Iterable[Json]) -> list[Json]:
    """Those of which no container runs: by their statuses, or sooner by the processes of this machine's nodes."""
    groups = "".join(control_groups().values())
    return [pod for pod in pods if has_ended(pod) or (pod["status"]["phase"] != "Pending" and not is_in(groups, pod))]


def control_groups() -> Mapping[int, str]:
    """Of all processes of this machine, by their IDs."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/cgroup"):
        with contextlib.suppress(OSError):  # it has ended
            found[int(path.parent.name)] = path.read_text(encoding="ascii")
    return found


def is_in(groups: str, pod: Json) -> bool:
    uid = pod["metadata"]["uid"]
    return uid in groups or uid.replace("-", "_") in groups


def is_incomplete(pod: Json) -> bool:
    """Whether it was created while no webhook answered, which servers before 1.30 allow; it gets no GPU, ever."""
    return names.LABEL_MANAGED not in pod["metadata"].get("labels", {})


def why_not(pods: Iterable[Json]) -> list[str]:
    reasons = []
    for pod in (pod for pod in pods if not is_ready(pod)):
        status = pod.get("status", {})
        waiting = [
            " ".join([s["name"], *map(str, s["state"].get("waiting", {}).values())])
            for s in status.get("containerStatuses", [])
        ]
        messages = [c.get("message") for c in status.get("conditions", []) if c.get("status") == "False"]
        reasons.append(f"{pod['metadata']['name']}: {status.get('phase')} {waiting} {messages[:1]}")
    return reasons[:5]


def allocated(pod: Json) -> Mapping[str, tuple[str, ...]]:
    """Container -> GPU UUIDs, from the pod's allocation annotation."""
    value = json.loads(pod["metadata"]["annotations"][names.ANNOTATION_ALLOCATION])
    return {entry["name"]: tuple(entry["gpus"]) for entry in value["containers"]}


def make_pod(
    name: str,
    *gib: int | None,
    node: str = "",
    annotations: Mapping[str, str] | None = None,
    env: Mapping[str, str] | None = None,
    command: str = "",
    **spec: Any,
) -> Json:
    """A pod as its author would write it.

    Args:
        name: its name.
        gib: GiB for each container, None for one that asks for nothing; by default one container with 1 GiB.
        node: the only one where it may run.
        annotations: of the pod.
        env: of each container.
        command: a script for each container, instead of the image's, which prints what it sees and waits.
        spec: further fields.
    """
    container: Json = {"image": BUSYBOX_IMAGE}
    if env:
        container["env"] = [{"name": name, "value": value} for name, value in env.items()]
    if command:
        container["command"] = ["sh", "-c", command]
    containers = [{**container, "name": f"c{i}"} for i in range(len(gib or (1,)))]
    for made, each in zip(containers, gib or (1,), strict=True):
        if each is not None:
            made["resources"] = {"limits": {names.GPU_MEM: each}}
    if node:
        spec["nodeSelector"] = {HOSTNAME: node}
    metadata = {"name": name, "annotations": dict(annotations or {}), "labels": {}}
    spec = {"containers": containers, "terminationGracePeriodSeconds": 1, **spec}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def replica_set(pod: Json, replicas: int = 1) -> Json:
    """A ReplicaSet of the pod's name and with its template, whose pods have the label `app`."""
    name, labels = pod["metadata"]["name"], {"app": pod["metadata"]["name"]}
    metadata = {key: value for key, value in pod["metadata"].items() if key != "name"}
    template = {"metadata": {**metadata, "labels": {**metadata["labels"], **labels}}, "spec": pod["spec"]}
    spec = {"replicas": replicas, "selector": {"matchLabels": labels}, "template": template}
    return {"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": {"name": name}, "spec": spec}


def disruption_budget(system: System, app: str, least: int) -> Json:
    """A PodDisruptionBudget of the pods with a label `app`."""
    return {
        "apiVersion": "policy/v1" if system.cluster.version >= Version(1, 21) else "policy/v1beta1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": app},
        "spec": {"minAvailable": least, "selector": {"matchLabels": {"app": app}}},
    }
