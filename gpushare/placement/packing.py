"""The policies `binpack` and `spread`, which look at free memory of GPUs alone. Pure."""

from typing import Final

from gpushare.model.capacity import FreeGpu, NodeCapacity
from gpushare.model.request import Need
from gpushare.placement.ranking import Ranking

_WHOLE: Final = 10**9
"""Of a node; fine enough that of a cluster's nodes few are alike."""


class Binpack(Ranking):
    """The fullest GPU that fits, on the fullest node."""

    by_gpus = True
    basis = None

    def gpu(self, before: FreeGpu, need: Need) -> int:  # noqa: ARG002 - of the protocol
        """Its free MiB."""
        return before.free_mib

    def first(self, before: NodeCapacity, after: NodeCapacity) -> int:  # noqa: ARG002 - of the protocol
        """The part of the node's GPUs that stays free."""
        return binpack(sum(gpu.free_mib for gpu in after.gpus), sum(gpu.total_mib for gpu in after.gpus))


class Spread(Ranking):
    """The emptiest GPU, on the emptiest node."""

    by_gpus = True
    basis = None

    def gpu(self, before: FreeGpu, need: Need) -> int:  # noqa: ARG002 - of the protocol
        """Its free MiB, the most first."""
        return -before.free_mib

    def first(self, before: NodeCapacity, after: NodeCapacity) -> int:  # noqa: ARG002 - of the protocol
        """The part of the node's GPUs that stays free, the most first."""
        return spread(sum(gpu.free_mib for gpu in after.gpus), sum(gpu.total_mib for gpu in after.gpus))


def binpack(free_mib: int, total_mib: int) -> int:
    """Cost of a node on whose GPUs so much is free of so much, after placement. A node without GPUs costs nothing."""
    return _WHOLE * free_mib // max(total_mib, 1)


def spread(free_mib: int, total_mib: int) -> int:
    """The same the other way round."""
    return -binpack(free_mib, total_mib) if total_mib else -_WHOLE - 1
