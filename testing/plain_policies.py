"""What policies say, in Python's own numbers and one node at a time: the definition of what the columns compute."""

import math
from bisect import bisect_right
from collections.abc import Collection, Iterable, Sequence
from typing import Final

from gpushare.identity import NodeName
from gpushare.model.capacity import Ask, FreeGpu, FreeHost, NodeCapacity
from gpushare.model.gpu import GpuHealth
from gpushare.model.ledger import Allocation, Grant, NodeLedger
from gpushare.model.request import MigChoice, Need, Policy, accepts
from gpushare.placement.outlook import Outlook, slots
from testing.builders import make_ref

Cost = tuple[int, int, int]
PART: Final = 16
_STEPS: Final = [math.ceil(-1_000_000 * math.log(100 / score - 1)) for score in range(1, 100)]


def fits(ask: Ask, gpu: FreeGpu) -> bool:
    """Whether one GPU has room for a request, and may be had as it asks."""
    if gpu.mig and (ask.gpus > 1 or ask.mig is MigChoice.NEVER or (ask.whole and ask.mig is not MigChoice.ONLY)):
        return False
    if not gpu.mig and ask.mig is MigChoice.ONLY:
        return False
    if ask.whole:
        return gpu.untouched and gpu.total_mib > 0
    need = ask.need(gpu)
    return gpu.free_mib >= need.memory_mib <= gpu.has_mib and gpu.free_percent >= need.compute_percent


def how_many(ask: Ask, node: NodeCapacity, host: FreeHost | None = None) -> int:
    """Pods that there is room for, in parts."""
    grants = 0
    for gpu in node.gpus:
        if fits(ask, gpu):
            need, many = ask.need(gpu), 1
            if ask.gpus < 2:
                many = gpu.free_mib // max(need.memory_mib, 1)
                many = min(many, gpu.free_percent // need.compute_percent) if need.compute_percent else many
            grants += many
    found = PART * (grants // ask.gpus)
    for has, takes in () if host is None else zip(host, ask.host, strict=True):
        found = min(found, PART * max(has, 0) // takes) if takes else found
    return 0 if ask.gpus > 1 and found < PART else found


def value(outlook: Outlook, gpu: FreeGpu) -> int:
    """Of what is free on a GPU to `dense`."""
    table = outlook.prices.get(gpu.total_mib)
    free = min(gpu.free_mib, gpu.total_mib * max(gpu.free_percent, 0) // 100)
    return 0 if table is None else table[slots(max(free, 0), gpu.total_mib)] * gpu.total_mib


def gpu_cost(policy: Policy, outlook: Outlook, gpu: FreeGpu, need: Need) -> int:
    """Of taking so much of a GPU."""
    after = gpu.without(need)
    match policy:
        case Policy.BINPACK:
            return gpu.free_mib
        case Policy.SPREAD:
            return -gpu.free_mib
        case Policy.DENSE:
            return value(outlook, gpu) - value(outlook, after)
        case Policy.FGD:
            return _useless_of_one(outlook, after) - _useless_of_one(outlook, gpu)


def cost(policy: Policy, outlook: Outlook, before: NodeCapacity, after: NodeCapacity) -> Cost:
    """Of a node that a pod makes to this."""
    match policy:
        case Policy.BINPACK:
            return _binpack(after), 0, 0
        case Policy.SPREAD:
            return -_binpack(after) if sum(gpu.total_mib for gpu in after.gpus) else -(10**9) - 1, 0, 0
        case Policy.FGD:
            grown = useless(outlook, after) - useless(outlook, before)
            return -bisect_right(_STEPS, -grown * 1000 // _number(outlook)), 0, 0
        case Policy.DENSE:
            had, left = (sum(value(outlook, gpu) for gpu in each.gpus) for each in (before, after))
            useful, empty = (one - two for one, two in zip(worth(outlook, before), worth(outlook, after), strict=True))
            return had - left, useful, empty


def worth(outlook: Outlook, node: NodeCapacity) -> tuple[int, int]:
    """Of a node to `dense` beside its remainders."""
    squared = sum(gpu.free_mib for gpu in node.gpus) ** 2
    if node.model not in outlook.weights or node.model not in outlook.accepted:
        return 0, squared
    pods = served = asked = 0
    rows = zip(outlook.kinds, outlook.weights[node.model], outlook.accepted[node.model], strict=True)
    for kind, weight, number in rows:
        if most := how_many(kind, node):
            fit = how_many(kind, node, node.host)
            asked += number
            served += number * 4 * PART * fit // most if fit >= PART else 0
            pods += weight * fit
    free = 4 * (sum(value(outlook, gpu) for gpu in node.gpus) // outlook.usual_mib)
    return free * (min(PART, served // asked) if asked else PART) + pods, squared


def useless(outlook: Outlook, node: NodeCapacity) -> int:
    """What is free and of no use to typical pods, in thousandths of a GPU, to `fgd`."""
    free = [_parts(gpu) for gpu in node.gpus]
    found = sum(free) * _number(outlook)
    for ask, count in outlook.typical.items():
        if ask.gpus and accepts(ask.models, node.model) and (node.host is None or node.host.cpu_milli >= ask.cpu_milli):
            found -= count * _usable(ask, free)
    return found


def _usable(ask: Ask, free: Sequence[int]) -> int:
    need = 1000 if ask.whole else ask.need(FreeGpu(1000, 1000)).memory_mib
    if need < 1000:
        return sum(parts for parts in free if parts >= need)
    untouched = free.count(1000)
    return 1000 * untouched if need == 1000 and untouched >= ask.gpus else 0


def _useless_of_one(outlook: Outlook, gpu: FreeGpu) -> int:
    parts, usable, whole = _parts(gpu), 0, 0
    for ask, count in outlook.typical.items():
        if ask.gpus and (need := 1000 if ask.whole else ask.need(FreeGpu(1000, 1000)).memory_mib) < 1000:
            usable += count * parts if parts >= need else 0
        elif ask.gpus and need == 1000 and parts == 1000 and ask.gpus <= 64:
            whole += count * 1000 * 64
    return parts * _number(outlook) - usable - whole // 64


def _number(outlook: Outlook) -> int:
    return max(sum(outlook.typical.values()), 1)


def _parts(gpu: FreeGpu) -> int:
    return gpu.free_mib * 1000 // max(gpu.total_mib, 1)


def _binpack(node: NodeCapacity) -> int:
    return 10**9 * sum(gpu.free_mib for gpu in node.gpus) // max(sum(gpu.total_mib for gpu in node.gpus), 1)


def change(
    grants: Iterable[Grant], ledger: NodeLedger, host: FreeHost | None, takes: FreeHost
) -> tuple[NodeCapacity, NodeCapacity]:
    """A node before and after a pod gets these grants. A host counts as having what the pod takes."""
    if host is not None and (host.cpu_milli < takes.cpu_milli or host.memory_mib < takes.memory_mib):
        host = takes
    before = NodeCapacity.of(ledger, host)
    held = ledger.held(Allocation(pod=make_ref("new"), node=ledger.inventory.node, grants=tuple(grants)))
    left = []
    for gpu in ledger.inventory.gpus:
        if gpu.health is GpuHealth.HEALTHY:
            free, takes_here = FreeGpu.of(gpu, ledger), held.get(gpu.uuid)
            if takes_here is not None:
                mib = free.total_mib if takes_here.whole else takes_here.memory_mib
                free = free.without(Need(mib, 100 if takes_here.whole else takes_here.compute_percent))
            left.append(free)
    return before, NodeCapacity(before.model, tuple(sorted(left)), host and host.without(takes))


def grades(names: Sequence[NodeName], costs: Sequence[Cost | None], reserved: Collection[NodeName] = ()) -> list[int]:
    """10 for the node that costs least, 8 to 1 for the others by rank, 0 where the pod does not fit."""
    ranks = sorted({each for each in costs if each is not None})
    found = [0 if each is None else 8 - 7 * ranks.index(each) // max(len(ranks) - 1, 1) for each in costs]
    best = [i for i, name in enumerate(names) if name in reserved]
    if not best and ranks:
        best = [min((i for i, each in enumerate(costs) if each == ranks[0]), key=names.__getitem__)]
    return [10 if i in best else grade for i, grade in enumerate(found)]
