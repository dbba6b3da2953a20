"""Where a pod is, or would be: on which GPUs, beside whom, and why not on the next node. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, assert_never

from gpushare import names, units
from gpushare.cluster.node_ledger import Node, PodToPlace
from gpushare.cluster.pod_records import Bound
from gpushare.identity import NodeName, PodRef
from gpushare.model.capacity import Ask, FreeGpu
from gpushare.model.gpu import Gpu, Limit
from gpushare.model.ledger import Allocation, Grant, Held, NodeLedger
from gpushare.model.request import Policy
from gpushare.placement.columns import PART, Kinds, Nodes, how_many, of_gpus
from gpushare.placement.costs import Change, costs_of
from gpushare.placement.outlook import WHOLE, Outlook
from gpushare.placement.policies import FULL, Dense, Fgd, Policies
from gpushare.wire import fields, pods as pods_wire
from gpushare_cli import usage
from gpushare_cli.holders import Share
from gpushare_cli.world import NodeAnswer, Option, World

Object = Mapping[str, Any]
_VARIABLES: Final = (  # variables that tell programs about their share
    names.ENV_MPS_MEMORY_LIMIT,
    names.ENV_MPS_THREAD_PERCENTAGE,
    names.ENV_MEMORY_MIB,
    names.ALIYUN_CONTAINER,
    names.ALIYUN_DEV,
)
FEW: Final = "which few pods here ask for"
_GPUS_NAMED: Final = 4
WORDS: Final = {
    Policy.BINPACK: ("the fullest GPU with room first", "the fullest"),
    Policy.SPREAD: ("the emptiest GPU first", "the emptiest"),
    Policy.DENSE: ("the node and GPU that leave the most room for typical pods", "the one that usual pods miss least"),
    Policy.FGD: ("the GPU and node with the least fragmentation", "the one with the least fragmentation"),
}
"""What a policy takes: in general, and of some GPUs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fill:  # how full one of the pod's GPUs is, and who else is on it
    gpu: Gpu
    granted_mib: int
    compute_percent: int
    neighbours: Sequence[tuple[PodRef, Held]]  # other pods, and what they hold of it


def fills(allocation: Allocation, ledger: NodeLedger) -> Iterator[Fill]:
    mine = ledger.held(allocation)
    others = [other for other in ledger.allocations.values() if other.pod.uid != allocation.pod.uid]
    beside = [(other.pod, ledger.held(other)) for other in sorted(others, key=lambda other: str(other.pod))]
    for gpu in ledger.inventory.gpus:
        if gpu.uuid in mine:
            yield Fill(
                gpu=gpu,
                granted_mib=ledger.used_mib.get(gpu.uuid, 0),
                compute_percent=ledger.used_percent.get(gpu.uuid, 0),
                neighbours=[(pod, held[gpu.uuid]) for pod, held in beside if gpu.uuid in held],
            )


def together(held: Sequence[Share]) -> str:
    """`3 GiB of GPU 0 and 5 GiB of GPU 1`, container by container."""
    return " and ".join(
        f"{'all' if share.grant.whole else units.memory(share.memory_mib)} of GPU"
        f" {share.gpu.label if share.gpu else share.uuid}"
        for share in held
    )


def origin(pod: Object) -> str:
    notes = pods_wire.annotations(pod)
    if notes.get(names.ANNOTATION_LATE):
        return "gpushare, after the pod had come to its node by another way"
    if names.ANNOTATION_ALLOCATION in notes:
        return "gpushare, when the pod was bound to its node; past usage is not stored"
    if names.ACK_ALLOCATION in notes:
        return "ACK's scheduler"
    return "Aliyun gpushare" if names.ALIYUN_IDX in notes else "nano-gpu"


def limit(pod: Object, held: Sequence[Share]) -> str:
    if held and all(share.grant.whole for share in held):
        return "nothing is needed: no one else is on its GPUs"
    parts = [share for share in held if not share.grant.whole]
    kinds = {share.limit or Limit.ADVISORY for share in parts}
    told = [words for kind, words in usage.LIMITED_BY.items() if kind in kinds]
    told += [_advice(pod, held)] if Limit.ADVISORY in kinds or not kinds else []
    missing = dict.fromkeys(share.gpu.limit_reason for share in held if share.gpu and not share.grant.whole)
    return "; ".join([*told, *(f"{usage.NOT_STRONGER} {why}" for why in missing if why)])


def _advice(pod: Object, held: Sequence[Share]) -> str:
    granted = {share.grant.container for share in held}
    there = {
        str(entry.get("name"))
        for path, _, container in pods_wire.containers(pod)
        if container.get("name") in granted
        for entry in fields.objects(container, "env", path)
    }
    told = [name for name in _VARIABLES if name in there]
    if not told:
        return "nothing: no variable tells its programs about their share"
    return f"variables that its programs may obey, and nothing else: {', '.join(told)}"


def stuck(pod: Object) -> Iterator[str]:
    """Containers that do not start, in the kubelet's words."""
    for path, report in pods_wire.reports(pod):
        waiting = fields.mapping(fields.mapping(report, "state", path), "waiting", "state")
        reason, message = fields.text(waiting, "reason", "waiting"), fields.text(waiting, "message", "waiting")
        if reason and reason not in {"ContainerCreating", "PodInitializing"}:
            yield f"container {report.get('name')} waits: {reason}{': ' if message else ''}{message}"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeChoice:  # why a pod goes to a node, or is there, and not on another one with room
    node: NodeName
    why: str  # what its GPUs there have to do with it
    next: NodeName | None = None  # the best other node with room; may be better by now
    lack: str = ""
    in_hindsight: bool = False  # the pod has a node already, and this is by the cluster as it is now without it


def of_waiting(pod: PodToPlace, world: World, answered: Sequence[NodeAnswer], policies: Policies) -> NodeChoice | None:
    """Where a pod would go now; None if it fits nowhere."""
    found = sorted(_options(answered).values())
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
    found = _options(answered)
    now = found.pop(record.node, None)
    node = world.nodes.get(record.node)
    if node is None or not isinstance(node.ledger, NodeLedger):
        return None
    change = node.change(pod, allocation.grants)
    [cost] = costs_of([change], policies.of(pod.shape.policy))
    own = Option(cost, record.node, change, allocation.grants)
    same = now is not None and [grant.gpus for grant in now.grants] == [grant.gpus for grant in own.grants]
    return replace(_told(pod, world, own, sorted(found.values()), policies, chosen_now=same), in_hindsight=True)


def _options(answered: Sequence[NodeAnswer]) -> dict[NodeName, Option]:
    return {each.node: each.option for each in answered if each.option is not None}


def _told(
    pod: PodToPlace, world: World, here: Option, others: Sequence[Option], policies: Policies, *, chosen_now: bool
) -> NodeChoice:
    policy, outlook = pod.shape.policy or policies.default, policies.outlook
    gpus, why = _gpus(pod, world.nodes[here.node], here.grants), []
    for gpu, before, after in gpus[:_GPUS_NAMED]:
        few = policy is Policy.DENSE and little_asked_for(after, outlook)
        why.append(f"GPU {gpu.label}: {of_gpu(before, after, few_ask=few)}")
    if len(gpus) > _GPUS_NAMED:
        why.append(f"and {len(gpus) - _GPUS_NAMED} more")
    ask = Ask.of(pod.shape)
    fitting = [gpu for gpu in here.change.before.gpus if ask.fits(gpu)]
    if chosen_now and len(gpus) == 1 == ask.gpus and len(set(fitting)) > 1:
        why.append(f"{WORDS[policy][1]} of {len(fitting)} with room there")
    told = NodeChoice(node=here.node, why="; ".join(why), lack="it fits on no other node")
    if not others:
        return told
    there = others[0]
    if there.cost < here.cost:
        words = lack(policy, outlook, here, there, here.node)
        return replace(told, next=there.node, lack=f"{there.node} would be better: {words}")
    words = lack(policy, outlook, there, here, "it")
    if there.cost == here.cost and here.node < there.node:
        words += f", and {here.node} comes first by name"
    return replace(told, next=there.node, lack=f"{there.node} is next: {words}")


def _gpus(pod: PodToPlace, node: Node, grants: tuple[Grant, ...]) -> list[tuple[Gpu, FreeGpu, FreeGpu]]:
    """Those that the pod gets: free before, and after."""
    then = node.plus(pod, grants)
    if not isinstance(node.ledger, NodeLedger) or not isinstance(then.ledger, NodeLedger):
        return []
    gpus = [gpu for gpu in node.ledger.inventory.gpus if gpu.uuid in then.held(pod.ref.uid)]
    return [(gpu, FreeGpu.of(gpu, node.ledger), FreeGpu.of(gpu, then.ledger)) for gpu in gpus]


def lack(policy: Policy, outlook: Outlook, there: Option, here: Option, it: str) -> str:
    """What a node, there, lacks that the better one, here, has; `it` is how the sentence calls the former."""
    if there.cost == here.cost:
        return "the policy finds both equal"
    match policy:
        case Policy.DENSE:
            wasted = there.cost[0] != here.cost[0]
            return _lack_of_gpus(there, outlook, it) if wasted else _lack_of_room(there, here, outlook)
        case Policy.FGD:
            gained, less = (_fragments(each.change, outlook) for each in (there, here))
            return (
                f"free GPU memory that usual pods cannot use would change by {gained:+.2f} GPUs on {there.node}, and by"
                f" {less:+.2f} on {here.node}"
            )
        case Policy.BINPACK | Policy.SPREAD:
            gpus = (each.change.after.gpus for each in (there, here))
            of_there, of_here = (
                units.part(sum(g.free_mib for g in each), sum(g.total_mib for g in each)) for each in gpus
            )
            return f"with the pod, {of_there} of GPU memory would be free on {there.node}, and {of_here} on {here.node}"
        case _:
            assert_never(policy)


def little_asked_for(gpu: FreeGpu, outlook: Outlook) -> bool:
    """Whether less than half of what is free on a GPU can be filled by pods that are usual in the cluster."""
    return gpu.total_mib in outlook.prices and 2 * _value(gpu, outlook) < gpu.free_mib * WHOLE


def _value(gpu: FreeGpu, outlook: Outlook) -> int:
    """Of what is free on a GPU to `dense`."""
    return int(Dense(outlook).value(of_gpus([gpu]))[0, 0])


def _lack_of_gpus(there: Option, outlook: Outlook, it: str) -> str:
    remainders = there.change.remainders
    left = max(remainders, key=lambda gpu: gpu.free_mib * WHOLE - _value(gpu, outlook), default=None)
    if left is not None and little_asked_for(left, outlook):
        return f"{it} would leave {units.memory(left.free_mib)} of a GPU, {FEW}"
    return f"what the pod would take of the GPUs of {there.node} is of more use to other pods"


def _lack_of_room(there: Option, here: Option, outlook: Outlook) -> str:
    """Of the kind of pod that decides: the room that the pod takes, and what that is worth on each node."""
    of_there, of_here = (_lost_room(side.change, outlook) for side in (there, here))
    costs = [weight * parts - other * fewer for (weight, parts), (other, fewer) in zip(of_there, of_here, strict=True)]
    most = costs.index(max(costs))
    (weight, parts), (other, fewer) = of_there[most], of_here[most]
    model = there.change.before.model
    if model != here.change.before.model and (weight - other) * parts > other * (parts - fewer):
        return f"GPUs of model {model} are kept for pods that need them"
    room = f"the room of {_pods(parts / PART)} with {asking(outlook.kinds[most])}"
    return f"on {there.node} the pod takes {room}, on {here.node} of {_pods(fewer / PART)}"


def _lost_room(change: Change, outlook: Outlook) -> list[tuple[int, int]]:
    """Of every kind of pod: what its room is worth on the node, and how many parts of it the pod takes."""
    _, (had, has) = how_many(Kinds(outlook.kinds), Nodes.of([change.before, change.after]))
    weights = outlook.weights.get(change.before.model, (0,) * len(outlook.kinds))
    return list(zip(weights, (had - has).tolist(), strict=True))


def _fragments(change: Change, outlook: Outlook) -> float:
    """By how much grows what is free on GPUs and of no use to the cluster's pods, in GPUs, as `fgd` counts."""
    policy = Fgd(outlook)
    grown = policy.grown(Nodes.of([change.before]), Nodes.of([change.after]))
    return int(grown[0]) / policy.number / FULL


def of_gpu(before: FreeGpu, after: FreeGpu, *, few_ask: bool) -> str:
    unit, (free, total, rest) = units.in_one_unit(before.free_mib, before.total_mib, after.free_mib)
    if not after.free_mib:
        if before.untouched:
            return f"all {free} {unit} are free, and it takes them"
        return f"{free} of {total} {unit} are free, and it fills them exactly"
    text = f"{free} of {total} {unit} are free, and {rest} {unit} stay free"
    return f"{text}, {FEW}" if few_ask else text


def asking(ask: Ask) -> str:
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
