"""The seams between this plugin and the hardware: GPUs, and the processes on them."""

import threading
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from deviceplugin.causes import NONE, Cause, Code
from gpushare.errors import GpuShareError
from gpushare.identity import GpuUuid
from gpushare.model.gpu import LeftOut, MigInstance

WITHOUT_INSTANCES: Final = Cause(
    Code.MIG_EMPTY, "in MIG mode without instances; nvidia-smi mig -cgi makes some, nvidia-smi -mig 0 turns it off"
)


class GpuSourceError(GpuShareError):
    """The GPUs cannot be read now; the message says why and what to do. Reading is tried again later."""

    def __init__(self, message: str, *, reason: Cause = NONE) -> None:
        super().__init__(message)
        # The same in a few words, for the inventory of a node that was read before.
        self.reason = reason or Cause(Code.OTHER, message)


class OutdatedLibraryError(GpuSourceError):
    """This process can never read the GPUs again: it has loaded the library of another driver."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RawGpu:
    uuid: str
    index: int  # number on the node, from 0; of a MIG instance `mig_index`
    model: str
    memory_bytes: int
    numa: int | None = None
    minor: int | None = None  # of its device node, or its GPU's, `/dev/nvidia<minor>`; None if the source does not say
    caps: tuple[int, ...] = ()  # of a MIG instance's device nodes `/dev/nvidia-caps/nvidia-cap<N>`
    simulated: bool = False  # whether it is made up, and has no device node
    fault: Cause = NONE  # why no new work may be placed on it, in a few words; empty for a healthy GPU
    mig: MigInstance | None = None  # set for a part of a GPU, whose `memory_bytes` are the part's
    attributes: tuple[tuple[str, str], ...] = field(default=(), compare=False)
    """What claims select by, by the names of NVIDIA's DRA driver."""


class GpuSource(Protocol):
    """Reads the node's GPUs. Used by one thread."""

    left_out: Sequence[LeftOut]  # GPUs that are there and cannot be shared as they are, by the last reading

    def read(self) -> Sequence[RawGpu]:
        """All GPUs that can be shared, as they are now. May raise GpuSourceError."""

    def wait(self, stop: threading.Event, seconds: float) -> None:
        """Sleep so long, but return early when `stop` is set or a GPU reports a fault."""

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class GpuProcess:
    pid: int  # as this process would call it
    used: int | None  # bytes; None where the driver does not say


Measured = Mapping[GpuUuid, Mapping[str, float]]  # of GPUs, by the ends of names of metrics
Lists = Mapping[GpuUuid, Sequence[GpuProcess] | None]  # on each GPU, each once; None for one that did not answer


class ProcessLists(Protocol):
    def read(self, gpus: Collection[GpuUuid]) -> Lists:
        """The processes on these GPUs and MIG instances; a driver that hangs is given up on, and logged."""


def merged(lists: Iterable[Iterable[GpuProcess]]) -> tuple[GpuProcess, ...]:
    """One list from several, in which a process may stand more than once, each time with all that it uses."""
    used: dict[int, int | None] = {}
    for entry in (entry for each in lists for entry in each):
        before = used.get(entry.pid)
        used[entry.pid] = before if entry.used is None else max(entry.used, before or 0)
    return tuple(GpuProcess(pid, amount) for pid, amount in sorted(used.items()))
