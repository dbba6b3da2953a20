"""What is read about the use of GPUs, and what it comes to. Pure values; memory is in bytes unless a name says MiB."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, IntEnum

from deviceplugin.cgroups import CgroupOwner
from deviceplugin.source import Lists
from gpushare.identity import ContainerName, GpuUuid, NodeName, PodRef, PodUid
from gpushare.model.gpu import Gpu, LeftOut

Key = tuple[PodUid, ContainerName, GpuUuid]  # an empty name stands for all containers that hold nothing of the GPU
ListedSince = Mapping[GpuUuid, Mapping[int, float]]  # since when each PID stands in the GPU's list, by `monotonic`


@dataclass(frozen=True, slots=True)
class Process:
    """One process, told from every other that has its PID before or after it."""

    pid: int
    started: int  # clock ticks since the machine's start
    owner: CgroupOwner | None  # None: it belongs to no pod


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    at: float  # by `Clock.monotonic`, before the lists were read
    lists: Lists
    processes: Mapping[int, Process]  # by PID, without those that had ended, or are younger than the lists


class WatchdogPolicy(IntEnum):
    """What the watchdog does about a container above its grant, from the most lenient on. All but OFF tell of it."""

    OFF = 0
    REPORT = 1
    EVICT = 2
    KILL = 3

    @classmethod
    def parse(cls, text: str) -> "WatchdogPolicy":
        try:
            return {str(each): each for each in cls}[text]
        except KeyError:
            raise ValueError(f"write one of {', '.join(str(each) for each in cls)}") from None

    def __str__(self) -> str:
        return self.name.lower()


class UsageReading(Enum):
    ON = "on"
    OFF = "off"
    HIDDEN = "no-host-pid"  # it is to be read, and the processes of the node cannot be seen
    SILENT = "no-answer"  # it is to be read, and the driver lists the processes of no GPU, or does not answer

    @classmethod
    def of(cls, *, wanted: bool, pid: int) -> "UsageReading":
        """Args: pid: this process's own; the first process of a container sees its container alone."""
        return (cls.HIDDEN if pid == 1 else cls.ON) if wanted else cls.OFF


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldingPod:
    ref: PodRef
    granted: Mapping[tuple[ContainerName, GpuUuid], int]  # MiB
    most: Mapping[GpuUuid, int]  # MiB that all its containers together may use at its worst moment
    containers: Mapping[str, ContainerName]  # by the runtime's ID, which the kubelet tells some seconds late
    percent: Mapping[GpuUuid, int] = field(default_factory=dict)  # of compute, at its worst moment
    whole: frozenset[GpuUuid] = frozenset()  # GPUs that it has for itself: no one else is there to take memory from
    policy: WatchdogPolicy = WatchdogPolicy.OFF  # that its author has asked for


@dataclass(frozen=True, slots=True, kw_only=True)
class Charge:
    pod: HoldingPod
    container: str  # the runtime's ID; empty for processes of the pod in no container
    gpu: GpuUuid
    used: int
    complete: bool  # whether `used` is all: if the driver did not tell of a process, it is at least that
    processes: tuple[Process, ...]

    @property
    def name(self) -> ContainerName:
        """The container's name; empty for one that holds nothing of this GPU, or that the kubelet has yet to tell."""
        name = self.pod.containers.get(self.container, ContainerName(""))
        return name if (name, self.gpu) in self.pod.granted else ContainerName("")

    @property
    def key(self) -> Key:
        return self.pod.ref.uid, self.name, self.gpu


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One container on one GPU, as metrics and views show it."""

    pod: PodRef
    container: ContainerName  # empty for all processes of the pod in containers that hold nothing of this GPU
    gpu: GpuUuid
    granted_mib: int
    used: int | None  # None if it is not known
    peak: int | None  # the most that was seen since this plugin started


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuTotal:
    usable_mib: int = 0  # in whole units; 0 of a GPU that takes no new pods
    granted_mib: int = 0
    granted_percent: int = 0  # of compute
    pods: int = 0
    used: int | None = None  # by all processes; None if it is not known


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeUsage:
    node: NodeName
    gpus: tuple[Gpu, ...] = ()
    left_out: tuple[LeftOut, ...] = ()  # GPUs that are there and cannot be shared
    totals: Mapping[GpuUuid, GpuTotal] = field(default_factory=dict)
    rows: tuple[Row, ...] = ()  # by namespace, pod, container, GPU
    foreign: Mapping[GpuUuid, int]  # used by processes of no pod that holds GPUs here; of GPUs that answered
    reading: UsageReading = UsageReading.OFF
    processes: tuple[int, int] | None = None  # in all lists: those that this machine knows, and those that it does not
    over: int | None = None  # containers above their grant for too long; None without a watchdog, or if not known
