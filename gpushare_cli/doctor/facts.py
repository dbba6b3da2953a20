"""What a check may find, and what checks ask: facts that follow from a snapshot, each worked out once. Pure."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from enum import IntEnum
from functools import cached_property, partial
from typing import Any, Final

from gpushare import names
from gpushare.cluster import node_ledger, node_records, pod_records
from gpushare.cluster.node_ledger import Ledgers
from gpushare.cluster.node_records import NodeRecord
from gpushare.cluster.pod_records import PodRecord
from gpushare.errors import GpuShareError
from gpushare.identity import NodeName
from gpushare.kube import api as kube
from gpushare.kube.api import JsonObject, Reply
from gpushare.model.gpu import Gpu, HandOver, NodeInventory
from gpushare.wire import fields, hand_over, pods as pods_wire
from gpushare_cli import reading, schedulable
from gpushare_cli.doctor import objects
from gpushare_cli.doctor.foreign import ForeignPod, foreign_pod
from gpushare_cli.doctor.snapshot import WEBHOOK_PORT, Object, Snapshot, Text, Unreadable, read
from gpushare_cli.reading import Settings
from gpushare_cli.scheduler_config import CONTROLLER_PORT, ServerVersion

FIRST_WITH_CONDITIONS: Final = ServerVersion(1, 30)  # webhooks have matchConditions, and policies are stable
_OWN_TAINTS: Final = ("node.kubernetes.io/", "node.cloudprovider.kubernetes.io/")
_SKEW: Final = timedelta(seconds=30)  # between the clocks of the holder of a Lease and of anyone who tells us the time
_LEASE_S: Final = 15
_PORTS: Final = {names.WEBHOOK: f"8443:{WEBHOOK_PORT}", names.CONTROLLER: f"{CONTROLLER_PORT}"}  # to forward Services


class Severity(IntEnum):
    INFO = 0  # an intentional setting
    WARNING = 1  # it works, but not as it should, or not for every pod; or it could not be seen
    ERROR = 2  # pods that ask for GPUs will not run, or GPUs are handed out twice

    @property
    def word(self) -> str:
        return self.name.lower()


@dataclass(frozen=True, slots=True)
class Finding:
    severity: Severity
    object: str  # kind, namespace if it has one, and name, with slashes in between
    problem: str  # in plain words, with numbers
    fix: str  # what to do, a command where possible. Empty if there is nothing to do.


Make = Callable[[str, str, str], Finding]
error: Final = partial(Finding, Severity.ERROR)
warning: Final = partial(Finding, Severity.WARNING)
note: Final = partial(Finding, Severity.INFO)


class NothingToCheckError(GpuShareError):
    """A check has no meaning, because of something that another check reports."""


class LastFindingError(GpuShareError):
    """A check finds this and has nothing more to say."""

    def __init__(self, found: Finding) -> None:
        super().__init__(found.problem)
        self.finding = found


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuNode:
    """A node that shares its GPUs, should do so, or has done so."""

    name: NodeName
    record: NodeRecord  # with what others beside the plugin say of its GPUs
    allocatable: Mapping[str, Any]
    is_selected: bool  # by the DaemonSet's node selector
    labels: Mapping[str, Any]
    mode: str  # its annotation, which says how each GPU is shared
    handlers: frozenset[str]  # of its container runtime; empty if its kubelet does not tell
    is_ready: bool
    is_tainted: bool  # a taint of an administrator keeps pods away that do not tolerate it
    plugin: JsonObject | None  # the device plugin's pod there, the ready one if there are two

    @property
    def runs_plugin(self) -> bool:
        """Whether the device plugin there is registered with the kubelet."""
        return self.plugin is not None and fields.is_true(self.plugin, "Ready", "pod")

    @property
    def shares(self) -> bool:
        return self.is_selected or self.plugin is not None

    @property
    def inventory(self) -> NodeInventory | None:
        """None if the plugin wrote none that can be read."""
        return self.record.inventory

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        return self.inventory.gpus if self.inventory else ()

    @property
    def every_gpu(self) -> tuple[Gpu, ...]:
        """Also those that ResourceClaims share."""
        return self.inventory.every if self.inventory else ()

    @property
    def no_usable_gpu(self) -> bool:
        """Whether an administrator demands a way of handing over that cannot work there."""
        why = self.inventory.hand_over_reason if self.inventory else ""
        return bool(why) and any(gpu.reason == why for gpu in self.gpus)


class Facts:
    """A snapshot, and what follows from it. A look at what cannot be told raises an error that ends a check."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self.namespace = snapshot.namespace
        self.now = snapshot.now

    def own(self, kind: str, name: str) -> str:
        """An object of the installation, as findings name it."""
        return f"{kind}/{self.namespace}/{name}"

    def kubectl(self, command: str) -> str:
        return f"kubectl -n {self.namespace} {command}"

    def age(self, item: JsonObject) -> timedelta:
        """Since it was created; none if it does not say."""
        created = fields.mapping(item, "metadata", "object").get("creationTimestamp")
        return self.now - (objects.moment(created) or self.now)

    def all_logs(self, component: str) -> str:
        return self.kubectl(f"logs -l {names.LABEL_APP}={component} --prefix --tail=100")

    def needed(self, kind: str, name: str, part: Object, consequence: str, make: Make = error) -> JsonObject:
        """An object without which a check has nothing more to say than that it is missing."""
        if (found := read(part)) is None:
            raise LastFindingError(make(self.own(kind, name), f"it is missing{consequence}", objects.APPLY))
        return found

    def answer(self, service: str, answer: Text, what: str, where: str = "") -> Reply:
        """What a Service with a ready replica said; if it was not read, `what` of `where` (or of it) is not checked."""
        self.needs_ready_replica(service)
        if not isinstance(answer, Unreadable):
            return answer
        by_hand = self.kubectl(f"port-forward svc/{service} {_PORTS[service]}")
        if isinstance(answer.error, kube.ForbiddenError):
            way_out = f"get rights for services/proxy in {self.namespace}, or check by {by_hand}"
        else:
            way_out = f"the NetworkPolicy {service} may keep the control plane out; check by {by_hand}"
        raise LastFindingError(
            warning(where or self.own("service", service), f"not checked {what}: {answer.error}", way_out)
        )

    def needs_ready_replica(self, service: str) -> None:
        if not self.reached(service):
            raise NothingToCheckError("no replica is ready")

    def reached(self, service: str) -> int:
        """Addresses that it sends to."""
        of_webhook, of_controller = self.snapshot.webhook_endpoints, self.snapshot.controller_endpoints
        item = read(of_webhook if service == names.WEBHOOK else of_controller)
        subsets = fields.objects(item or {}, "subsets", "endpoints")
        return sum(len(fields.objects(subset, "addresses", "subsets")) for subset in subsets)

    def needs_conditions(self, otherwise: str) -> None:
        if self.snapshot.server < FIRST_WITH_CONDITIONS:
            raise NothingToCheckError(otherwise)

    def needs_second_scheduler(self) -> None:
        if self.settings.scheduler_name != names.SCHEDULER:
            raise NothingToCheckError("GPU pods go to another scheduler")

    def leads(self, component: str, name: str, part: Object, effect: str) -> Iterator[Finding]:
        """That no one can be leading by this Lease of a component, and what follows."""
        lease = read(part)
        spec = fields.mapping(lease or {}, "spec", "lease")
        holder, renewed = fields.text(spec, "holderIdentity", "spec"), objects.moment(spec.get("renewTime"))
        length = spec.get("leaseDurationSeconds") or _LEASE_S
        if lease is None:
            problem = "there is no such Lease"
        elif not holder or renewed is None:
            problem = "no one holds it"
        elif (age := self.now - renewed) > timedelta(seconds=length) + _SKEW:
            problem = f"{holder} has not renewed it for {age.total_seconds():.0f} s, and it lasts {length} s"
        else:
            return
        yield error(self.own("lease", name), f"{problem}, so {effect}", self.all_logs(component))

    def plugin_setting(self, setting: str) -> str:
        return objects.plugin_setting(read(self.snapshot.plugin), read(self.snapshot.settings), setting)

    def isolates(self, node: GpuNode) -> bool:
        """Whether no container there sees a GPU that it was not granted, whatever its variables say."""
        if node.inventory is None or node.inventory.hand_over is not HandOver.CDI:
            return False
        # The label counts more than the setting.
        nvidia_default = node.labels.get(names.LABEL_NVIDIA_DEFAULT) or self.plugin_setting("nvidia_default_runtime")
        return str(nvidia_default) != "true"

    @cached_property
    def settings(self) -> Settings:
        return reading.settings_of(read(self.snapshot.settings))

    @cached_property
    def reads_usage(self) -> bool:
        return objects.reads_usage(read(self.snapshot.plugin), read(self.snapshot.settings))

    @cached_property
    def wanted_labels(self) -> Mapping[str, str]:
        plugin = read(self.snapshot.plugin)
        selector = fields.mapping(objects.pod_spec(plugin or {}), "nodeSelector", "spec")
        return selector or {names.LABEL_SHARES: "true"}

    @cached_property
    def nodes(self) -> tuple[GpuNode, ...]:
        found = map(self._gpu_node, read(self.snapshot.nodes))
        concerned = [node for node in found if node.shares or node.record.published is not None]
        return tuple(sorted(concerned, key=lambda each: each.name))

    @cached_property
    def sharing(self) -> tuple[GpuNode, ...]:
        return tuple(node for node in self.nodes if node.shares)

    @cached_property
    def writes_runtime_class(self) -> bool:
        """Whether GPU pods get a RuntimeClass, if there is one: by what the webhook reads."""
        mode = self.settings.runtime_class_mode
        if mode != "where-needed":
            return mode != "never"
        is_refused = hand_over.refuses(read(self.snapshot.refused_classes), self.settings.runtime_class)
        return not is_refused and not hand_over.is_all_cdi(read(self.snapshot.hand_over))

    @cached_property
    def runtime_classes(self) -> Mapping[str, str]:
        found = read(self.snapshot.runtime_classes)
        return {objects.name_of(each): fields.text(each, "handler", "RuntimeClass") for each in found}

    @cached_property
    def pods(self) -> tuple[tuple[JsonObject, PodRecord], ...]:
        """Those that ask for GPUs, as the API server and as the ledger has them."""
        resource_config = self.settings.resource_config
        found = ((pod, pod_records.read(pod, resource_config)) for pod in read(self.snapshot.pods))
        return tuple((pod, record) for pod, record in found if record is not None)

    @cached_property
    def foreign_pods(self) -> tuple[ForeignPod, ...]:
        return tuple(found for pod in read(self.snapshot.pods) if (found := foreign_pod(pod)) is not None)

    @cached_property
    def ledgers(self) -> Ledgers:
        """Also of nodes in another unit, whose over-commitment is to be told."""
        return node_ledger.ledgers((node.record for node in self.nodes), (record for _, record in self.pods))

    def own_pods(self, component: str) -> list[JsonObject]:
        return [
            pod
            for pod in read(self.snapshot.pods)
            if pods_wire.ref(pod).namespace == self.namespace and objects.label(pod, names.LABEL_APP) == component
        ]

    @cached_property
    def _plugins(self) -> Mapping[NodeName, JsonObject]:
        staying = [pod for pod in self.own_pods(names.PLUGIN) if not pod["metadata"].get("deletionTimestamp")]
        ready_last = sorted(staying, key=lambda pod: fields.is_true(pod, "Ready", "pod"))
        return {node: pod for pod in ready_last if (node := pods_wire.node_of(pod))}

    def _gpu_node(self, node: JsonObject) -> GpuNode:
        name = node_records.name_of(node)
        status = fields.mapping(node, "status", "node")
        handlers = fields.objects(status, "runtimeHandlers", "status")
        return GpuNode(
            name=name,
            record=node_records.read(node, None, self._unhealthy.get(name, frozenset())),
            allocatable=fields.mapping(status, "allocatable", "status"),
            labels=objects.labels(node),
            mode=str(pods_wire.annotations(node).get(names.ANNOTATION_MODE, "")),
            handlers=frozenset(fields.text(each, "name", "runtimeHandlers") for each in handlers),
            is_selected=all(objects.label(node, key) == value for key, value in self.wanted_labels.items()),
            is_ready=fields.is_true(node, "Ready", "node"),
            is_tainted=any(
                # Kubernetes' own taints tell of a node's state, and go away by themselves.
                taint.effect in schedulable.BLOCKING and not taint.key.startswith(_OWN_TAINTS)
                for taint in schedulable.node_facts(node).taints
            ),
            plugin=self._plugins.get(name),
        )

    @cached_property
    def _unhealthy(self) -> Mapping[NodeName, frozenset[int]]:
        part = self.snapshot.unhealthy
        return node_records.unhealthy_by_node(() if isinstance(part, Unreadable) else part)
