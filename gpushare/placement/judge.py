"""Pods with one container, whatever it asks for, judged by what is kept of each node (`placement.room`).

What a GPU is worth to the pod is found once for GPUs that are alike, so that a verdict is a sum over the node's GPUs.
`place` is the reference: what is said here is the same, word for word, and where only `place` can tell, nothing is.
"""

from typing import Final, NamedTuple

from gpushare.identity import GpuUuid
from gpushare.model.allocation import RefusalReason, Refused
from gpushare.model.gpu import Gpu, HandOver, Limit, MigInstance
from gpushare.model.request import Need, RequestShape
from gpushare.model.selector import ANY_GPU
from gpushare.placement import candidates, explain
from gpushare.placement.room import GpuKind, GpuState, Room
from gpushare.units import MemoryUnit

_BITS: Final = 16
_FITS, _ROOMY, _LARGE, _OPEN = (1 << _BITS * place for place in range(4))
"""The worth of a GPU: it has room for the container; its free memory is enough; all its memory would be; it is of a
kind that the container may get. Added up over a node they are counts."""
_COUNT: Final = (1 << _BITS) - 1
_MOST: Final = 4096
"""GPUs that are not alike; what is known of them is forgotten then."""


def can_judge(shape: RequestShape) -> bool:
    """Whether it follows from what is kept of nodes on which of them a pod fits. The shape is resolved."""
    return len(shape.containers) == 1 and shape.affinity is None and shape.gpus.uuids == ANY_GPU.uuids


class Judge:
    """One kind of pod, of which `can_judge` is true."""

    def __init__(self, shape: RequestShape, unit: MemoryUnit) -> None:
        """The unit is that of the nodes."""
        self._shape = shape
        self._request = shape.containers[0]
        self._worth = _Worth(shape)
        self._needs = explain.needs(shape, unit)
        self._no_matches: dict[tuple[tuple[int, GpuKind], ...], tuple[str, str]] = {}
        """What is said around a node's name, by its GPUs."""

    def fits(self, room: Room) -> bool | Refused | None:
        """Whether the pod fits on a node, and if not, why; None where `place` has to tell."""
        if self._shape.only_cdi and room.inventory.hand_over is not HandOver.CDI:
            return None
        found, count = sum(map(self._worth.__getitem__, room.gpus)), self._request.gpu_count
        if found & _COUNT >= count:
            return True
        if not room.plain or count > len(room.gpus):
            return None
        if found // _OPEN < len(room.gpus):
            return self._no_match(room) if found // _OPEN < count else None
        never = found // _LARGE & _COUNT < count
        text = self._needs + self._left(room) + (room.in_all if never else "")
        return Refused(self._reason(found), text, permanent=never)

    def _no_match(self, room: Room) -> Refused:
        around = self._no_matches.get(room.kinds)
        if around is None:
            barred = {
                gpu.uuid: why
                for gpu, state in zip(room.inventory.gpus, room.gpus, strict=True)
                if (why := self._worth.asked(state.kind).why)
            }
            around = explain.around_the_node(self._shape, self._request, barred, room.inventory)
            self._no_matches[room.kinds] = around
        return Refused(RefusalReason.NO_MATCHING_GPU, room.inventory.node.join(around), permanent=True)

    def _left(self, room: Room) -> str:
        if self._request.whole:
            return room.left_of_whole
        return room.left_of_both if self._request.compute_percent else room.left

    def _reason(self, found: int) -> RefusalReason:
        if self._request.whole:
            return RefusalReason.NO_UNTOUCHED_GPU
        if found // _ROOMY & _COUNT >= self._request.gpu_count:
            return RefusalReason.INSUFFICIENT_GPU_COMPUTE
        return RefusalReason.INSUFFICIENT_GPU_MEMORY


class _Asked(NamedTuple):
    """What a container takes of a kind of GPU."""

    worth: int
    """Of such a GPU on which nothing is left; 0 if the container may not have it."""
    need: Need
    why: str
    """Why the pod may not have it, in two or three words."""


class _Worth(dict[GpuState, int]):
    """What GPUs are worth to a pod, found when they are first looked at."""

    def __init__(self, shape: RequestShape) -> None:
        super().__init__()
        self._shape = shape
        self._whole = shape.containers[0].whole
        self._asked: dict[GpuKind, _Asked] = {}

    def asked(self, kind: GpuKind) -> _Asked:
        """What the container takes of a kind of GPU."""
        if kind not in self._asked:
            self._asked[kind] = _asked(self._shape, kind)
        return self._asked[kind]

    def __missing__(self, gpu: GpuState) -> int:
        if len(self) >= _MOST:
            self.clear()
        worth, need, _ = self.asked(gpu.kind)
        if worth and gpu.free_mib >= need.memory_mib:
            worth += _ROOMY
            if (gpu.untouched or not self._whole) and gpu.free_percent >= need.compute_percent:
                worth += _FITS
        self[gpu] = worth
        return worth


def _asked(shape: RequestShape, kind: GpuKind) -> _Asked:
    mig = MigInstance(gpu=0, number=0, profile="") if kind.mig else None
    like = Gpu(
        uuid=GpuUuid(""),
        index=0,
        model=kind.model,
        memory_mib=kind.memory_mib,
        extra_mib=int(kind.oversubscribed),
        limit=Limit(kind.limit),
        mig=mig,
    )
    request = shape.containers[0]
    need, why = request.need(like), candidates.by_kind(shape, [like]).get(like.uuid, "")
    if why or not candidates.takes(shape, request, like):
        return _Asked(0, need, why)
    return _Asked(_OPEN + (_LARGE if kind.memory_mib >= need.memory_mib else 0), need, "")
