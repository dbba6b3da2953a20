"""A node and the pods on it -> what a picture shows of it. Pure; the sums are those of `kubectl inspect gpushare`."""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from gpushare import names, units
from gpushare.errors import WireError
from gpushare.identity import GpuUuid, NodeName, by_index
from gpushare.model.gpu import Gpu, GpuHealth, NodeInventory
from gpushare.units import MemoryUnit, ResourceConfig
from gpushare.wire import allocations, fields
from gpushare.wire import inventory as inventory_wire
from gpushare.wire import pods as pods_wire
from gpushare_cli import holders
from gpushare_cli.dashboard.model import Block, Card, Floating, NodeView, Totals
from gpushare_cli.holders import GpuRow, NodeRow
from gpushare_cli.usage import NodeUse

Object = Mapping[str, Any]
UNKNOWN_MODEL: Final = "model not known"
_NUMBER: Final = re.compile("[0-9]{1,4}")
_BY_INDEX: Final = by_index(0)[:-1]
_NEVER: Final[Mapping[tuple[str, str], str]] = {}


def of_node(node: Object, pods: Sequence[Object], unhealthy: frozenset[int], use: NodeUse | None) -> NodeView | None:
    """A node; None if it shares no GPUs.

    Args:
        node: as the API server returns it.
        pods: those on it that hold GPUs or ask for some.
        unhealthy: numbers of its GPUs that Aliyun's ConfigMap calls unhealthy.
        use: what its device plugin tells; None if it was not asked.
    """
    name = NodeName(fields.needed(fields.mapping(node, "metadata", "node"), "name", "metadata"))
    built = holders.build([node], pods, {name: unhealthy})
    if not built.nodes:
        return None
    since = {(ref.namespace, ref.name): placed_at(pod) for pod in pods for ref in [pods_wire.ref(pod)]}
    return replace(of_row(built.nodes[0], use, since), notes=built.notes)


def of_row(row: NodeRow, use: NodeUse | None, since: Mapping[tuple[str, str], str] = _NEVER) -> NodeView:
    """A node of a report.

    Args:
        row: of the node.
        use: what its device plugin tells; None if it was not asked.
        since: when pods came to it, by namespace and name.
    """
    used = _used(use.uses if use is not None else {})
    return NodeView(
        name=row.name,
        address=row.address,
        known=True,
        cards=tuple(_card(gpu, row, used, since) for gpu in row.gpus),
        floating=tuple(
            Floating(namespace=pod.namespace, name=pod.name, mib=pod.pending_mib) for pod in row.pods if pod.pending_mib
        ),
        left_out=tuple(f"GPU {gpu.index}: {gpu.reason}" for gpu in row.left_out),
        use_problem=use.problem if use is not None else "",
    )


def of_unread_node(name: NodeName, pods: Sequence[Object], unit: MemoryUnit) -> NodeView | None:
    """A node that may not be read, by what the pods that may be read hold of it; None if they hold nothing."""
    inventory = NodeInventory(node=name, gpus=tuple(_held_gpus(pods, unit)), unit=unit)
    if not inventory.gpus:
        return None
    annotations = {names.ANNOTATION_INVENTORY: inventory_wire.encode(inventory)}
    view = of_node({"metadata": {"name": name, "annotations": annotations}}, pods, frozenset(), None)
    return view and replace(view, known=False, address="", cards=tuple(map(_without_limits, view.cards)))


def _without_limits(card: Card) -> Card:
    """What holds the limits is not written on pods."""
    return replace(card, limit="?", blocks=tuple(replace(block, limit="?") for block in card.blocks))


def totals_of(view: NodeView) -> Totals:
    """Of one node."""
    measured = [card.used_mib for card in view.cards if card.used_mib is not None]
    return Totals(
        nodes=1,
        gpus=len(view.cards),
        unhealthy=sum(card.health != GpuHealth.HEALTHY.value for card in view.cards),
        total_mib=sum(card.total_mib for card in view.cards),
        granted_mib=sum(card.granted_mib for card in view.cards) + sum(pod.mib for pod in view.floating),
        used_mib=sum(measured) if measured else None,
        pods=len({(block.namespace, block.name) for card in view.cards for block in card.blocks}),
    )


def totals(nodes: Collection[Totals], waiting: int) -> Totals:
    """Of all nodes; a pod is on one of them."""
    measured = [each.used_mib for each in nodes if each.used_mib is not None]
    return Totals(
        nodes=len(nodes),
        gpus=sum(each.gpus for each in nodes),
        unhealthy=sum(each.unhealthy for each in nodes),
        total_mib=sum(each.total_mib for each in nodes),
        granted_mib=sum(each.granted_mib for each in nodes),
        used_mib=sum(measured) if measured else None,
        pods=sum(each.pods for each in nodes),
        waiting=waiting,
    )


def placed_at(pod: Object) -> str:
    """When a pod came to its node; empty if that is not told."""
    condition = fields.condition(pod, "PodScheduled", "pod")
    return str(condition.get("lastTransitionTime") or "") if condition.get("status") == "True" else ""


Used = Mapping[tuple[str, str, str], int]
"""MiB by namespace, pod and GPU."""


def _used(uses: Mapping[tuple[str, str, str, str], Any]) -> Used:
    found: dict[tuple[str, str, str], int] = {}
    for (namespace, pod, _, gpu), use in uses.items():
        if use.used_mib is not None:
            found[namespace, pod, gpu] = found.get((namespace, pod, gpu), 0) + use.used_mib
    return found


def _card(row: GpuRow, node: NodeRow, used: Used, since: Mapping[tuple[str, str], str]) -> Card:
    gpu = row.gpu
    blocks = tuple(
        Block(
            namespace=pod.namespace,
            name=pod.name,
            granted_mib=held.memory_mib,
            used_mib=used.get((pod.namespace, pod.name, gpu.uuid)),
            compute_percent=held.compute_percent,
            whole=held.whole,
            limit=gpu.limit_of(*pod.shares[gpu.index]).value,
            since=since.get((pod.namespace, pod.name), ""),
        )
        for pod in node.pods
        if (held := pod.held.get(gpu.index)) is not None
    )
    measured = [block.used_mib for block in blocks if block.used_mib is not None]
    limit = gpu.limit_of(*(mib for pod in node.pods for mib in pod.shares.get(gpu.index, ())))
    return Card(
        label=gpu.label,
        uuid=gpu.uuid,
        model=gpu.model,
        total_mib=row.total_mib,
        grantable_mib=row.grantable_mib if gpu.extra_mib else 0,
        granted_mib=row.used_mib,
        used_mib=sum(measured) if measured else None,
        compute_percent=row.compute_percent,
        health=gpu.health.value,
        why=gpu.why,
        limit=limit.value,
        strength=limit.strength,
        limit_reason=gpu.limit_reason,
        blocks=blocks,
    )


def _held_gpus(pods: Sequence[Object], unit: MemoryUnit) -> Iterator[Gpu]:
    """GPUs that pods hold, by what their bindings say of them; those that have no number get one that is free."""
    found: dict[GpuUuid, tuple[int | None, int]] = {}
    for pod in pods:
        for uuid, number, has_mib in _bindings(pod, unit):
            known, most = found.get(uuid, (None, 0))
            found[uuid] = (number if known is None else known, max(most, has_mib))
    taken: set[int] = set()
    for uuid, (number, mib) in sorted(found.items(), key=lambda item: (item[1][0] is None, item[1][0] or 0, item[0])):
        index = number if number is not None and number not in taken else max(taken, default=-1) + 1
        taken.add(index)
        yield Gpu(uuid=uuid, index=index, model=UNKNOWN_MODEL, memory_mib=mib)


def _bindings(pod: Object, unit: MemoryUnit) -> Iterator[tuple[GpuUuid, int | None, int]]:
    """GPUs that a pod holds: UUID, number on its node if it is told, and memory in MiB, 0 if it is not told."""
    try:
        allocation = allocations.held(pod, ResourceConfig(unit=unit, whole_gpus=True), unit).allocation
    except WireError:
        return
    if allocation is None or not pods_wire.holds_gpus(pod):
        return
    notes = pods_wire.annotations(pod)
    for grant in allocation.grants:
        numbers = str(notes.get(names.PREFIX_INDEX + grant.container, "")).split(",")
        has_mib = unit.to_mib(units.whole(notes.get(names.PREFIX_CAPACITY + grant.container)))
        for uuid, number in zip(grant.gpus, [*numbers, *([""] * len(grant.gpus))], strict=False):
            if not uuid.startswith(_BY_INDEX):
                yield uuid, int(number) if _NUMBER.fullmatch(number) else None, has_mib
