"""Refusals in plain words with numbers, for events, `kubectl describe pod` and the command line."""

from typing import Final

from gpushare.model.gpu import Gpu, GpuHealth
from gpushare.model.ledger import NodeLedger
from gpushare.model.request import ContainerRequest, RequestShape
from gpushare.placement.search import MAX_STEPS

MAX_NAMED: Final = 8  # containers; the message is repeated for every node


def no_healthy_gpu(ledger: NodeLedger) -> str:
    """The node has no GPU that may be used."""
    count = len(ledger.inventory.gpus)
    if count == 0:
        return f"{ledger.inventory.node} has no GPU"
    return f"{ledger.inventory.node} has no healthy GPU ({_unhealthy(ledger)})"


def too_few_gpus(wanted: int, healthy: int, ledger: NodeLedger) -> str:
    """A container asks for more GPUs than the node has."""
    text = f"needs {wanted} GPUs; {ledger.inventory.node} has {healthy}"
    return f"{text} healthy ({_unhealthy(ledger)})" if _unhealthy(ledger) else text


def insufficient(shape: RequestShape, ledger: NodeLedger, *, never: bool) -> str:
    """No choice of GPUs has room for the pod.

    Args:
        shape: what the pod asks for.
        ledger: the node's books.
        never: the node could not hold the pod even if it were empty.
    """
    unit = ledger.inventory.unit
    free = ", ".join(_free(gpu, ledger) for gpu in ledger.inventory.gpus)
    text = f"needs {_wishes(shape, ledger)}; free per GPU on {ledger.inventory.node}: {free} {unit.name}"
    if never:
        largest = max(unit.floor(gpu.memory_mib) for gpu in ledger.inventory.gpus)
        text += f" (its largest GPU has {largest} {unit.name} in all)"
    return text


def search_too_long(shape: RequestShape, ledger: NodeLedger) -> str:
    """The pod has so many different containers that the search was given up."""
    return (
        f"needs {_wishes(shape, ledger)}; no fit on {ledger.inventory.node} was found in {MAX_STEPS} steps;"
        " ask for equal amounts, or use fewer GPU containers"
    )


def _wishes(shape: RequestShape, ledger: NodeLedger) -> str:
    if len(shape.containers) == 1:
        return _wish(shape.containers[0], ledger)
    named = shape.containers[:MAX_NAMED]
    text = " + ".join(f"{_wish(container, ledger)} ({container.container})" for container in named)
    more = len(shape.containers) - len(named)
    return f"{text} + {more} more container{'s' if more > 1 else ''}" if more else text


def _wish(container: ContainerRequest, ledger: NodeLedger) -> str:
    unit = ledger.inventory.unit
    amount = f"{unit.ceil(container.memory_mib)} {unit.name}"
    return f"{amount} on one GPU" if container.gpu_count == 1 else f"{amount} on each of {container.gpu_count} GPUs"


def _free(gpu: Gpu, ledger: NodeLedger) -> str:
    if gpu.health is not GpuHealth.HEALTHY:
        return "unhealthy"
    return str(ledger.inventory.unit.floor(ledger.free_mib(gpu)))


def _unhealthy(ledger: NodeLedger) -> str:
    indices = [str(gpu.index) for gpu in ledger.inventory.gpus if gpu.health is not GpuHealth.HEALTHY]
    if not indices:
        return ""
    return f"GPU {indices[0]} is unhealthy" if len(indices) == 1 else f"GPUs {', '.join(indices)} are unhealthy"
