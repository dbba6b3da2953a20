"""All that there is to say about one pod. Pure values."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

from gpushare import units
from gpushare.identity import NodeName, PodRef
from gpushare.model.allocation import Grant, Held
from gpushare.model.gpu import Gpu, Limit
from gpushare.model.request import PodRequest, Policy
from gpushare.units import MemoryUnit
from gpushare_cli.usage import NodeUse, Use
from gpushare_cli.world import NodeAnswer


class State(Enum):
    NO_GPU = "AsksForNoGpu"
    WAITS = "Waits"  # on no node
    WITHOUT_GPU = "WithoutGpu"  # on a node, and gpushare has given it no GPUs
    HOLDS = "HoldsGpus"
    UNREADABLE = "Unreadable"  # on a node, and no one can tell what it holds
    ENDED = "Ended"  # its containers have ended and what it held was given back


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    grant: Grant
    gpu: Gpu | None  # None if the node does not list it
    uuid: str
    memory_mib: int
    evaluated: bool = True  # whether the node's GPUs could be read

    @property
    def limit(self) -> Limit | None:
        return self.gpu.limit_of(self.memory_mib) if self.gpu else None

    @property
    def memory_percent(self) -> int:
        """Of the GPU's memory; 0 if that is not known."""
        return units.percent(self.memory_mib, self.gpu.memory_mib) if self.gpu else 0

    @property
    def trouble(self) -> str:
        if self.gpu is None:
            return "no longer listed by its node" if self.evaluated else ""
        return self.gpu.why


@dataclass(frozen=True, slots=True, kw_only=True)
class Fill:
    """How full one of the pod's GPUs is, and who else is on it."""

    gpu: Gpu
    granted_mib: int
    compute_percent: int
    neighbours: Sequence[tuple[PodRef, Held]]  # other pods, and what they hold of it


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeChoice:
    """Why a pod goes to a node, or is there, and not on another one with room."""

    node: NodeName
    why: str  # what its GPUs there have to do with it
    next: NodeName | None = None  # the best other node with room; may be better by now
    lack: str = ""
    in_hindsight: bool = False  # the pod has a node already, and this is by the cluster as it is now without it


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    pod: PodRef
    phase: str
    state: State
    headline: str
    summary: str
    good: bool  # it holds its GPUs, needs none (or no longer), or a node takes it
    unit: MemoryUnit
    request: PodRequest | None = None
    policy: Policy  # of the cluster; a request may name another
    node: NodeName | None = None
    scheduler: str = ""
    said: str = ""  # what the scheduler wrote on the pod when it last gave up
    answers: tuple[NodeAnswer, ...] = ()  # of all nodes that come into question, the best first
    choice: NodeChoice | None = None  # None if no node takes it, or another system chose its GPUs
    shares: tuple[Share, ...] = ()
    use: NodeUse = field(default_factory=NodeUse)  # what the device plugin of its node tells
    fills: tuple[Fill, ...] = ()
    origin: str = ""
    limit: str = ""
    notes: tuple[str, ...] = ()

    def used(self, container: str, uuid: str) -> Use:
        """By its container of this name; without one, by those that hold nothing of the GPU."""
        return self.use.uses.get((self.pod.namespace, self.pod.name, container, uuid), Use())
