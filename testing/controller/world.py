"""A controller without threads: its parts around a fake API server, fed by hand."""

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import orjson
from prometheus_client.parser import text_string_to_metric_families

from controller import watches
from controller.claims import Claims, ClaimSink
from controller.cluster_table import ClusterTable
from controller.extender.app import Extender
from controller.extender.bind import Binder, BindResult
from controller.extender.messages import BindArgs
from controller.index import Snapshot
from controller.metrics import Metrics
from controller.outlooks import Outlooks
from controller.preemption import Preemption
from controller.reconcile import loop
from controller.reconcile.loop import Reconciler
from controller.reconcile.node_requests import Refusals
from controller.reconcile.writer import Writer
from controller.state import ClusterState
from controller.watches import CONFIG_MAPS, NodeSink, PodSink
from gpushare.cluster import node_ledger, node_records, pod_records
from gpushare.identity import NodeName, PodUid
from gpushare.kube import api as kube
from gpushare.kube.api import JsonObject
from gpushare.kube.watch import Sink
from gpushare.model.capacity import NodeCapacity
from gpushare.model.ledger import Allocation, NodeLedger
from gpushare.model.request import PodRequest, Policy
from gpushare.units import GIB, ResourceConfig
from gpushare.wire import allocations, claims as claims_wire, pods as pods_wire, requests
from testing.builders import Json, make_container, make_inventory, make_node
from testing.clock import ManualClock
from testing.controller.client import Client
from testing.fakes.kube import Call, FakeKube

PODS = "/api/v1/pods"
NODES = "/api/v1/nodes"
CLAIMS = f"{claims_wire.API}/resourceclaims"
RESOURCE_CONFIG = ResourceConfig()


@dataclass
class World:
    """Nodes, pods, and one replica of the controller."""

    api: FakeKube = field(default_factory=FakeKube)
    clock: ManualClock = field(default_factory=ManualClock)
    leads: bool = True
    unready: str = ""
    names: "itertools.count[int]" = field(default_factory=itertools.count)

    def __post_init__(self) -> None:
        self.start_controller()

    def start_controller(
        self,
        resource_config: ResourceConfig = RESOURCE_CONFIG,
        policy: Policy = Policy.BINPACK,
        *,
        reduced: bool = False,
    ) -> None:
        """A controller with an empty ledger, as after a restart."""
        self.state = ClusterState(resource_config=resource_config, policy=policy, reduced=reduced)
        self.table = ClusterTable(self.state, self.clock)
        self.outlooks = Outlooks(self.state.index, self.table, self.clock)
        self.metrics = Metrics(self.clock)
        self.budgets = watches.disruption_budgets(api=self.api, clock=self.clock)
        self.refusals = Refusals(self.clock)
        self.binder = Binder(api=self.api, state=self.state, clock=self.clock, leading=lambda: self.leads)
        self.writer = Writer(api=self.api, clock=self.clock, leading=lambda: self.leads)
        self.reconciler = Reconciler(writer=self.writer, state=self.state, table=self.table, refusals=self.refusals)
        dra = ClusterState(resource_config=resource_config, policy=policy, reduced=reduced)
        self.claims = Claims(state=dra, table=ClusterTable(dra, self.clock), clock=self.clock)
        self.claim_sink = ClaimSink(dra.index)
        self.node_sink = NodeSink(self.state.index, dra.index)
        self.pod_sink = PodSink(self.state.index, self.claims.note)
        self.unhealthy = watches.unhealthy_gpus(api=self.api, clock=self.clock, index=self.state.index)
        self._version = ""
        self._client: Client | None = None

    def client(self) -> Client:
        """Asks the extender, without a socket."""
        if self._client is None:
            preemption = Preemption(
                state=self.state, budgets=self.budgets.values, clock=self.clock, metrics=self.metrics
            )
            extender = Extender(
                state=self.state,
                table=self.table,
                binder=self.binder,
                preemption=preemption,
                metrics=self.metrics,
                refusals=self.refusals,
                claims=self.claims,
                clock=self.clock,
                unready=lambda: self.unready,
                version="1.2.3",
            )
            self._client = Client(extender.handle, self.clock)
        return self._client

    # The cluster.

    def add_node(self, name: str, *gib: int) -> None:
        self.api.seed(NODES, make_node(make_inventory(*gib, node=name)))

    def add_pod(self, *gib: int, name: str = "", namespace: str = "team", **metadata: object) -> JsonObject:
        """A pod with a container for each amount; 0 asks for nothing."""
        containers = [make_container(f"c{i}", amount or None) for i, amount in enumerate(gib)]
        name = name or f"pod-{next(self.names)}"
        pod: Json = {"metadata": {"name": name, **metadata}, "spec": {"containers": containers}}
        return self.api.seed(f"/api/v1/namespaces/{namespace}/pods", pod)

    def add_bound(self, *gib: int, node: str = "node-a", **metadata: object) -> JsonObject:
        """A pod that was bound here, and that the watch has shown on its node."""
        pod = self.add_pod(*gib, **metadata)  # type: ignore[arg-type] # passed on as it came
        assert self.bind(pod, node).error == ""
        self.see()
        return pod

    def add_waiting(self, *gib: int, **metadata: object) -> JsonObject:
        """A pod that the scheduler has given up on."""
        pod = self.add_pod(*gib, **metadata)  # type: ignore[arg-type] # passed on as it came
        given_up = [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]
        self.edit_pod(pod, lambda found: found["status"].update(conditions=given_up))
        self.see()
        return pod

    def edit_pod(self, pod: JsonObject, change: Callable[[JsonObject], object]) -> None:
        self.api.edit(path_of(pod), change)

    def finish(self, pod: JsonObject) -> None:
        self.edit_pod(pod, lambda found: found["status"].update(phase="Succeeded"))

    # What the watches do, by hand.

    def list_all(self) -> None:
        """The first lists."""
        for path, sink in self._sinks():
            found = (sink.read(obj) for obj in self.api.objects(path))
            sink.replace([one for one in found if one is not None])
        self._version = self.api.get(PODS)["metadata"]["resourceVersion"]

    def see(self) -> None:
        """All events since the last look."""
        for path, sink in self._sinks():
            for event in self.api.watch(path, {"resourceVersion": self._version}, timeout_s=0):
                if (found := sink.read(event["object"])) is not None:
                    (sink.remove if event["type"] == "DELETED" else sink.upsert)(found)
        self._version = self.api.get(PODS)["metadata"]["resourceVersion"]

    def _sinks(self) -> tuple[tuple[str, Sink[Any]], ...]:
        optional = (CONFIG_MAPS, self.unhealthy), (CLAIMS, self.claim_sink)
        return (NODES, self.node_sink), (PODS, self.pod_sink), *optional

    def after(self, seconds: float) -> None:
        """The leader does its chores later, with what it has seen so far."""
        self.clock.at += seconds
        self.reconciler.tick()

    # The scheduler.

    def bind(self, pod: JsonObject, node: str = "node-a") -> BindResult:
        return self.binder.bind(bind_args(pod, node))

    def post(self, path: str, body: object) -> Any:
        """Ask the extender over HTTP, as kube-scheduler does."""
        response = self.client().post(f"/gpushare-scheduler/{path}", orjson.dumps(body))
        assert response.status == 200
        return orjson.loads(response.body)

    def counted(self) -> dict[tuple[str, ...], float]:
        """Series of /metrics, by their names and the values of their labels."""
        families = text_string_to_metric_families(self.client().get("/metrics").body.decode())
        samples = (sample for family in families for sample in family.samples)
        return {(sample.name, *sorted(sample.labels.values())): sample.value for sample in samples}

    # The truth.

    def truth(self) -> node_ledger.Ledgers:
        """The ledger as the API server's objects have them."""
        ill = node_records.unhealthy_by_node(self.api.objects(CONFIG_MAPS))
        nodes = (
            node_records.read(node, None, ill.get(node_records.name_of(node), frozenset()))
            for node in self.api.objects(NODES)
        )
        return node_ledger.ledgers(
            nodes, (pod_records.read(pod, self.state.resource_config) for pod in self.api.objects(PODS))
        )

    def snapshot(self) -> Snapshot:
        return self.state.index.snapshot()

    def audit(self) -> list[str]:
        """What the index has wrong."""
        return loop.audit(self.state.index)

    def ledger(self, node: str = "node-a") -> NodeLedger:
        """The ledger of a node as the controller has them."""
        ledger = self.snapshot().ledgers[NodeName(node)]
        assert isinstance(ledger, NodeLedger)
        return ledger

    def capacities(self) -> dict[NodeName, NodeCapacity]:
        """What is free on each node, as the table is told."""
        index = self.state.index
        index.mark_changed(index.snapshot().ledgers)
        changed = index.take_changed()
        index.mark_changed(each.name for each in changed)
        return {each.name: node_ledger.room(each.ledger, each.left) for each in changed if each.ledger is not None}

    def used(self, node: str = "node-a") -> dict[str, int]:
        """GiB held on each GPU in the controller's ledger."""
        return {gpu: mib // 1024 for gpu, mib in self.ledger(node).used_mib.items()}

    def held_by(self, pod: JsonObject) -> Allocation | None:
        """What the API server's copy of a pod says."""
        return allocations.granted(self.api.read(path_of(pod)), GIB)

    def find(self, pod: JsonObject) -> JsonObject | None:
        """The API server's copy of a pod, unless it is gone or replaced."""
        there = (found for found in self.api.objects(PODS) if found["metadata"]["uid"] == uid_of(pod))
        return next(there, None)

    def gpus_of(self, pod: JsonObject) -> list[str]:
        """What its containers were given, as the API server's copy of a pod says."""
        held = self.held_by(pod)
        return [] if held is None else [gpu for grant in held.grants for gpu in grant.gpus]


def path_of(pod: JsonObject) -> str:
    return kube.pod_path(pod["metadata"]["namespace"], pod["metadata"]["name"])


def uid_of(pod: JsonObject) -> PodUid:
    return PodUid(pod["metadata"]["uid"])


def request_of(pod: JsonObject, resource_config: ResourceConfig = RESOURCE_CONFIG) -> PodRequest:
    request = requests.of_pod(pod, resource_config)
    assert request is not None
    return request


def is_binding(call: Call) -> bool:
    return call.path.endswith("/binding")


def bind_args(pod: JsonObject, node: str = "node-a") -> BindArgs:
    return BindArgs(pod=pods_wire.ref(pod), node=NodeName(node))


def bind_request(pod: JsonObject, node: str = "node-a") -> JsonObject:
    """The same as kube-scheduler sends it."""
    ref = pods_wire.ref(pod)
    return {"PodName": ref.name, "PodNamespace": ref.namespace, "PodUID": ref.uid, "Node": node}
