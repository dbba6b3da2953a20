"""Why a pod goes to one node and to these of its GPUs, and what the next node lacks. Pure.

The order of the nodes is the controller's own, by the same costs.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from gpushare.cluster.pod_records import Bound
from gpushare.identity import NodeName, PodRef
from gpushare.model.allocation import Allocation, Grant, Placed
from gpushare.model.capacity import Ask, FreeGpu, FreeHost, NodeCapacity
from gpushare.model.gpu import Gpu
from gpushare.model.ledger import NodeLedger
from gpushare.model.request import PodRequest, Policy
from gpushare.placement import lacks
from gpushare.placement.lacks import Change, Nothing
from gpushare.placement.policies import Policies
from gpushare_cli.explain import lack_words
from gpushare_cli.explain.model import Choice
from gpushare_cli.world import NodeAnswer, World

_GPUS_NAMED: Final = 4
_BEST: Final = {
    Policy.BINPACK: "the fullest",
    Policy.SPREAD: "the emptiest",
    Policy.DENSE: "the one that usual pods miss least",
    Policy.FGD: "the one with the least fragmentation",
}


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A node with room for the pod."""

    cost: int
    node: NodeName
    change: Change
    gpus: tuple[tuple[Gpu, FreeGpu, FreeGpu], ...]
    """Those that the pod gets: free before, and after."""


def of_waiting(
    pod: PodRef, request: PodRequest, world: World, answered: Sequence[NodeAnswer], policies: Policies
) -> Choice | None:
    """Where a pod would go now; None if it fits nowhere."""
    found = _candidates(pod, request, world, _granted(answered), policies)
    return _told(request, found[0], found[1:], policies, chosen_now=True) if found else None


def of_bound(
    record: Bound,
    allocation: Allocation,
    request: PodRequest,
    world: World,
    answered: Sequence[NodeAnswer],
    policies: Policies,
) -> Choice | None:
    """Why a pod is where it is; None if that node is unknown.

    Args:
        record: the pod.
        allocation: what it holds.
        request: what it asked for.
        world: the cluster without the pod.
        answered: what its nodes answer to the pod.
        policies: of that cluster.
    """
    granted = _granted(answered)
    now = granted.get(record.node, ())
    found = _candidates(record.ref, request, world, {**granted, record.node: allocation.grants}, policies)
    own = next((each for each in found if each.node == record.node), None)
    if own is None:
        return None
    same = [grant.gpus for grant in now] == [grant.gpus for grant in allocation.grants]
    others = [each for each in found if each is not own]
    return replace(_told(request, own, others, policies, chosen_now=same), in_hindsight=True)


def _granted(answered: Sequence[NodeAnswer]) -> dict[NodeName, tuple[Grant, ...]]:
    return {each.node: each.verdict.grants for each in answered if each.fits and isinstance(each.verdict, Placed)}


def _candidates(
    pod: PodRef, request: PodRequest, world: World, granted: Mapping[NodeName, tuple[Grant, ...]], policies: Policies
) -> list[_Candidate]:
    """Nodes with room, the best first."""
    return sorted(_compared(pod, request, world, granted, policies), key=lambda each: (each.cost, each.node))


def _compared(
    pod: PodRef, request: PodRequest, world: World, granted: Mapping[NodeName, tuple[Grant, ...]], policies: Policies
) -> Iterator[_Candidate]:
    ranking = policies.of(request.shape.policy)
    for name, grants in granted.items():
        node = world.nodes.get(name)
        if node is None or not isinstance(node.ledger, NodeLedger):
            continue
        host = node.host
        left = host and host.without(FreeHost.of(request))
        allocation = Allocation(pod=pod, node=name, grants=grants)
        before, held = node.ledger, node.ledger.held(allocation)
        after = before.with_allocation(allocation)
        change = Change(NodeCapacity.of(before, host), NodeCapacity.of(after, left))
        gpus = [gpu for gpu in before.inventory.gpus if gpu.uuid in held]
        rooms = tuple((gpu, FreeGpu.of(gpu, before), FreeGpu.of(gpu, after)) for gpu in gpus)
        yield _Candidate(ranking.cost(change.before, change.after), name, change, rooms)


def _told(
    request: PodRequest, here: _Candidate, others: Sequence[_Candidate], policies: Policies, *, chosen_now: bool
) -> Choice:
    policy, outlook = request.shape.policy or policies.default, policies.outlook
    why = [_of_gpu(each, policy, policies) for each in here.gpus[:_GPUS_NAMED]]
    if len(here.gpus) > _GPUS_NAMED:
        why.append(f"and {len(here.gpus) - _GPUS_NAMED} more")
    ask = Ask.of(request.shape)
    fitting = [gpu for gpu in here.change.before.gpus if ask.fits(gpu)]
    if chosen_now and len(here.gpus) == 1 == ask.gpus and len(set(fitting)) > 1:
        why.append(f"{_BEST[policy]} of {len(fitting)} with room there")
    if not others:
        return Choice(node=here.node, why="; ".join(why), lack="it fits on no other node")
    there = others[0]
    if there.cost < here.cost:
        lack = lacks.lack(policy, outlook, here.change, there.change)
        words = lack_words.of_lack(lack, here.node, there.node, here.node)
        text = f"{there.node} would be better: {words}"
    else:
        lack = lacks.lack(policy, outlook, there.change, here.change)
        words = lack_words.of_lack(lack, there.node, here.node, "it")
        by_name = (
            f", and {here.node} comes first by name" if isinstance(lack, Nothing) and here.node < there.node else ""
        )
        text = f"{there.node} is next: {words}{by_name}"
    return Choice(node=here.node, why="; ".join(why), next=there.node, lack=text)


def _of_gpu(gpu: tuple[Gpu, FreeGpu, FreeGpu], policy: Policy, policies: Policies) -> str:
    which, before, after = gpu
    few = policy is Policy.DENSE and lacks.little_asked_for(after, policies.outlook)
    return f"GPU {which.label}: {lack_words.of_gpu(before, after, few_ask=few)}"
