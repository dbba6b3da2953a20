"""What the checks share: facts that follow from a snapshot, each worked out once. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from gpushare import names
from gpushare.cluster import node_records, pod_records
from gpushare.cluster import world as cluster_world
from gpushare.cluster.node_records import NodeRecord
from gpushare.cluster.pod_records import PodRecord
from gpushare.cluster.world import Ledgers
from gpushare.errors import WireError
from gpushare.identity import NodeName
from gpushare.kube.api import JsonObject
from gpushare.model.gpu import HandOver, NodeInventory
from gpushare.wire import fields, hand_over, unhealthy
from gpushare.wire import inventory as inventory_wire
from gpushare_cli import reading, schedulable
from gpushare_cli.doctor import objects, own
from gpushare_cli.doctor.foreign import ForeignPod, foreign_pod
from gpushare_cli.doctor.snapshot import Snapshot, Unread, known
from gpushare_cli.reading import Settings
from gpushare_cli.schedulable import Taint

_OWN_TAINTS: Final = ("node.kubernetes.io/", "node.cloudprovider.kubernetes.io/")


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuNode:
    """A node that shares its GPUs, should do so, or has done so."""

    name: str
    record: NodeRecord
    """With what others beside the plugin say of its GPUs."""
    published: NodeInventory | None
    """As the plugin wrote it; None if it wrote none that can be read."""
    allocatable: Mapping[str, Any]
    is_wanted: bool
    """The DaemonSet's node selector chooses it."""
    labels: Mapping[str, Any]
    handlers: frozenset[str]
    """Of its container runtime; empty if its kubelet does not tell."""
    is_ready: bool
    is_tainted: bool
    """A taint of an administrator keeps pods away that do not tolerate it."""
    plugin: JsonObject | None
    """The device plugin's pod there, the ready one if there are two."""

    @property
    def runs_plugin(self) -> bool:
        """Whether the device plugin there is registered with the kubelet."""
        return self.plugin is not None and fields.is_true(self.plugin, "Ready", "pod")

    @property
    def needs_runtime_class(self) -> bool:
        """Whether GPU pods there run under NVIDIA's runtime."""
        return self.published is not None and self.published.hand_over is not HandOver.CDI

    @property
    def hands_over_nothing(self) -> bool:
        """Whether an administrator demands a way of handing over that cannot work there: then no GPU is usable."""
        told = self.published
        return told is not None and any(gpu.reason and gpu.reason == told.hand_over_reason for gpu in told.gpus)


class Cluster:
    """A snapshot, and what follows from it. What cannot be told raises when it is looked at."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self.namespace = snapshot.namespace
        self.now = snapshot.now

    def kubectl(self, command: str) -> str:
        """A command in the installation's namespace."""
        return f"kubectl -n {self.namespace} {command}"

    @cached_property
    def settings(self) -> Settings:
        """Of all components.

        Raises:
            SettingsError: one cannot be read.
        """
        return reading.settings_of(known(self.snapshot.settings))

    @cached_property
    def is_simulated(self) -> bool:
        """Whether the GPUs exist in a profile only."""
        return self._plugin_env("gpu_source").startswith(names.SIMULATED)

    @cached_property
    def reads_usage(self) -> bool:
        """Whether the device plugins are to read what containers use."""
        return objects.reads_usage(known(self.snapshot.plugin), known(self.snapshot.settings))

    @cached_property
    def wanted_labels(self) -> Mapping[str, str]:
        """Labels of the nodes on which the device plugin should run."""
        plugin = known(self.snapshot.plugin)
        chosen = fields.mapping(objects.pod_spec(plugin), "nodeSelector", "spec") if plugin else {}
        return chosen or {names.LABEL_SHARES: "true"}

    @cached_property
    def nodes(self) -> tuple[GpuNode, ...]:
        """By name."""
        plugins = self._plugins
        relevant = []
        for node in known(self.snapshot.nodes):
            name = node_records.name_of(node)
            if self._is_wanted(node) or names.ANNOTATION_INVENTORY in objects.annotations(node) or name in plugins:
                relevant.append(self._gpu_node(node, plugins.get(name)))
        return tuple(sorted(relevant, key=lambda each: each.name))

    @cached_property
    def hand_over(self) -> str:
        """How the nodes that share hand over GPUs, in the word that the controller has for it."""
        return hand_over.summary(node_records.sharing(map(node_records.read, known(self.snapshot.nodes))))

    @cached_property
    def needs_no_isolation(self) -> bool:
        """Whether every node that shares keeps GPUs from containers without a grant by itself."""
        return bool(self.nodes) and all(map(self.isolates, self.nodes))

    def isolates(self, node: GpuNode) -> bool:
        """Whether no container there sees a GPU that it was not granted, whatever its variables say."""
        if node.published is None or node.published.hand_over is not HandOver.CDI:
            return False
        # The label counts more than the setting.
        nvidia_default = node.labels.get(names.LABEL_NVIDIA_DEFAULT) or self._plugin_env("nvidia_default_runtime")
        return str(nvidia_default) != "true"

    @cached_property
    def writes_runtime_class(self) -> bool:
        """Whether GPU pods get a RuntimeClass, if there is one: by what the webhook reads."""
        match self.settings.runtime_class_mode:
            case "never":
                return False
            case "where-needed":
                is_refused = hand_over.refuses(known(self.snapshot.refused_classes), self.settings.runtime_class)
                return not is_refused and not hand_over.is_all_cdi(known(self.snapshot.hand_over))
            case _:
                return True

    @cached_property
    def pods(self) -> tuple[tuple[JsonObject, PodRecord], ...]:
        """Those that ask for GPUs, as the API server and as the ledger has them."""
        resource_config = self.settings.resource_config
        found = ((pod, pod_records.read(pod, resource_config)) for pod in known(self.snapshot.pods))
        return tuple((pod, record) for pod, record in found if record is not None)

    @cached_property
    def foreign_pods(self) -> tuple[ForeignPod, ...]:
        """Pods of other systems that hand out GPUs."""
        return tuple(found for pod in known(self.snapshot.pods) if (found := foreign_pod(pod)) is not None)

    @cached_property
    def ledgers(self) -> Ledgers:
        """Who holds what."""
        return cluster_world.ledgers((node.record for node in self.nodes), (record for _, record in self.pods))

    @cached_property
    def _plugins(self) -> Mapping[str, JsonObject]:
        """Node -> the device plugin's pod there."""
        by_node: dict[str, JsonObject] = {}
        for pod in known(self.snapshot.pods):
            meta = fields.mapping(pod, "metadata", "pod")
            is_own = meta.get("namespace") == self.namespace and objects.label(pod, own.LABEL_APP) == names.PLUGIN
            if not is_own or meta.get("deletionTimestamp"):
                continue
            node = fields.text(fields.mapping(pod, "spec", "pod"), "nodeName", "spec")
            if node not in by_node or fields.is_true(pod, "Ready", "pod"):
                by_node[node] = pod
        return by_node

    def _plugin_env(self, setting: str) -> str:
        """A setting of the device plugin, as its DaemonSet or the shared settings have it; empty if neither does."""
        return objects.plugin_setting(known(self.snapshot.plugin), known(self.snapshot.settings), setting)

    def _is_wanted(self, node: JsonObject) -> bool:
        return all(objects.label(node, key) == value for key, value in self.wanted_labels.items())

    def _gpu_node(self, node: JsonObject, plugin: JsonObject | None) -> GpuNode:
        name = node_records.name_of(node)
        try:
            published = inventory_wire.of_node(node)
        except WireError:
            published = None  # the record has the reason
        labels = fields.mapping(fields.mapping(node, "metadata", "node"), "labels", "metadata")
        return GpuNode(
            name=name,
            record=node_records.read(node, None, self._unhealthy.get(name, frozenset())),
            published=published,
            allocatable=fields.mapping(fields.mapping(node, "status", "node"), "allocatable", "status"),
            labels=labels,
            handlers=frozenset(
                fields.text(each, "name", "runtimeHandlers")
                for each in fields.objects(fields.mapping(node, "status", "node"), "runtimeHandlers", "status")
            ),
            is_wanted=self._is_wanted(node),
            is_ready=fields.is_true(node, "Ready", "node"),
            is_tainted=any(map(_keeps_pods_away, schedulable.node_facts(node).taints)),
            plugin=plugin,
        )

    @cached_property
    def _unhealthy(self) -> Mapping[NodeName, frozenset[int]]:
        """Node -> numbers of GPUs that a ConfigMap calls unhealthy."""
        part = self.snapshot.unhealthy
        return unhealthy.of_all(() if isinstance(part, Unread) else part)


def _keeps_pods_away(taint: Taint) -> bool:
    """Kubernetes' own taints tell of a node's state, and go away by themselves."""
    return taint.effect in schedulable.BLOCKING and not taint.key.startswith(_OWN_TAINTS)
