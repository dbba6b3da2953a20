"""What is kept of a node: its GPUs, and which of them others than its plugin keep new pods away from. Pure."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from gpushare import names
from gpushare.errors import SettingsError, UnknownGpuError, WireError
from gpushare.identity import GpuUuid, NodeName
from gpushare.model.capacity import FreeHost
from gpushare.model.gpu import Gpu, GpuHealth, NodeInventory
from gpushare.wire import fields, inventory as inventory_wire, pods as pods_wire

_NONE: Final[frozenset[int]] = frozenset()
_NUMBER: Final = re.compile(r"[0-9]{1,4}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cordon:
    """Which GPUs an administrator keeps new pods away from: the entries of a node's annotation.

    A defragmentation cordons GPUs for the time being. Another annotation says which entries are its own, so that it
    takes back no cordon of an administrator, who may cordon the same GPU meanwhile.
    """

    gpus: str = ""  # all that take no new pods
    held: str = ""  # those of them that a defragmentation keeps free for the time being

    def closed(self, inventory: NodeInventory, name: str) -> "Cordon":
        """An administrator keeps new pods away, longer than a defragmentation. Raises UnknownGpuError."""
        # A GPU is written by its UUID, so that the one that replaces it is free at once; a partitioned one by its
        # number, because its instances get other UUIDs whenever they are made.
        gpus, known = gpus_named(inventory, name), entries(self.gpus)
        held = _joined(set(entries(self.held)) - {str(gpu.uuid) for gpu in gpus})
        if all(gpu_names(gpu) & set(known) for gpu in gpus):
            return Cordon(gpus=self.gpus, held=held)
        partitioned = any(gpu.mig and name == str(gpu.mig.gpu) for gpu in gpus)
        return Cordon(gpus=",".join([*known, name if partitioned else str(gpus[0].uuid)]), held=held)

    def opened(self, inventory: NodeInventory | None, name: str) -> "Cordon":
        """The GPUs, also of a name that is gone, take pods again, also if a defragmentation closed them."""
        # Raises UnknownGpuError: nothing names the GPU; SettingsError: an entry names others as well.
        known, there = entries(self.gpus), inventory.every if inventory is not None else ()
        gpus = [gpu for gpu in there if name in gpu_names(gpu)]
        going = {entry for entry in known if entry == name or any(entry in gpu_names(gpu) for gpu in gpus)}
        if not going:
            if inventory is None:
                raise UnknownGpuError(f"the node reports no GPUs, and {names.ANNOTATION_CORDON} is {self.gpus!r}")
            gpus_named(inventory, name)
            return self
        for entry in sorted(going):
            others = ", ".join(gpu.label for gpu in there if entry in gpu_names(gpu) and gpu not in gpus)
            if others:
                raise SettingsError(f"GPU {name!r} is cordoned together with {others}, by {entry!r}; uncordon that")
        left = [entry for entry in known if entry not in going]
        return Cordon(gpus=",".join(left), held=_joined(set(entries(self.held)) & set(left)))

    def holding(self, gpus: Iterable[GpuUuid]) -> "Cordon":
        """A defragmentation keeps these free, which were open."""
        return Cordon(gpus=",".join([*entries(self.gpus), *gpus]), held=_joined({*entries(self.held), *gpus}))

    def released(self, gpus: Iterable[GpuUuid]) -> "Cordon":
        """It has ended: those take pods again that no one else has cordoned meanwhile."""
        own = set(entries(self.held)) & set(gpus)
        rest = [entry for entry in entries(self.gpus) if entry not in own]
        return Cordon(gpus=",".join(rest), held=_joined(set(entries(self.held)) - own))

    def holds(self, gpus: Iterable[GpuUuid]) -> bool:
        """Whether all of these are closed by a defragmentation alone."""
        return set(gpus) <= set(entries(self.held)) & set(entries(self.gpus))


_NO_CORDON: Final = Cordon()


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRecord:
    name: NodeName
    published: str | None  # the inventory as it was read, to see without decoding that a node has not changed
    cordon: Cordon = _NO_CORDON
    unhealthy: frozenset[int] = _NONE  # numbers of GPUs that somebody beside the plugin calls unhealthy
    inventory: NodeInventory | None = None  # with what `cordon` and `unhealthy` say of its GPUs
    problem: str = ""  # why an inventory that is there cannot be read
    # It has none that can be read, and will share: it has the device plugin's label, or the resource of a system from
    # which this one takes over. Nodes with `nvidia.com/gpu` alone may keep another plugin for good.
    awaited: bool = False
    allocatable: FreeHost | None = None  # CPU and memory that it gives to pods; None if its kubelet has not said so


def read(node: Mapping[str, Any], known: NodeRecord | None = None, unhealthy: frozenset[int] = _NONE) -> NodeRecord:
    """What matters of a node; `known` if that has not changed. Raises WireError: it is no node."""
    name = name_of(node)
    annotations = fields.mapping(fields.mapping(node, "metadata", "node"), "annotations", "metadata")
    published, cordon = annotations.get(names.ANNOTATION_INVENTORY), annotations.get(names.ANNOTATION_CORDON) or ""
    held = annotations.get(names.ANNOTATION_HELD) or ""
    if not isinstance(cordon, str) or not isinstance(held, str) or not isinstance(published, str | None):
        raise WireError("metadata.annotations: expected strings")
    record = NodeRecord(
        name=name,
        published=published,
        cordon=Cordon(gpus=cordon, held=held),
        unhealthy=unhealthy,
        awaited=published is None and _is_awaited(node),
        allocatable=pods_wire.allocatable(node),
    )
    if known is not None and record == replace(known, inventory=None, problem=""):
        return known
    return _with_inventory(record)


def marked_unhealthy(record: NodeRecord, unhealthy: frozenset[int]) -> NodeRecord:
    """The same node after somebody beside the plugin has called other GPUs unhealthy."""
    return record if record.unhealthy == unhealthy else _with_inventory(replace(record, unhealthy=unhealthy))


def sharing(records: Iterable[NodeRecord]) -> Iterator[NodeInventory | None]:
    """The inventories of nodes that share or will; None for each that has not published one that can be read."""
    return (record.inventory for record in records if record.inventory is not None or record.awaited or record.problem)


def unknown_gpus(record: NodeRecord) -> list[str]:
    """Entries of the node's cordon that name none of its GPUs."""
    if record.inventory is None:
        return []
    known = {name for gpu in record.inventory.every for name in gpu_names(gpu)}
    return [entry for entry in entries(record.cordon.gpus) if entry not in known]


def _with_inventory(record: NodeRecord) -> NodeRecord:
    if record.published is None:
        return record
    try:
        inventory = inventory_wire.decode(record.published, record.name)
    except WireError as error:
        return replace(record, problem=str(error))
    cordoned, unhealthy = set(entries(record.cordon.gpus)), record.unhealthy

    def health(gpu: Gpu, unhealthy: frozenset[int] = unhealthy) -> GpuHealth:
        if gpu.health is GpuHealth.UNHEALTHY or unhealthy & gpu_numbers(gpu):
            return GpuHealth.UNHEALTHY
        return GpuHealth.CORDONED if gpu_names(gpu) & cordoned else GpuHealth.HEALTHY

    if cordoned or unhealthy:
        inventory = replace(
            inventory,
            gpus=tuple(replace(gpu, health=health(gpu)) for gpu in inventory.gpus),
            # What allocates these reads no list of unhealthy GPUs.
            dra=tuple(replace(gpu, health=health(gpu, _NONE)) for gpu in inventory.dra),
        )
    return replace(record, inventory=inventory)


def _is_awaited(node: Mapping[str, Any]) -> bool:
    labels = fields.mapping(fields.mapping(node, "metadata", "node"), "labels", "metadata")
    # While the former plugin is replaced, its resource is still in the capacity, but not allocatable.
    capacity = fields.mapping(fields.mapping(node, "status", "node"), "capacity", "status")
    return labels.get(names.LABEL_SHARES) == "true" or any(
        capacity.get(resource, "0") != "0" for resource in names.SHARED_RESOURCES
    )


def name_of(node: Mapping[str, Any]) -> NodeName:
    """Which node it is. Raises WireError: it is no node."""
    return NodeName(fields.needed(fields.mapping(node, "metadata", "node"), "name", "metadata"))


def unknown(name: NodeName) -> str:
    return f"node {name} is unknown to the gpushare controller; it may have been added a moment ago"


def entries(text: str) -> list[str]:
    return [entry for part in text.split(",") if (entry := part.strip())]


def gpu_numbers(gpu: Gpu) -> frozenset[int]:
    """By which numbers a GPU is meant: a MIG instance by that of its GPU too."""
    return frozenset({gpu.index, *((gpu.mig.gpu,) if gpu.mig else ())})


def gpu_names(gpu: Gpu) -> set[str]:
    """Every entry that means a GPU."""
    return {str(gpu.uuid), gpu.label, *map(str, gpu_numbers(gpu))}


def gpus_named(inventory: NodeInventory, name: str) -> tuple[Gpu, ...]:
    """GPUs that a name stands for: several for the number of a partitioned GPU. Raises UnknownGpuError."""
    found = tuple(gpu for gpu in inventory.every if name in gpu_names(gpu))
    if not found:
        there = ", ".join(f"{gpu.label} ({gpu.uuid})" for gpu in inventory.every) or "none"
        raise UnknownGpuError(f"node {inventory.node} has no GPU {name!r}; its GPUs: {there}")
    return found


def _joined(entries: Iterable[str]) -> str:
    return ",".join(sorted(entries))


@dataclass(frozen=True, slots=True)
class Marked:
    """What a ConfigMap says of a node: Aliyun's way to say which GPUs must not be used."""

    node: NodeName
    gpus: frozenset[int] = frozenset()  # empty if the list is empty or missing
    problem: str = ""  # what of it cannot be read; the rest counts


def read_unhealthy(config_map: Mapping[str, Any]) -> Marked | None:
    """What a ConfigMap of the right namespace says; None if it is about something else. Raises WireError."""
    name = fields.text(fields.mapping(config_map, "metadata", "ConfigMap"), "name", "metadata")
    node = _node_of(name)
    if not node:
        return None
    what = f"ConfigMap {name}"
    text = fields.text(fields.mapping(config_map, "data", what), names.UNHEALTHY_KEY, f"{what}.data")
    listed = entries(text)
    odd = [entry for entry in listed if _NUMBER.fullmatch(entry) is None]
    gpus = frozenset(int(entry) for entry in listed if entry not in odd)
    if not odd:
        return Marked(NodeName(node), gpus)
    quoted = ", ".join(f"{entry!r:.40}" for entry in odd[:5])
    return Marked(NodeName(node), gpus, f"{names.UNHEALTHY_KEY}: no numbers of GPUs: {quoted}")


def unhealthy_by_node(config_maps: Iterable[Mapping[str, Any]]) -> dict[NodeName, frozenset[int]]:
    """Numbers of the GPUs that must not be used, by node; ConfigMaps with other names or namespaces are passed over."""
    gpus_by_node: dict[NodeName, frozenset[int]] = {}
    for config_map in config_maps:
        namespace = fields.text(fields.mapping(config_map, "metadata", "ConfigMap"), "namespace", "metadata")
        if namespace == names.UNHEALTHY_NAMESPACE and (marked := read_unhealthy(config_map)) is not None:
            gpus_by_node[marked.node] = marked.gpus
    return gpus_by_node


def is_unhealthy_list(namespace: str, name: str) -> bool:
    return namespace == names.UNHEALTHY_NAMESPACE and bool(_node_of(name))


def _node_of(name: str) -> str:
    return name.removeprefix(names.PREFIX_UNHEALTHY) if name.startswith(names.PREFIX_UNHEALTHY) else ""
