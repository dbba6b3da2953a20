"""The nodes of a simulation: who gets which GPUs, and what that costs, are the controller's own decisions. Pure."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final

from gpushare.cluster import groups, node_ledger
from gpushare.cluster.node_ledger import LedgerOrRefused
from gpushare.model.allocation import Allocation, Placed, Refused, Verdict
from gpushare.model.capacity import Ask, FreeHost, NodeCapacity
from gpushare.model.ledger import NodeLedger
from gpushare.model.request import PodRequest, Policy, RequestShape
from gpushare.placement import columns, demand, outlook, ranking
from gpushare.placement.chooser import Chooser
from gpushare.placement.outlook import NOTHING_KNOWN, Outlook
from gpushare.placement.policies import LEARNING, Policies
from gpushare.placement.ranking import Ranking
from gpushare.placement.rankings import Rankings
from gpushare.placement.tally import Tally
from gpushare_cli.kube_scores import Host, Load
from gpushare_cli.simulate.affinity import PodAffinity
from gpushare_cli.simulate.signature import Owner, PodSignature
from gpushare_cli.world import World

_NO_GPUS: Final = Placed(())
_ENOUGH: Final = 10**15
"""CPU, memory and pods of a node that does not tell."""
_MOST: Final = 200_000
"""GPUs that are remembered, and rooms, some 40 MiB each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Nodes:
    """The nodes before a run, each by its number: they are sorted by name."""

    world: World
    max_pods: Sequence[int | None]
    """None for nodes that do not tell, as for their CPU and memory."""
    used: Sequence[Load]
    """What the pods on each take."""
    replicas: Mapping[Owner, Mapping[int, int]]
    """How many of these pods each owner has on which node."""
    affinities: Sequence[tuple[PodAffinity, int]] | None
    """What these pods say of others, and their nodes; None if no pod says anything."""
    asks: Sequence[Ask]
    """What all pods ask for that the cluster has already."""

    @property
    def has(self) -> list[FreeHost | None]:
        return [node.record.allocatable for node in self.world.nodes.values()]

    @property
    def hosts(self) -> list[Host]:
        """What each gives to pods, as kube-scheduler counts it."""
        rooms = [has or FreeHost(_ENOUGH, _ENOUGH) for has in self.has]
        return [Host(*room, pods or _ENOUGH) for room, pods in zip(rooms, self.max_pods, strict=True)]

    @property
    def left(self) -> list[FreeHost | None]:
        """CPU and memory that no pod has requested; more may be requested than there is."""
        return [
            has and FreeHost(max(has.cpu_milli - used.cpu_milli, 0), max(has.memory_mib - used.memory_mib, 0))
            for has, used in zip(self.has, self.used, strict=True)
        ]

    @property
    def labels(self) -> list[Mapping[str, str]]:
        return [node.facts.labels for node in self.world.nodes.values()]

    @property
    def empty(self) -> list[NodeCapacity]:
        """As if there were no pod."""
        ledgers = [node.ledger for node in self.world.nodes.values()]
        bare = [each if isinstance(each, Refused) else NodeLedger.of(each.inventory) for each in ledgers]
        return list(map(node_ledger.room, bare, self.has))


class Learner:
    """What the controller learns of a cluster from its pods."""

    def __init__(
        self,
        empty: Sequence[NodeCapacity],
        known: Iterable[Ask] = (),
        *,
        learns: bool = True,
        draw: Callable[[int], int] | None = None,
    ) -> None:
        """Nothing is looked at yet.

        Args:
            empty: all nodes, as if there were no pod.
            known: what pods ask for that are there already.
            learns: from pods that come.
            draw: a number below the given one. By it the outlook is made earlier or later than it is due, for
                the controller looks by the clock, too, and how fast pods come is not known; None: when it is due.
        """
        self._empty = columns.Nodes.of(empty)
        self._seen = Counter(known)
        self._learns, self._draw = learns, draw
        self._until_next = self._wait()
        self.tally = Tally(())
        self.outlook: Outlook = NOTHING_KNOWN

    def came(self, ask: Ask) -> bool:
        """A pod has come; whether the outlook should be made again."""
        if self._learns:
            self._seen[ask] += 1
        self._until_next -= 1
        if self._until_next:
            return False
        self._until_next = self._wait()
        return True

    def left(self, ask: Ask) -> None:
        """A pod has ended: it is no part of the sample any more."""
        if self._learns and self._seen[ask]:
            self._seen[ask] -= 1

    def look(self, rooms: Iterable[NodeCapacity]) -> bool:
        """Make the outlook of nodes that look like this; whether it has changed."""
        found = outlook.look(+self._seen, self._empty, columns.Nodes.of(list(rooms)), self.outlook.epoch + 1)
        if found.kinds != self.tally.kinds:
            self.tally = Tally(found.kinds)
        if found == replace(self.outlook, epoch=found.epoch):
            return False
        self.outlook = found
        return True

    def _wait(self) -> int:
        due = demand.due_after(self._seen.total())
        return due if self._draw is None else 1 + self._draw(2 * due - 1)


class _Costs:
    """What one policy thinks of nodes for pods that their `Ask` describes; kept for equal GPUs and rooms."""

    def __init__(self, ranking: Ranking) -> None:
        self._choosers: dict[Ask, Chooser] = {}
        self._ties: dict[Ask, dict[NodeCapacity, int]] = {}
        self._gpus_kept = self._ties_kept = 0
        self._under(ranking)

    def _under(self, ranking: Ranking) -> None:
        self.ranking = ranking
        self._worth = lru_cache(_MOST)(ranking.worth)
        self._ties.clear()
        self._ties_kept = 0

    def update(self, ranking: Ranking) -> bool:
        """Under another outlook; whether `of` may say something else."""
        changed = ranking.basis != self.ranking.basis
        self._under(ranking)
        if changed:
            self._forget()
        for chooser in self._choosers.values():
            chooser.under(ranking)
        return changed

    def of(self, ask: Ask, rooms: Iterable[NodeCapacity]) -> list[int | None]:
        """What comes first in the comparison of nodes; None where a pod does not fit."""
        chooser = self._chooser(ask)
        before = chooser.remembered
        found = list(map(chooser.first, rooms))
        self._gpus_kept += chooser.remembered - before
        if self._gpus_kept > _MOST:
            self._forget()
        return found

    def _forget(self) -> None:
        self._choosers.clear()
        self._gpus_kept = 0

    def tie_breakers(self, ask: Ask, rooms: Iterable[NodeCapacity]) -> list[int]:
        """What tells nodes apart on which a pod fits, and for which `of` says the same: `Ranking.then`."""
        if self._ties_kept > _MOST:
            self._under(self.ranking)
        known, chooser = self._ties.setdefault(ask, {}), self._chooser(ask)
        found = []
        for room in rooms:
            tie = known.get(room)
            if tie is None:
                tie = known[room] = self._worth(room) - chooser.worth_after(room)
                self._ties_kept += 1
            found.append(tie)
        return found

    def _chooser(self, ask: Ask) -> Chooser:
        found = self._choosers.get(ask)
        if found is None:
            found = self._choosers[ask] = Chooser(ask, self.ranking)
        return found


class Cluster:
    """The ledger of every node, and what every policy in use thinks of it."""

    def __init__(self, nodes: Nodes, policy: Policy, learner: Learner) -> None:
        every = nodes.world.nodes
        self.names = list(every)
        self.places = {name: number for number, name in enumerate(every)}
        self.ledgers: list[LedgerOrRefused] = [node.ledger for node in every.values()]
        self.requested = [Counter(node.requested) for node in every.values()]
        self._allocatable = [node.facts.allocatable for node in every.values()]
        self._left = nodes.left
        self.rooms = list(map(node_ledger.room, self.ledgers, self._left))
        """Nodes as they look now."""
        self.free_mib = sum(map(_free, self.rooms))
        """On the GPUs of all nodes."""
        self._mixed = any(isinstance(each, NodeLedger) and each.inventory.is_mixed for each in self.ledgers)
        self._labels = {namespace: list(labels) for namespace, labels in nodes.world.holders.items()}
        self._resolved: dict[PodSignature, RequestShape] = {}
        self.costs_epoch = self.ties_epoch = 0
        """Each changes when what `costs` or `tie_breakers` has said may be different, whatever has come to nodes."""
        self._learner, self._default = learner, policy
        self.policies, self._placing = Rankings(policy), Policies(policy)
        """As they are for the next pod."""
        self._costs: dict[Policy, _Costs] = {}
        self._costs_of(None)
        self._look()

    def came(self, pod: PodSignature) -> None:
        if self._learner.came(pod.ask):
            self._look()
        self._resolve(pod)

    def _look(self) -> None:
        if LEARNING.isdisjoint(self._costs) or not self._learner.look(self.rooms):
            return
        self.policies = Rankings(self._default, self._learner.outlook, self._learner.tally)
        self._placing = Policies(self._default, self._learner.outlook)
        self.ties_epoch += 1
        changed = [costs.update(self.policies.of(policy)) for policy, costs in self._costs.items()]
        self.costs_epoch += any(changed)

    def costs(self, pod: PodSignature, nodes: Sequence[int]) -> dict[int, int]:
        """What those of the nodes cost a pod on which it fits, if their CPU and memory are enough."""
        able = [node for node in nodes if not self._is_short(pod, node)]
        if self._follows_from_room(pod):
            found = self._costs_of(pod.shape).of(pod.ask, [self.rooms[node] for node in able])
        else:
            found = [self._cost_of_grants(pod, node) for node in able]
        return {node: cost for node, cost in zip(able, found, strict=True) if cost is not None}

    def tie_breakers(self, pod: PodSignature, nodes: Sequence[int]) -> list[int]:
        """By which nodes that cost the same and fit are told apart; less is better."""
        if not self._follows_from_room(pod):
            return [0] * len(nodes)  # `costs` has said all
        return self._costs_of(pod.shape).tie_breakers(pod.ask, [self.rooms[node] for node in nodes])

    def verdict(self, pod: PodSignature, node: int) -> Verdict:
        shape = self._resolve(pod)
        return _NO_GPUS if shape is None else node_ledger.verdict(shape, self.ledgers[node], self._placing)

    def take(self, pod: PodSignature, node: int, request: PodRequest | None) -> Allocation | None:
        """Give a pod its GPUs of a node where it fits; none to a pod without a request."""
        ledger, allocation = self.ledgers[node], None
        if request is not None and isinstance(ledger, NodeLedger):
            verdict = self.verdict(pod, node)
            if isinstance(verdict, Refused):
                raise ValueError(f"{self.names[node]} has no room for {pod.shape}")
            ref, labels = request.pod, request.labels
            allocation = Allocation(pod=ref, node=self.names[node], grants=verdict.grants, labels=labels)
            self.ledgers[node] = ledger.with_allocation(allocation)
            self._labels.setdefault(ref.namespace, []).append(labels)
        self._count(pod, node, 1)
        return allocation

    def give(self, pod: PodSignature, node: int, allocation: Allocation | None) -> None:
        ledger = self.ledgers[node]
        if allocation is not None and isinstance(ledger, NodeLedger):
            rest = (held for uid, held in ledger.allocations.items() if uid != allocation.pod.uid)
            self.ledgers[node] = NodeLedger.of(ledger.inventory, rest)
            self._labels[allocation.pod.namespace].remove(allocation.labels)
        self._count(pod, node, -1)
        self._learner.left(pod.ask)

    def _count(self, pod: PodSignature, node: int, sign: int) -> None:
        for resource, amount in pod.counted:
            self.requested[node][resource] += sign * amount
        if (left := self._left[node]) is not None:
            self._left[node] = left.without(pod.ask.host) if sign > 0 else left.plus(pod.ask.host)
        self.free_mib -= _free(self.rooms[node])
        self.rooms[node] = node_ledger.room(self.ledgers[node], self._left[node])
        self.free_mib += _free(self.rooms[node])

    def _costs_of(self, shape: RequestShape | None) -> _Costs:
        policy = (shape and shape.policy) or self._default
        found = self._costs.get(policy)
        if found is None:
            found = self._costs[policy] = _Costs(self.policies.of(policy))
        return found

    def _follows_from_room(self, pod: PodSignature) -> bool:
        return pod.shape is None or (pod.is_plain and not self._mixed)

    def _cost_of_grants(self, pod: PodSignature, node: int) -> int | None:
        verdict, ledger = self.verdict(pod, node), self.ledgers[node]
        if isinstance(verdict, Refused) or isinstance(ledger, Refused):
            return None
        policy = self._costs_of(pod.shape).ranking
        return ranking.cost_of(verdict.grants, ledger, policy, host=self._left[node], takes=pod.ask.host)

    def _is_short(self, pod: PodSignature, node: int) -> bool:
        """Whether the node as a whole has too little of a GPU resource, by kube-scheduler's count."""
        has, used = self._allocatable[node], self.requested[node]
        return has is not None and any(amount > has.get(key, 0) - used[key] for key, amount in pod.counted)

    def _resolve(self, pod: PodSignature) -> RequestShape | None:
        """With what depends on the pods of its namespace."""
        shape = pod.shape
        if shape is None or shape.affinity is None:
            return shape
        found = groups.resolved(shape, dict(pod.labels), lambda namespace: self._labels.get(namespace, ()))
        if self._resolved.setdefault(pod, found) != found:
            self._resolved[pod] = found
            self.costs_epoch += 1
        return found


def _free(room: NodeCapacity) -> int:
    return sum([gpu.free_mib for gpu in room.gpus])
