"""Which of the scheduler's nodes a pod fits on. Pure: it only sorts answers that were computed before."""

from collections.abc import Collection, Iterable, Mapping

from controller.extender.messages import FilterResult
from controller.rooms import NONE, Rooms
from gpushare.cluster import node_records
from gpushare.identity import NodeName
from gpushare.model.verdict import Refused
from gpushare.placement import explain
from gpushare.placement.room import Room
from gpushare.units import MemoryUnit


def decide(
    names: Iterable[NodeName], answers: Mapping[NodeName, int | Refused], reserved: frozenset[NodeName]
) -> FilterResult:
    """Every node that fits, and a reason for each that does not.

    Args:
        names: the scheduler's nodes.
        answers: score or refusal of every known node.
        reserved: nodes where memory is set aside for this very pod by an earlier try; it fits there.
    """
    fits: list[NodeName] = []
    failed: dict[NodeName, str] = {}
    unresolvable: dict[NodeName, str] = {}
    for name in names:
        answer = answers.get(name)
        if isinstance(answer, int) or name in reserved:
            fits.append(name)
        elif answer is None:
            failed[name] = node_records.unknown(name)
        elif answer.permanent:
            unresolvable[name] = answer.message
        else:
            failed[name] = answer.message
    return FilterResult(fits=fits, failed=failed, unresolvable=unresolvable)


def decide_simple(names: Collection[NodeName], mib: int, rooms: Rooms, unit: MemoryUnit) -> FilterResult:
    """The same for a simple pod (`gpushare.placement.room`), by one look-up for each node that fits.

    Args:
        names: the scheduler's nodes.
        mib: what the pod asks for.
        rooms: may change meanwhile; every node is looked at once.
        unit: of the cluster.
    """
    free = rooms.free_mib
    fits = [name for name in names if free.get(name, NONE) >= mib]
    failed: dict[NodeName, str] = {}
    unresolvable: dict[NodeName, str] = {}
    if len(fits) < len(names):
        needs, chosen, by_node = explain.needs_memory(mib, unit), set(fits), rooms.by_node
        for name in [name for name in names if name not in chosen] if fits else names:
            found = by_node.get(name)
            if type(found) is Room:
                if found.largest_mib < mib:
                    unresolvable[name] = needs + found.never
                else:
                    failed[name] = needs + found.left
            elif found is None:
                failed[name] = node_records.unknown(name)
            elif isinstance(found, Refused):
                (unresolvable if found.permanent else failed)[name] = found.message
    return FilterResult(fits=fits, failed=failed, unresolvable=unresolvable)
