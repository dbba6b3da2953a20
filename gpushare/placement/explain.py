"""Refusals in plain words with numbers, for events, `kubectl describe pod` and the command line."""

import heapq
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from gpushare import names
from gpushare.identity import GpuUuid, NodeName
from gpushare.model.gpu import Gpu, GpuHealth, NodeInventory
from gpushare.model.ledger import LedgerOrRefused, NodeLedger, RefusalReason, Refused
from gpushare.model.request import ANY_GPU, ContainerRequest, MigChoice, RequestShape
from gpushare.placement.search import MAX_STEPS
from gpushare.units import MemoryUnit

NODES_NAMED: Final = 3
MAX_NAMED: Final = 8  # containers; the message is repeated for every node
_NO_MIG: Final = " for one container, which MIG instances cannot be, as a process uses one of them"
_NOT_WHOLE: Final = f" (a MIG instance needs {names.ANNOTATION_MIG}: {MigChoice.ONLY.value})"

_REDUCED: Final[Mapping[RefusalReason, str]] = {
    RefusalReason.NO_INVENTORY: "the node has reported no GPUs",
    RefusalReason.NO_HEALTHY_GPU: "the node has no healthy GPU for it",
    RefusalReason.UNIT_MISMATCH: f"the node counts {names.GPU_MEM} in another unit than the controller",
    RefusalReason.INSUFFICIENT_GPU_MEMORY: "the node's GPUs have too little memory free",
    RefusalReason.INSUFFICIENT_GPU_COMPUTE: "the node's GPUs have too little compute free",
    RefusalReason.NO_UNTOUCHED_GPU: "the node has too few GPUs that no pod uses",
    RefusalReason.NO_MATCHING_GPU: "too few of the node's GPUs are of the kind, or beside the pods, that it asks for",
    RefusalReason.TOO_FEW_GPUS: "the node has too few healthy GPUs",
    RefusalReason.OTHER_HAND_OVER: "the node needs a RuntimeClass that the pod was created without; create it again",
    RefusalReason.SEARCH_TOO_LONG: "no fit was found in time; ask for equal amounts, or use fewer GPU containers",
}

Barred = Mapping[GpuUuid, str]  # GPUs that a pod may not use -> why, in two or three words


def other_hand_over(ledger: NodeLedger) -> str:
    return (
        f"{ledger.inventory.node} hands GPUs over by {ledger.inventory.hand_over.value}, and"
        " the pod was created without the RuntimeClass that this needs, while all nodes did so by CDI; create it again"
    )


def no_healthy_gpu(ledger: NodeLedger) -> str:
    node, count = ledger.inventory.node, len(ledger.inventory.dra)
    beside = f" beside {count} that {'is' if count == 1 else 'are'} shared by ResourceClaims" if count else ""
    if not ledger.inventory.gpus:
        return f"{node} has no GPU{beside}"
    return f"{node} has no healthy GPU ({_unhealthy(ledger)}){beside}"


def too_few_gpus(wanted: int, healthy: int, ledger: NodeLedger) -> str:
    text = f"needs {wanted} GPUs; {ledger.inventory.node} has {healthy}"
    return f"{text} healthy ({_unhealthy(ledger)})" if _unhealthy(ledger) else text


def around_the_node(shape: RequestShape, wanted: ContainerRequest, inventory: NodeInventory) -> tuple[str, str]:
    """What a refusal says before and after the node's name; the same for all nodes with the same GPUs."""
    kind = f" with {shape.gpus}" if shape.gpus != ANY_GPU else ""
    barred = {gpu.uuid: why for gpu in inventory.healthy if (why := shape.why_not(gpu))}
    of_kind = [gpu for gpu in inventory.gpus if gpu.uuid not in barred]
    without = ""
    if not all(shape.takes(wanted, gpu) for gpu in of_kind):
        without = _NOT_WHOLE if wanted.gpu_count == 1 else _NO_MIG
    found = [
        f"{gpu.label}: {_health(gpu) or barred.get(gpu.uuid) or ('fits' if shape.takes(wanted, gpu) else 'MIG')}"
        f" ({gpu.model}, {gpu.memory_mib} MiB)"
        for gpu in inventory.gpus[:MAX_NAMED]
    ]
    more = len(inventory.gpus) - len(found)
    listed = ", ".join(found) + (f" and {more} more" if more else "")
    return f"needs {_number(wanted)}{kind}{without}; GPUs of ", f": {listed}"


def left(shape: RequestShape, ledger: NodeLedger, barred: Barred, *, never: bool) -> str:
    """How a refusal for want of room goes on; `never`: not even the empty node would have it.

    Where no GPU is barred, it depends on the way of asking alone.
    """
    unit = ledger.inventory.unit
    is_whole = any(request.whole for request in shape.containers)
    counts_compute = any(request.compute_percent for request in shape.containers)

    def free_on(gpu: Gpu) -> str:
        text = str(unit.floor(ledger.free_mib(gpu)))
        if is_whole:
            text = f"{unit.floor(ledger.unused_mib(gpu))} of {unit.floor(gpu.memory_mib)}"
        if not all(_takers(shape, gpu)):
            text += " in MIG"
        return f"{text} {unit.name} and {ledger.free_percent(gpu)} %" if counts_compute else text

    gpus = ledger.inventory.gpus
    why = [_health(gpu) or barred.get(gpu.uuid) or ("" if any(_takers(shape, gpu)) else "MIG") for gpu in gpus]
    free = ", ".join(said or free_on(gpu) for said, gpu in zip(why, gpus, strict=True))
    counted = "" if counts_compute or all(why) else f" {unit.name}"
    text = f"; free per GPU on {ledger.inventory.node}: {free}{counted}"
    largest = max(unit.floor(gpu.memory_mib) for gpu in gpus)
    return f"{text} (its largest GPU has {largest} {unit.name} in all)" if never else text


def needs(shape: RequestShape, unit: MemoryUnit) -> str:
    """How a refusal for want of room begins; the unit is the node's."""
    if len(shape.containers) == 1:
        return f"needs {_container_request(shape.containers[0], unit)}"
    named = shape.containers[:MAX_NAMED]
    text = " + ".join(f"{_container_request(container, unit)} ({container.container})" for container in named)
    more = len(shape.containers) - len(named)
    return f"needs {text}" + (f" + {more} more container{'s' if more > 1 else ''}" if more else "")


def reduced(shape: RequestShape, unit: MemoryUnit) -> Mapping[RefusalReason, str]:
    """Refusals that tell no more than what the pod asks for and the kind of reason: nothing of others."""
    asked = needs(shape, unit) + (f" with {shape.gpus}" if shape.gpus != ANY_GPU else "")
    return {reason: f"{asked}; {why}" for reason, why in _REDUCED.items()}


def search_too_long(shape: RequestShape, ledger: NodeLedger) -> str:
    return (
        f"{needs(shape, ledger.inventory.unit)}; no fit on {ledger.inventory.node} was found in {MAX_STEPS} steps;"
        " ask for equal amounts, or use fewer GPU containers"
    )


def _container_request(container: ContainerRequest, unit: MemoryUnit) -> str:
    if container.whole:
        return f"{container.gpu_count} whole GPU{'s' if container.gpu_count > 1 else ''}"
    amount = f"{unit.ceil(container.memory_mib)} {unit.name}"
    if container.memory_percent:
        amount = f"{container.memory_percent} %"
    elif container.compute_percent:
        amount += f" and {container.compute_percent} % of compute"
    place = "one GPU" if container.gpu_count == 1 else f"each of {container.gpu_count} GPUs"
    return f"{amount} {'of' if container.memory_percent else 'on'} {place}"


def _number(wanted: ContainerRequest) -> str:
    if wanted.gpu_count == 1:
        return "a whole GPU" if wanted.whole else "a GPU"
    return f"{wanted.gpu_count} GPUs"


def _takers(shape: RequestShape, gpu: Gpu) -> Iterator[bool]:
    return (shape.takes(request, gpu) for request in shape.containers)


def _health(gpu: Gpu) -> str:
    return "" if gpu.health is GpuHealth.HEALTHY else gpu.health.value.lower()


def _unhealthy(ledger: NodeLedger) -> str:
    groups: dict[str, list[str]] = {}
    for health in (GpuHealth.UNHEALTHY, GpuHealth.CORDONED):
        for gpu in ledger.inventory.gpus:
            if gpu.health is health:
                groups.setdefault(gpu.why, []).append(gpu.label)
    named = [f"{_are(labels)} {why}" for why, labels in groups.items()]
    return ", ".join(named[:MAX_NAMED]) + (f" and {len(named) - MAX_NAMED} more" if len(named) > MAX_NAMED else "")


def _are(labels: list[str]) -> str:
    return f"GPU {labels[0]} is" if len(labels) == 1 else f"GPUs {', '.join(labels)} are"


def together(messages: Sequence[str], nodes: int, which: str) -> str:
    """`needs X; free ... on a: 1; free ... on b: 2; and 7 more nodes`: what all begin with is said once."""
    # The messages are those of the closest of so many nodes; `which` says what they are, such as ` with GPUs`.
    more = nodes - len(messages)
    heads = {message.partition("; ")[0] for message in messages}
    if len(heads) == 1:
        messages = [*heads, *(tail for message in messages if (tail := message.partition("; ")[2]))]
    text = "; ".join(messages)
    return f"{text}; and {more} more node{'s' if more > 1 else ''}{which}" if more else text


def closest(answers: Mapping[NodeName, Refused | None], ledgers: Mapping[NodeName, LedgerOrRefused]) -> str:
    """What the nodes that come closest lack, with numbers; every node has refused the pod."""
    without = RefusalReason.NO_INVENTORY
    refused = {name: answer for name, answer in answers.items() if answer is not None and answer.reason is not without}
    if not answers:
        return "the cluster has no nodes"
    if not refused:
        return f"none of the {len(answers)} nodes has reported GPUs; is the gpushare device plugin running?"
    nearest = heapq.nsmallest(
        NODES_NAMED, refused, key=lambda name: (refused[name].permanent, -largest_free(ledgers.get(name)), name)
    )
    return together([refused[name].message for name in nearest], len(refused), " with GPUs")


def distinct(answers: Iterable[Refused | None]) -> str:
    """Reduced refusals of all nodes, each once."""
    refused = [answer for answer in answers if answer is not None]
    sharing = [answer for answer in refused if answer.reason is not RefusalReason.NO_INVENTORY]
    said = sorted({answer.message for answer in sharing or refused})
    return together(said, len(said), "") or "the cluster has no nodes"


def largest_free(ledger: LedgerOrRefused | None) -> int:
    """MiB on the node's freest GPU: what says how close it comes."""
    if not isinstance(ledger, NodeLedger):
        return 0
    return max((ledger.free_mib(gpu) for gpu in ledger.inventory.gpus), default=0)


def some(listed: Sequence[str], beside: int = 0) -> str:
    """The first few of them, and how many more there are, with those beside."""
    more = len(listed) + beside - NODES_NAMED
    return ", ".join(listed[:NODES_NAMED]) + (f" and {more} more" if more > 0 else "")


def by_sum(nodes: Sequence[NodeName], beside: int = 0) -> str:
    """What an autoscaler's owner needs to know of a pod for which these nodes, and so many more, have room as a sum."""
    total = f"what is free on {some(sorted(nodes), beside) or 'nodes'} is enough in total, but no single GPU has room"
    return f"{total}; autoscalers count totals, so they add no node"
