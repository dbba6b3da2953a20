"""Which of the scheduler's nodes a pod fits on. Pure: it only sorts answers that were computed before."""

import itertools
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, cast

from controller.extender.messages import Entries, FilterResult
from controller.rooms import NONE, Ready, Rooms, json_rest, json_start
from gpushare.cluster import node_records
from gpushare.identity import NodeName
from gpushare.model.allocation import Refused
from gpushare.model.request import RequestShape
from gpushare.placement import explain
from gpushare.placement.room import Room
from gpushare.units import MemoryUnit

# Of `Ready`, by number: by name they take twice as long.
_START: Final = operator.itemgetter(1)
_OF_MEMORY: Final = operator.itemgetter(2), operator.itemgetter(3)
_OF_BOTH: Final = operator.itemgetter(4), operator.itemgetter(5)


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


def decide_simple(names: Sequence[NodeName], mib: int, rooms: Rooms, unit: MemoryUnit) -> FilterResult:
    """The same for a simple pod (`gpushare.placement.room`), by one look-up for each node that fits.

    Args:
        names: the scheduler's nodes.
        mib: what the pod asks for.
        rooms: may change meanwhile; every node is looked at once.
        unit: of the cluster.
    """
    free = list(map(rooms.free_mib.get, names, itertools.repeat(NONE)))
    if min(free, default=NONE) >= mib:
        return FilterResult(fits=names)
    refused = [name for name, has in zip(names, free, strict=True) if has < mib]
    fits = [name for name, has in zip(names, free, strict=True) if has >= mib] if len(refused) < len(names) else []
    failed, unresolvable = _refusals(refused, mib, rooms, explain.needs_memory(mib, unit), _OF_MEMORY)
    return FilterResult(fits=fits, failed=_entries(failed), unresolvable=_entries(unresolvable))


def decide_one(
    names: Sequence[NodeName],
    shape: RequestShape,
    rooms: Rooms,
    unit: MemoryUnit,
    look: Callable[[Sequence[NodeName]], Mapping[NodeName, int | Refused]],
) -> FilterResult:
    """The same for a pod that asks for a share of one GPU, whichever that is, also of its compute.

    Args:
        names: the scheduler's nodes.
        shape: what the pod asks for.
        rooms: as above.
        unit: of the cluster.
        look: answers as `decide` needs them, for nodes where only a closer look tells.
    """
    request = shape.containers[0]
    found, others = list(map(rooms.by_node.get, names)), set[NodeName]()
    fits = [type(room) is Room and room.fits(request) for room in found]
    refused = [name for name, fit in zip(names, fits, strict=True) if fit is False]
    closer = [name for name, fit in zip(names, fits, strict=True) if fit is None] if None in fits else []
    rests = _OF_BOTH if request.compute_percent else _OF_MEMORY
    failed, unresolvable = _refusals(refused, request.memory_mib, rooms, explain.needs(shape, unit), rests)
    if closer:
        told = decide(closer, look(closer), frozenset())
        others = {*told.failed, *told.unresolvable}
        failed += _spelled(told.failed)
        unresolvable += _spelled(told.unresolvable)
    without = others.union(refused)
    fits_on = [name for name in names if name not in without] if len(without) < len(names) else []
    return FilterResult(fits=fits_on, failed=_entries(failed), unresolvable=_entries(unresolvable))


Rest = Callable[[Ready], bytes]


def _refusals(
    names: Sequence[NodeName], mib: int, rooms: Rooms, needed: str, rests: tuple[Rest, Rest]
) -> tuple[list[bytes], list[bytes]]:
    """Put together from what is ready of each node: thousands come in one answer."""
    needs = needed.encode()
    found = list(map(rooms.ready.get, names))
    others = [name for name, ready in zip(names, found, strict=True) if ready is None] if None in found else []
    known = [ready for ready in found if ready is not None] if others else cast(list[Ready], found)
    never = [ready for ready in known if ready[0] < mib]
    later = [ready for ready in known if ready[0] >= mib] if len(never) < len(known) else []
    failed, unresolvable = _told(later, needs, rests[0]), _told(never, needs, rests[1])
    for name in others:
        known_of = rooms.by_node.get(name)
        refused = known_of if isinstance(known_of, Refused) else None
        text = node_records.unknown(name) if refused is None else refused.message
        pieces = unresolvable if refused is not None and refused.permanent else failed
        pieces += _spelled({name: text})
    return failed, unresolvable


def _spelled(texts: Mapping[NodeName, str]) -> list[bytes]:
    return [piece for name, text in texts.items() for piece in (json_start(name), b"", json_rest(text))]


def _told(refused: Sequence[Ready], needs: bytes, rest: Rest) -> list[bytes]:
    """Three pieces for each."""
    pieces = [needs] * (3 * len(refused))
    pieces[0::3], pieces[2::3] = map(_START, refused), map(rest, refused)
    return pieces


def _entries(pieces: list[bytes]) -> Entries:
    if pieces:
        pieces[-1] = pieces[-1].removesuffix(b",")
    return Entries(len(pieces) // 3, b"".join(pieces))
