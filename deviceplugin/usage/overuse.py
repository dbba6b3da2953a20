"""Which containers are above their grant, and for how long. Pure.

What is not known speaks for the container: a sample that is missing, a GPU that does not answer and a process of which
the driver does not tell never make it guilty.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from deviceplugin.usage.join import MIB, Joined
from deviceplugin.usage.values import Charge, HoldingPod, Policy, Process
from gpushare.identity import ContainerName, GpuUuid, PodUid
from gpushare.model.gpu import Limit, NodeInventory


@dataclass(frozen=True, slots=True)
class Subject:
    """What is judged: one life of one container on one GPU."""

    pod: PodUid
    container: str
    """The runtime's ID, which changes with every restart; empty for all containers of the pod, judged together."""
    gpu: GpuUuid


@dataclass(frozen=True, slots=True, kw_only=True)
class Excess:
    """One that uses more than it was granted."""

    subject: Subject
    pod: HoldingPod
    name: ContainerName
    """Of the container; empty for the pod as a whole."""
    granted_mib: int
    used: int
    """At least so many bytes."""
    processes: tuple[Process, ...]
    """Those that may be ended for it."""


@dataclass(frozen=True, slots=True)
class Standing:
    """Since when something was above its grant in every sample."""

    since: float
    last: float


State = Mapping[Subject, Standing]


def excesses(joined: Joined, *, tolerance_mib: int) -> Mapping[Subject, Excess]:
    """All that is above its grant in this sample.

    A container that holds part of the GPU is judged by itself. One that holds nothing of it, or whose name the kubelet
    has yet to tell, is judged by what its whole pod may use.
    """
    found = {}
    charges_of = _by_pod(joined)
    for charge in (charge for charges in charges_of.values() for charge in charges):
        if charge.name:
            granted = charge.pod.granted[charge.name, charge.gpu]
            if charge.used > (granted + tolerance_mib) * MIB:
                excess = _excess(charge, charge.container, granted, charge.used, charge.processes)
                found[excess.subject] = excess
    for charges in charges_of.values():
        first, granted = charges[0], charges[0].pod.most.get(charges[0].gpu, 0)
        used = sum(charge.used for charge in charges)
        processes = tuple(each for charge in charges if not charge.name for each in charge.processes)
        if processes and used > (granted + tolerance_mib) * MIB:
            excess = _excess(first, "", granted, used, processes)
            found[excess.subject] = excess
    return found


def advance(before: State, found: Mapping[Subject, Excess], joined: Joined, *, gap_s: float) -> State:
    """Who stands where after a sample. After a gap, in which anything may have happened, it all begins again."""
    now = joined.at
    unknown = {
        subject: standing
        for subject, standing in before.items()
        if subject not in found and subject.gpu not in joined.foreign
    }
    guilty = {
        subject: Standing(known.since if (known := before.get(subject)) and now - known.last <= gap_s else now, now)
        for subject in found
    }
    return {subject: standing for subject, standing in unknown.items() if now - standing.last <= gap_s} | guilty


def due(state: State, found: Mapping[Subject, Excess], *, grace_s: float) -> list[Excess]:
    """Those above their grant for longer than the grace period, in an order of their own."""
    over = [excess for subject, excess in found.items() if state[subject].last - state[subject].since >= grace_s]
    return sorted(over, key=lambda excess: (excess.subject.pod, excess.subject.container, excess.subject.gpu))


def shown(inventory: NodeInventory, policy: Policy, unseen: Collection[GpuUuid] = ()) -> NodeInventory:
    """The inventory with the watchdog as what holds the limit, where it acts and nothing stronger does.

    Args:
        inventory: of the node.
        policy: the node's.
        unseen: GPUs whose processes the driver does not list, so that no one can watch over them.
    """
    if policy < Policy.EVICT:
        return inventory
    gpus = (
        replace(gpu, limit=Limit.WATCHDOG) if gpu.limit is Limit.ADVISORY and gpu.uuid not in unseen else gpu
        for gpu in inventory.gpus
    )
    return replace(inventory, gpus=tuple(gpus))


def _by_pod(joined: Joined) -> Mapping[tuple[PodUid, GpuUuid], list[Charge]]:
    """On GPUs that are shared."""
    found: dict[tuple[PodUid, GpuUuid], list[Charge]] = {}
    for charge in joined.charges:
        if charge.gpu not in charge.pod.whole:
            found.setdefault((charge.pod.ref.uid, charge.gpu), []).append(charge)
    return found


def _excess(charge: Charge, container: str, granted: int, used: int, processes: tuple[Process, ...]) -> Excess:
    return Excess(
        subject=Subject(charge.pod.ref.uid, container, charge.gpu),
        pod=charge.pod,
        name=charge.name if container else ContainerName(""),
        granted_mib=granted,
        used=used,
        processes=processes,
    )
