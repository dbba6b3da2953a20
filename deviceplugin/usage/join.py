"""Process lists and pods -> who uses how much of which GPU. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from deviceplugin.cgroups import CgroupOwner
from deviceplugin.usage.values import (
    Charge,
    GpuProcess,
    GpuTotal,
    HoldingPod,
    Key,
    Listed,
    Lists,
    NodeUsage,
    Process,
    Row,
    Sample,
)
from gpushare.identity import GpuUuid, PodUid
from gpushare.model.gpu import Gpu, GpuHealth, NodeInventory
from gpushare.units import MemoryUnit

MIB = 1024 * 1024
Pods = Mapping[PodUid, HoldingPod]


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
    """One sample, by pods."""

    at: float
    charges: tuple[Charge, ...]
    foreign: Mapping[GpuUuid, int]
    """Of each GPU that answered: used by processes of no pod that holds GPUs."""
    processes: tuple[int, int] = (0, 0)
    """In the lists: those that the machine knows, and those that it does not."""

    def used(self) -> Mapping[Key, int | None]:
        """What containers use by name; None where the driver did not tell of every process."""
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


def merged(lists: Iterable[Iterable[GpuProcess]]) -> tuple[GpuProcess, ...]:
    """One list from several, in which a process may stand more than once, each time with all that it uses."""
    used: dict[int, int | None] = {}
    for entry in (entry for each in lists for entry in each):
        before = used.get(entry.pid)
        used[entry.pid] = before if entry.used is None else max(entry.used, before or 0)
    return tuple(GpuProcess(pid, amount) for pid, amount in sorted(used.items()))


def listed(before: Listed, lists: Lists, at: float) -> Listed:
    """Since when the PIDs of these lists stand there; a GPU that does not answer has those that it had."""
    return {
        gpu: known if entries is None else {entry.pid: known.get(entry.pid, at) for entry in entries}
        for gpu, entries in lists.items()
        for known in [before.get(gpu, {})]
    }


def since(listed: Listed) -> Mapping[int, float]:
    """Since when each PID stands in some list."""
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
        charges += [_charge(gpu, pods[owner.pod], owner, entries, sample) for owner, entries in groups.items()]
    pids = {entry.pid for entries in sample.lists.values() for entry in entries or ()}
    known = len(pids & sample.processes.keys())
    return Joined(at=sample.at, charges=tuple(charges), foreign=foreign, processes=(known, len(pids) - known))


def _charge(gpu: GpuUuid, pod: HoldingPod, owner: CgroupOwner, entries: Sequence[GpuProcess], sample: Sample) -> Charge:
    processes: tuple[Process, ...] = tuple(sample.processes[entry.pid] for entry in entries)
    return Charge(
        pod=pod,
        container=owner.container,
        gpu=gpu,
        used=sum(entry.used or 0 for entry in entries),
        complete=all(entry.used is not None for entry in entries),
        processes=processes,
    )


def peaks(before: Mapping[Key, int], joined: Joined, pods: Pods) -> Mapping[Key, int]:
    """The most that each container has used so far; what is gone with its pod is forgotten."""
    after = {key: most for key, most in before.items() if key[0] in pods}
    now: dict[Key, int] = {}
    for charge in joined.charges:
        now[charge.key] = now.get(charge.key, 0) + charge.used
    return after | {key: max(used, after.get(key, 0)) for key, used in now.items()}


def view(inventory: NodeInventory, pods: Pods, joined: Joined | None, seen: Mapping[Key, int]) -> NodeUsage:
    """What there is to show; without a sample only what was granted."""
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
        gpus=inventory.gpus,
        left_out=inventory.left_out,
        totals={gpu.uuid: _total(gpu, inventory.unit, pods, joined) for gpu in inventory.gpus},
        rows=tuple(rows),
        foreign=answered,
        processes=joined.processes if joined and answered else None,
    )


def _total(gpu: Gpu, unit: MemoryUnit, pods: Pods, joined: Joined | None) -> GpuTotal:
    holders = [pod for pod in pods.values() if gpu.uuid in pod.most]
    return GpuTotal(
        usable_mib=unit.floor(gpu.memory_mib) * unit.mib if gpu.health is GpuHealth.HEALTHY else 0,
        granted_mib=sum(pod.most[gpu.uuid] for pod in holders),
        granted_percent=sum(pod.percent[gpu.uuid] for pod in holders),
        pods=len(holders),
        used=joined.used_of(gpu.uuid) if joined else None,
    )
