"""Process lists and pods -> who uses how much of which GPU, and who is above its grant. Pure.

What is not known speaks for the container: a sample that is missing, a GPU that does not answer and a process of which
the driver does not tell are never held against it. Memory is in bytes unless a name says MiB.
"""

from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import Enum, IntEnum

from deviceplugin.cgroups import CgroupOwner, Process
from deviceplugin.pods import HeldPod
from deviceplugin.source import GpuProcess, Lists, Measured
from gpushare import names
from gpushare.identity import ContainerName, GpuUuid, NodeName, PodRef, PodUid
from gpushare.model.gpu import Gpu, GpuHealth, LeftOut, Limit, NodeInventory
from gpushare.model.ledger import Held, NodeLedger, mib_on
from gpushare.units import MIB

Key = tuple[PodUid, ContainerName, GpuUuid]  # an empty name stands for all containers that hold nothing of the GPU
ListedSince = Mapping[GpuUuid, Mapping[int, float]]  # since when each PID stands in the GPU's list, by `monotonic`


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
    held: Mapping[GpuUuid, Held]  # by all its containers together
    containers: Mapping[str, ContainerName]  # by the runtime's ID, which the kubelet tells some seconds late
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

    @property
    def held(self) -> Held:
        """By its whole pod."""
        return self.pod.held.get(self.gpu, Held(0))


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
    usable_mib: int = 0  # in whole units, if it is shared by them; 0 of a GPU that takes no new pods
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
    measured: Measured = field(default_factory=dict)
    over: int | None = None  # containers above their grant for too long; None without a watchdog, or if not known


Pods = Mapping[PodUid, HoldingPod]


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
    at: float
    charges: tuple[Charge, ...]
    foreign: Mapping[GpuUuid, int]  # of each GPU that answered: used by processes of no pod that holds GPUs
    processes: tuple[int, int] = (0, 0)  # in the lists: those that the machine knows, and those that it does not

    def used(self) -> Mapping[Key, int | None]:
        found: dict[Key, int | None] = {}
        for charge in self.charges:
            before = found.get(charge.key, 0)
            found[charge.key] = None if before is None or not charge.complete else before + charge.used
        return found

    def used_of(self, gpu: GpuUuid) -> int | None:
        """What all processes use of a GPU; None if it did not answer, or the driver did not tell of every process."""
        charges = [charge for charge in self.charges if charge.gpu == gpu]
        if gpu not in self.foreign or not all(charge.complete for charge in charges):
            return None
        return self.foreign[gpu] + sum(charge.used for charge in charges)


def listed(before: ListedSince, lists: Lists, at: float) -> ListedSince:
    """Since when the PIDs of these lists stand there; a GPU that does not answer has those that it had."""
    return {
        gpu: known if entries is None else {entry.pid: known.get(entry.pid, at) for entry in entries}
        for gpu, entries in lists.items()
        for known in [before.get(gpu, {})]
    }


def since(listed: ListedSince) -> Mapping[int, float]:
    found: dict[int, float] = {}
    for pids in listed.values():
        found.update((pid, min(at, found.get(pid, at))) for pid, at in pids.items())
    return found


def join(sample: Sample, pods: Pods) -> Joined:
    """Give every process to the pod in whose cgroup it is."""
    charges: list[Charge] = []
    foreign: dict[GpuUuid, int] = {}
    for gpu, listed in sample.lists.items():
        if listed is None:
            continue
        groups: dict[CgroupOwner, list[GpuProcess]] = {}
        foreign[gpu] = 0
        for entry in listed:
            process = sample.processes.get(entry.pid)
            if process is None or process.owner is None or process.owner.pod not in pods:
                foreign[gpu] += entry.used or 0
            else:
                groups.setdefault(process.owner, []).append(entry)
        charges += [
            Charge(
                pod=pods[owner.pod],
                container=owner.container,
                gpu=gpu,
                used=sum(entry.used or 0 for entry in entries),
                complete=all(entry.used is not None for entry in entries),
                processes=tuple(sample.processes[entry.pid] for entry in entries),
            )
            for owner, entries in groups.items()
        ]
    pids = {entry.pid for entries in sample.lists.values() for entry in entries or ()}
    known = len(pids & sample.processes.keys())
    return Joined(at=sample.at, charges=tuple(charges), foreign=foreign, processes=(known, len(pids) - known))


def peaks(before: Mapping[Key, int], joined: Joined, pods: Pods) -> Mapping[Key, int]:
    """The most that each container has used so far; what is gone with its pod is forgotten."""
    after = {key: most for key, most in before.items() if key[0] in pods}
    now: dict[Key, int] = {}
    for charge in joined.charges:
        now[charge.key] = now.get(charge.key, 0) + charge.used
    return after | {key: max(used, after.get(key, 0)) for key, used in now.items()}


def view(inventory: NodeInventory, pods: Pods, joined: Joined | None, seen: Mapping[Key, int]) -> NodeUsage:
    keys = {(uid, container, gpu) for uid, pod in pods.items() for container, gpu in pod.granted}
    keys |= {key for key in seen if key[0] in pods}
    used: Mapping[Key, int | None] = joined.used() if joined else {}
    answered = joined.foreign if joined else {}
    rows = [
        Row(
            pod=pods[uid].ref,
            container=container,
            gpu=gpu,
            granted_mib=pods[uid].granted.get((container, gpu), 0),
            used=used.get((uid, container, gpu), 0) if gpu in answered else None,
            peak=seen.get((uid, container, gpu), 0 if gpu in answered else None),
        )
        for uid, container, gpu in keys
    ]
    rows.sort(key=lambda row: (row.pod.namespace, row.pod.name, row.pod.uid, row.container, row.gpu))
    return NodeUsage(
        node=inventory.node,
        gpus=inventory.every,
        left_out=inventory.left_out,
        totals={gpu.uuid: _total(gpu, inventory, pods, joined) for gpu in inventory.every},
        rows=tuple(rows),
        foreign=answered,
        processes=joined.processes if joined and answered else None,
    )


def _total(gpu: Gpu, inventory: NodeInventory, pods: Pods, joined: Joined | None) -> GpuTotal:
    held = [pod.held[gpu.uuid] for pod in pods.values() if gpu.uuid in pod.held]
    unit = inventory.unit
    usable_mib = gpu.memory_mib if gpu in inventory.dra else unit.floor(gpu.memory_mib) * unit.mib
    return GpuTotal(
        usable_mib=usable_mib if gpu.health is GpuHealth.HEALTHY else 0,
        granted_mib=sum(each.memory_mib for each in held),
        granted_percent=sum(100 if each.whole else each.compute_percent for each in held),
        pods=len(held),
        used=joined.used_of(gpu.uuid) if joined else None,
    )


def holding(held: Iterable[HeldPod], inventory: NodeInventory) -> Pods:
    """The node's pods that hold GPUs, by UID, with what each of their containers may use of which GPU."""
    ledger, found = NodeLedger.of(inventory), dict[PodUid, HoldingPod]()
    for pod in held:
        new = _holding(pod, ledger)
        if known := found.get(new.ref.uid):  # by claims too, which are never of the same GPUs
            new = replace(new, granted={**known.granted, **new.granted}, held={**known.held, **new.held})
        found[new.ref.uid] = new
    return found


def _holding(pod: HeldPod, ledger: NodeLedger) -> HoldingPod:
    granted: dict[tuple[ContainerName, GpuUuid], int] = {}
    for grant in pod.allocation.grants:
        for gpu in grant.gpus:
            key = grant.container, gpu
            granted[key] = granted.get(key, 0) + mib_on(grant, ledger.inventory.by_uuid.get(gpu))
    policy = WatchdogPolicy.OFF
    with suppress(ValueError):
        policy = WatchdogPolicy.parse(str(pod.annotations.get(names.WATCHDOG, "")))
    return HoldingPod(
        ref=pod.allocation.pod,
        granted=granted,
        held=ledger.held(pod.allocation) if pod.held is None else pod.held,
        containers={identity: name for name, identity in pod.container_ids.items()},
        policy=policy,
    )


@dataclass(frozen=True, slots=True)
class WatchedContainer:
    """What is judged: one life of one container on one GPU."""

    pod: PodUid
    container: str  # the runtime's ID, new with every restart; empty for all containers of the pod, judged together
    gpu: GpuUuid


@dataclass(frozen=True, slots=True, kw_only=True)
class OverGrant:
    subject: WatchedContainer
    pod: HoldingPod
    name: ContainerName  # of the container; empty for the pod as a whole
    granted_mib: int
    used: int  # at least so many bytes
    processes: tuple[Process, ...]  # those that may be ended for it


@dataclass(frozen=True, slots=True)
class OverSince:
    since: float
    last: float


State = Mapping[WatchedContainer, OverSince]


def over_grants(joined: Joined, *, tolerance_mib: int) -> Mapping[WatchedContainer, OverGrant]:
    """All that is above its grant in this sample.

    A container that holds part of the GPU is judged by itself; others, or those whose name the kubelet has yet to tell,
    by what their whole pod may use.
    """
    found: dict[WatchedContainer, OverGrant] = {}
    of_pods: dict[tuple[PodUid, GpuUuid], list[Charge]] = {}

    def judge(charge: Charge, container: str, granted_mib: int, used: int, processes: tuple[Process, ...]) -> None:
        if processes and used > (granted_mib + tolerance_mib) * MIB:
            subject = WatchedContainer(charge.pod.ref.uid, container, charge.gpu)
            name = charge.name if container else ContainerName("")
            found[subject] = OverGrant(
                subject=subject, pod=charge.pod, name=name, granted_mib=granted_mib, used=used, processes=processes
            )

    for charge in joined.charges:
        if charge.held.whole:  # no one else is there to take memory from
            continue
        of_pods.setdefault((charge.pod.ref.uid, charge.gpu), []).append(charge)
        if charge.name:
            granted = charge.pod.granted[charge.name, charge.gpu]
            judge(charge, charge.container, granted, charge.used, charge.processes)
    for charges in of_pods.values():
        processes = tuple(each for charge in charges if not charge.name for each in charge.processes)
        judge(charges[0], "", charges[0].held.memory_mib, sum(charge.used for charge in charges), processes)
    return found


def advance(before: State, found: Mapping[WatchedContainer, OverGrant], joined: Joined, *, gap_s: float) -> State:
    """Who stands where after a sample. After a gap, in which anything may have happened, it all begins again."""
    now = joined.at
    recent = {subject: standing for subject, standing in before.items() if now - standing.last <= gap_s}
    unknown = {subject: standing for subject, standing in recent.items() if subject.gpu not in joined.foreign}
    return unknown | {subject: OverSince(recent[subject].since if subject in recent else now, now) for subject in found}


def due(state: State, found: Mapping[WatchedContainer, OverGrant], *, grace_s: float) -> list[OverGrant]:
    over = [excess for subject, excess in found.items() if state[subject].last - state[subject].since >= grace_s]
    return sorted(over, key=lambda excess: (excess.subject.pod, excess.subject.container, excess.subject.gpu))


def with_watchdog(inventory: NodeInventory, policy: WatchdogPolicy, unseen: Collection[GpuUuid] = ()) -> NodeInventory:
    """With the watchdog as what holds limits, where it acts, processes are not `unseen`, and nothing stronger does."""
    if policy < WatchdogPolicy.EVICT:
        return inventory
    gpus = (
        replace(gpu, limit=Limit.WATCHDOG) if gpu.limit is Limit.ADVISORY and gpu.uuid not in unseen else gpu
        for gpu in inventory.gpus
    )
    return replace(inventory, gpus=tuple(gpus))
