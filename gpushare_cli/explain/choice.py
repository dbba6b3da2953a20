"""Why a pod goes to a node and its GPUs, and what the next one lacks, by the controller's own costs. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, assert_never

from gpushare import units
from gpushare.cluster.pod_records import Bound
from gpushare.cluster.world import PodToPlace
from gpushare.identity import NodeName
from gpushare.model.allocation import Allocation, Grant, Placed
from gpushare.model.capacity import Ask, FreeGpu
from gpushare.model.gpu import Gpu
from gpushare.model.ledger import NodeLedger
from gpushare.model.request import Policy
from gpushare.placement import lacks
from gpushare.placement.costs import Change, Cost
from gpushare.placement.lacks import FewerPods, Fragments, Free, Kept, Lack, MoreUse, Nothing, Remainder
from gpushare.placement.policies import Policies
from gpushare_cli.explain.model import NodeChoice
from gpushare_cli.world import NodeAnswer, World

FEW: Final = "which few pods here ask for"
_GPUS_NAMED: Final = 4
_BEST: Final = {
    Policy.BINPACK: "the fullest",
    Policy.SPREAD: "the emptiest",
    Policy.DENSE: "the one that usual pods miss least",
    Policy.FGD: "the one with the least fragmentation",
}
_Gpus = tuple[tuple[Gpu, FreeGpu, FreeGpu], ...]  # those that the pod gets: free before, and after


@dataclass(frozen=True, slots=True, order=True)
class _Candidate:
    cost: Cost
    node: NodeName
    grants: tuple[Grant, ...]


def of_waiting(pod: PodToPlace, world: World, answered: Sequence[NodeAnswer], policies: Policies) -> NodeChoice | None:
    """Where a pod would go now; None if it fits nowhere."""
    found = sorted(_candidates(answered).values())
    return _told(pod, world, found[0], found[1:], policies, chosen_now=True) if found else None


def of_bound(
    record: Bound,
    allocation: Allocation,
    pod: PodToPlace,
    world: World,
    answered: Sequence[NodeAnswer],
    policies: Policies,
) -> NodeChoice | None:
    """Why a pod is where it is; None if that node is unknown. The world and all that is of it are without the pod."""
    found = _candidates(answered)
    now = found.pop(record.node, None)
    node = world.nodes.get(record.node)
    if node is None or not isinstance(node.ledger, NodeLedger):
        return None
    own = _Candidate(node.cost(pod, allocation.grants, policies), record.node, allocation.grants)
    same = now is not None and [grant.gpus for grant in now.grants] == [grant.gpus for grant in own.grants]
    return replace(_told(pod, world, own, sorted(found.values()), policies, chosen_now=same), in_hindsight=True)


def _candidates(answered: Sequence[NodeAnswer]) -> dict[NodeName, _Candidate]:
    return {
        each.node: _Candidate(each.cost, each.node, each.verdict.grants)
        for each in answered
        if each.cost is not None and isinstance(each.verdict, Placed)
    }


def _told(
    pod: PodToPlace,
    world: World,
    here: _Candidate,
    others: Sequence[_Candidate],
    policies: Policies,
    *,
    chosen_now: bool,
) -> NodeChoice:
    policy, outlook = pod.shape.policy or policies.default, policies.outlook
    change, gpus = _change(pod, world, here)
    why = []
    for gpu, before, after in gpus[:_GPUS_NAMED]:
        few = policy is Policy.DENSE and lacks.little_asked_for(after, outlook)
        why.append(f"GPU {gpu.label}: {of_gpu(before, after, few_ask=few)}")
    if len(gpus) > _GPUS_NAMED:
        why.append(f"and {len(gpus) - _GPUS_NAMED} more")
    ask = Ask.of(pod.shape)
    fitting = [gpu for gpu in change.before.gpus if ask.fits(gpu)]
    if chosen_now and len(gpus) == 1 == ask.gpus and len(set(fitting)) > 1:
        why.append(f"{_BEST[policy]} of {len(fitting)} with room there")
    told = NodeChoice(node=here.node, why="; ".join(why), lack="it fits on no other node")
    if not others:
        return told
    there = others[0]
    other, _ = _change(pod, world, there)
    if there.cost < here.cost:
        words = of_lack(lacks.lack(policy, outlook, change, other), here.node, there.node, here.node)
        return replace(told, next=there.node, lack=f"{there.node} would be better: {words}")
    lack = lacks.lack(policy, outlook, other, change)
    words = of_lack(lack, there.node, here.node, "it")
    if isinstance(lack, Nothing) and here.node < there.node:
        words += f", and {here.node} comes first by name"
    return replace(told, next=there.node, lack=f"{there.node} is next: {words}")


def _change(pod: PodToPlace, world: World, candidate: _Candidate) -> tuple[Change, _Gpus]:
    """The node before and after the pod gets its GPUs there, and these."""
    node = world.nodes[candidate.node]
    then = node.plus(pod, candidate.grants)
    change = node.change(pod, candidate.grants)
    if not isinstance(node.ledger, NodeLedger) or not isinstance(then.ledger, NodeLedger):
        return change, ()
    gpus = [gpu for gpu in node.ledger.inventory.gpus if gpu.uuid in then.held(pod.ref.uid)]
    return change, tuple((gpu, FreeGpu.of(gpu, node.ledger), FreeGpu.of(gpu, then.ledger)) for gpu in gpus)


def of_lack(lack: Lack, there: str, here: str, it: str) -> str:
    """What a node, there, lacks that the better one, here, has; `it` is how the sentence calls the former."""
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
        case FewerPods(ask, pods, fewer):
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
