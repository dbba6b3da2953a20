"""Identifiers as types, so that a node's name cannot stand where a GPU's UUID is meant."""

from dataclasses import dataclass
from typing import NewType

NodeName = NewType("NodeName", str)
GpuUuid = NewType("GpuUuid", str)
PodUid = NewType("PodUid", str)
ContainerName = NewType("ContainerName", str)


@dataclass(frozen=True, slots=True, kw_only=True)
class PodRef:
    """One pod of the cluster. Its identity is `uid`; names are reused by later pods."""

    namespace: str
    name: str
    uid: PodUid

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


def by_index(index: int) -> GpuUuid:
    """Stand-in UUID of a GPU known only by its number on the node, as in Aliyun gpushare's annotations.

    `NodeInventory.resolve` turns it into the real one.
    """
    return GpuUuid(f"index:{index}")
