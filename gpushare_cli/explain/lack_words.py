"""Lacks of nodes, and what becomes of a GPU, in words. Pure."""

from typing import assert_never

from gpushare import units
from gpushare.model.capacity import Ask, FreeGpu
from gpushare.placement.lacks import Fragments, Free, Kept, Lack, MoreUse, Nothing, Remainder, Room

FEW: str = "which few pods here ask for"


def of_lack(lack: Lack, there: str, here: str, it: str) -> str:
    """What one node lacks.

    Args:
        lack: found by `placement.lacks`.
        there: the name of that node.
        here: of the node that is better.
        it: how the sentence calls the former.
    """
    match lack:
        case Nothing():
            return "the policy finds both equal"
        case Free(of_there, of_here):
            return (
                f"with the pod, {_part(*of_there)} of GPU memory would be free on {there}, and {_part(*of_here)} on"
                f" {here}"
            )
        case Remainder(gpu):
            return f"{it} would leave {units.memory(gpu.free_mib)} of a GPU, {FEW}"
        case MoreUse():
            return f"what the pod would take of the GPUs of {there} is of more use to other pods"
        case Kept(model):
            return f"GPUs of model {model} are kept for pods that need them"
        case Room(ask, pods, fewer):
            return (
                f"on {there} the pod takes the room of {_pods(pods)} with {_asking(ask)}, on {here} of {_pods(fewer)}"
            )
        case Fragments(gained, less):
            return (
                f"free GPU memory that usual pods cannot use would change by {gained:+.2f} GPUs on {there}, and by"
                f" {less:+.2f} on {here}"
            )
        case _:
            assert_never(lack)


def of_gpu(before: FreeGpu, after: FreeGpu, *, few_ask: bool) -> str:
    """What a pod does to a GPU; whether few pods ask for what it leaves."""
    free = _part(before.free_mib, before.total_mib)
    if not after.free_mib:
        if before.untouched:
            return f"all {units.memory(before.free_mib)} are free, and it takes them"
        return f"{free} are free, and it fills them exactly"
    rest = f"{free} are free, and {units.memory(after.free_mib)} stay free"
    return f"{rest}, {FEW}" if few_ask else rest


def _part(mib: int, of_mib: int) -> str:
    """`3 of 15 GiB`."""
    if mib % 1024 == 0 and of_mib % 1024 == 0:
        return f"{mib // 1024} of {of_mib // 1024} GiB"
    return f"{mib} of {of_mib} MiB"


def _asking(ask: Ask) -> str:
    if ask.whole:
        amount = f"{ask.gpus} whole GPU{'s' if ask.gpus > 1 else ''}"
    else:
        size = f"{ask.memory_percent} %" if ask.memory_percent else units.memory(ask.memory_mib)
        amount = f"{size} of {'one GPU' if ask.gpus == 1 else f'each of {ask.gpus} GPUs'}"
    cpu = [f"{ask.cpu_milli / 1000:g} CPU"] if ask.cpu_milli else []
    memory = [f"{units.memory(ask.host_mib)} of memory"] if ask.host_mib else []
    *some, last = [amount, *cpu, *memory]
    return f"{', '.join(some)} and {last}" if some else last


def _pods(number: float) -> str:
    """Room is counted in parts of a pod."""
    return f"{round(number, 1):g} pod{'' if number == 1 else 's'}" if number else "none"
