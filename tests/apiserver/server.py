"""A control plane with this project on it, whose nodes are objects, and the questions that tests ask it."""

import json
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeVar

from gpushare import names
from gpushare.identity import GpuUuid, NodeName
from gpushare.kube import api as kube
from gpushare.kube.client import RestClient
from gpushare.model.gpu import HandOver, NodeInventory
from gpushare.units import GIB
from gpushare.wire import inventory as inventory_wire
from localcluster.apiserver import ApiServer
from localcluster.provision import Version
from testing import asking
from testing.asking import Asking
from testing.builders import make_container, make_gpu

Json = dict[str, Any]
T = TypeVar("T")
PATIENCE_S: Final = 120.0
ALWAYS_THERE: Final = {"cpu": "64", "memory": "256Gi", "pods": "500"}


@dataclass(frozen=True, slots=True)
class Server(Asking):
    running: ApiServer
    users: dict[str, RestClient] = field(default_factory=dict)

    @property
    def api(self) -> RestClient:
        """As administrator."""
        return self.running.api

    @property
    def version(self) -> Version:
        return self.running.version

    def user(self, name: str) -> RestClient:
        if name not in self.users:
            self.users[name] = self.running.as_user(name)
        return self.users[name]

    def tenant(self, namespace: str, *, user: str = "") -> RestClient:
        """A user with the ClusterRole `edit` in this namespace only."""
        name = user or f"edit-of-{namespace}"
        self.bind_role(namespace, "ClusterRole", "edit", name)
        client, path = self.user(name), f"/api/v1/namespaces/{namespace}/pods"
        self.eventually(f"{name} has the rights", lambda: refusal(lambda: client.get(path)) is None)
        return client

    def bind_role(self, namespace: str, kind: str, role: str, user: str) -> None:
        group = "rbac.authorization.k8s.io"
        body = {
            "metadata": {"name": f"{role}-{user}"},
            "roleRef": {"apiGroup": group, "kind": kind, "name": role},
            "subjects": [{"apiGroup": group, "kind": "User", "name": user}],
        }
        self.api.create(f"/apis/{group}/v1/namespaces/{namespace}/rolebindings", body)

    def create_namespace(self, name: str, labels: Mapping[str, str] | None = None) -> None:
        """Wait until pods can be created there: they need its service account."""
        self.api.create("/api/v1/namespaces", {"metadata": {"name": name, "labels": dict(labels or {})}})
        path = f"/api/v1/namespaces/{name}"
        if not self.running.controllers:
            account = {"metadata": {"name": "default"}, "automountServiceAccountToken": False}
            self.api.create(f"{path}/serviceaccounts", account)
        account_path = f"{path}/serviceaccounts/default"
        self.eventually(f"service account of {name}", lambda: self.exists(account_path))
        if self.version < Version(1, 24):  # an old server admits no pod without a token
            self.eventually(f"token of {name}", lambda: self.api.get(account_path).get("secrets"))

    @contextmanager
    def node(
        self,
        name: str,
        gib: Sequence[int] = (16,),
        *,
        hand_over: HandOver = HandOver.CDI,
        labels: Mapping[str, str] | None = None,
        capacity: Mapping[str, str] = ALWAYS_THERE,
    ) -> Iterator[NodeInventory]:
        """A Node as its kubelet and its device plugin write it, while the controller knows it.

        Its GPUs have so many GiB each; labels come beside what every node has.
        """
        gpus = tuple(replace(make_gpu(i, size), uuid=GpuUuid(f"GPU-{name}-{i}")) for i, size in enumerate(gib))
        inventory = NodeInventory(
            node=NodeName(name), gpus=gpus, unit=GIB, hand_over=hand_over, hand_over_reason="test"
        )
        amounts = {
            **capacity,
            names.GPU_MEM: str(inventory.total_units),
            **dict.fromkeys((names.GPU, names.GPU_COUNT), str(len(gpus))),
            **dict.fromkeys((names.GPU_PERCENT, names.GPU_CORE), str(100 * len(gpus))),
        }
        metadata = {
            "name": name,
            "labels": {"kubernetes.io/hostname": name, names.LABEL_SHARES: "true", **(labels or {})},
            "annotations": {names.ANNOTATION_INVENTORY: inventory_wire.encode(inventory)},
        }
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        times = {"lastHeartbeatTime": now, "lastTransitionTime": now}
        ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "", **times}
        status = {
            "capacity": amounts,
            "allocatable": amounts,
            "conditions": [ready],
            "addresses": [{"type": "InternalIP", "address": "192.0.2.1"}],
        }
        self.api.create("/api/v1/nodes", {"metadata": metadata, "status": status})
        try:
            # The API server taints a new node, and only a controller that asks kubelets would find it ready.
            self.api.patch(kube.node_path(name), {"spec": {"taints": None}})
            self.eventually(f"the controller knows {name}", lambda: name in self.inspect())
            yield inventory
        finally:
            self.api.delete(kube.node_path(name))
            self.eventually(f"the controller has forgotten {name}", lambda: name not in self.inspect())

    def create_pod(self, namespace: str, pod: Json, user: RestClient | None = None) -> Json:
        """As it is stored."""
        return (user or self.api).create(f"/api/v1/namespaces/{namespace}/pods", pod, timeout_s=30)

    def admitted(self, namespace: str, pod: Json, user: RestClient | None = None) -> Json:
        """As it would be stored."""
        path = f"/api/v1/namespaces/{namespace}/pods"
        return (user or self.api).create(path, pod, params={"dryRun": "All"}, timeout_s=30)

    def delete_pod(self, namespace: str, name: str) -> None:
        """At once, as there is no kubelet that would end its containers."""
        self.api.delete(kube.pod_path(namespace, name), {"gracePeriodSeconds": 0})

    def delete_pods(self, namespace: str) -> None:
        """All of a namespace, and wait until the controller counts none."""
        self.api.delete(f"/api/v1/namespaces/{namespace}/pods", {"gracePeriodSeconds": 0}, timeout_s=60)
        self.eventually(f"no pods in {namespace}", lambda: not self.pods(namespace) and not self.counted(namespace))

    def set_phase(self, namespace: str, name: str, phase: str) -> None:
        """What a kubelet would say of a pod."""
        self.api.patch(kube.pod_path(namespace, name, "status"), {"status": {"phase": phase}})

    def bound(self, namespace: str, *names_: str) -> list[Json]:
        """Wait until the named pods are on nodes; these pods."""

        def found() -> list[Json]:
            pods = [self.pod(namespace, name) for name in names_]
            return pods if all(pod["spec"].get("nodeName") for pod in pods) else []

        return self.eventually(f"{', '.join(names_)} bound; {self.events(namespace)[-5:]}", found)

    def unschedulable(self, namespace: str, name: str) -> str:
        """Wait until a scheduler has said why it places the pod nowhere; what it said."""
        return self.eventually(f"{name} is unschedulable", lambda: why_unschedulable(self.pod(namespace, name)))

    def inspect(self) -> Mapping[str, Json]:
        """The controller's own ledger, by node."""
        found = json.loads(fetch(f"{self.running.extender}{names.EXTENDER_PREFIX}/inspect"))
        return {node["name"]: node for node in found["nodes"]}

    def ask_extender(self, verb: str, arguments: Json) -> Json:
        """What the controller answers to a kube-scheduler."""
        url = f"{self.running.extender}{names.EXTENDER_PREFIX}/{verb}"
        value: Json = json.loads(fetch(url, json.dumps(arguments).encode()))
        return value

    def counted(self, namespace: str) -> list[str]:
        """Names of a namespace's pods that the controller counts."""
        devices = [device for node in self.inspect().values() for device in node["devs"]]
        return [pod["name"] for device in devices for pod in device["pods"] if pod["namespace"] == namespace]

    def eventually(self, what: str, condition: Callable[[], T], timeout_s: float = PATIENCE_S) -> T:
        """The condition's first true value; an AssertionError with its last value when time is up."""
        return asking.eventually(what, condition, timeout_s, check=self.running.check_alive)


def pod(
    name: str,
    *gib: int | None,
    node: str | None = None,
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    **spec: object,
) -> Json:
    """As its author writes it: GiB for each container, None for one that asks for nothing.

    It is gone at once when it is deleted, as no kubelet ends its containers.
    """
    containers = [make_container(f"c{i}", each) for i, each in enumerate(gib)]
    chosen: Json = {} if node is None else {"nodeSelector": {"kubernetes.io/hostname": node}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": dict(labels or {}), "annotations": dict(annotations or {})},
        "spec": {"containers": containers, "terminationGracePeriodSeconds": 0, **chosen, **spec},
    }


def gpu_of(pod: Json) -> str:
    """What the first container was granted."""
    return str(pod["metadata"]["annotations"][f"{names.PREFIX_DEVICES}c0"])


def why_unschedulable(pod: Json) -> str:
    """What a scheduler has said that places it nowhere; empty until then."""
    conditions = pod.get("status", {}).get("conditions", [])
    refused = [each for each in conditions if (each["type"], each["status"]) == ("PodScheduled", "False")]
    return "".join(each.get("message", "") for each in refused)


def fetch(url: str, body: bytes | None = None) -> str:
    """What a process of the project answers, to a POST if there is a body."""
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request, timeout=10) as answer:
        return str(answer.read().decode())


def refusal(call: Callable[[], object]) -> kube.KubeError | None:
    """Why the API server refused it; an answer that did not come is no refusal."""
    try:
        call()
    except (kube.UnreachableError, kube.ServerFaultError):
        raise
    except kube.KubeError as error:
        return error
    return None


def refused_by(policy: str, call: Callable[[], object]) -> str:
    """What a ValidatingAdmissionPolicy said when it refused it; an AssertionError if it did not."""
    error = refusal(call)
    assert error is not None, f"{policy} admits it"
    assert f"ValidatingAdmissionPolicy '{policy}'" in str(error), error
    return str(error)
