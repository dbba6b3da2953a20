"""What kube-scheduler knows of a node. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from gpushare import names, units
from gpushare.identity import NodeName
from gpushare.wire import fields

Object = Mapping[str, Any]
HOSTNAME: Final = "kubernetes.io/hostname"
RESOURCES: Final = (names.GPU_MEM, names.GPU_PERCENT, names.GPU_CORE, names.GPU)
"""Extended resources whose sum kube-scheduler checks for every node, beside the GPUs' own ledger."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Taint:
    """Keeps away pods that do not tolerate it."""

    key: str
    value: str
    effect: str

    def __str__(self) -> str:
        return f"{self.key}={self.value}:{self.effect}" if self.value else f"{self.key}:{self.effect}"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFacts:
    """What kube-scheduler knows of a node."""

    name: NodeName
    labels: Mapping[str, str]
    taints: tuple[Taint, ...] = ()
    cordoned: bool = False
    allocatable: Mapping[str, int] | None = None
    """GPU resources that the kubelet reports; None if the object has no status."""


def node_facts(node: Object) -> NodeFacts:
    """What matters of a node.

    Raises:
        WireError: it is no node.
    """
    metadata = fields.mapping(node, "metadata", "node")
    spec, status = fields.mapping(node, "spec", "node"), fields.mapping(node, "status", "node")
    name = NodeName(fields.needed(metadata, "name", "metadata"))
    allocatable = fields.mapping(status, "allocatable", "status")
    return NodeFacts(
        name=name,
        labels={HOSTNAME: name, **fields.mapping(metadata, "labels", "metadata")},
        taints=tuple(_taint(taint, i) for i, taint in enumerate(fields.objects(spec, "taints", "spec"))),
        cordoned=spec.get("unschedulable") is True,
        allocatable={key: units.whole(allocatable.get(key)) for key in RESOURCES} if allocatable else None,
    )


def _taint(taint: Object, i: int) -> Taint:
    path = f"spec.taints[{i}]"
    return Taint(
        key=fields.needed(taint, "key", path),
        value=fields.text(taint, "value", path),
        effect=fields.text(taint, "effect", path),
    )
