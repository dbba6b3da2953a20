"""The GPUs of a cluster's nodes during a simulation: every decision is the controller's own."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from gpushare.cluster import groups, node_ledger
from gpushare.cluster.node_ledger import LedgerOrRefused
from gpushare.identity import NodeName, PodRef
from gpushare.model.allocation import Allocation, Grant, Placed, Refused, Verdict
from gpushare.model.capacity import Ask, FreeHost, NodeCapacity
from gpushare.model.ledger import NodeLedger
from gpushare.model.request import Policy, RequestShape
from gpushare.placement import ranking
from gpushare.simulation.costs import Costs
from gpushare.simulation.kinds import Kind
from gpushare.simulation.learner import Learner
from gpushare.simulation.policy_costs import PolicyCosts
from gpushare_cli.simulate.kinds import Wanted, counted
from gpushare_cli.world import World

NO_GPUS = Placed(())
"""For a pod that asks for none."""


@dataclass(frozen=True, slots=True)
class Taken:
    """What a pod holds of a node."""

    kind: Kind
    allocation: Allocation | None


class Fleet:
    """`Gpus` with the ledger of every node."""

    def __init__(
        self,
        world: World,
        hosts: Mapping[NodeName, FreeHost | None],
        left: Mapping[NodeName, FreeHost],
        policy: Policy,
        *,
        known: Iterable[Ask],
        pods: Callable[[int], tuple[PodRef, Mapping[str, str]]],
        chance: Callable[[int], int] | None = None,
    ) -> None:
        """The cluster as it is.

        Args:
            world: its nodes.
            hosts: CPU and memory of nodes; None for those that do not tell.
            left: what no pod has requested of it.
            policy: of pods that name none.
            known: what the pods ask for that are there already.
            pods: identity and labels of a pod, by its number.
            chance: as of `Learner`.
        """
        self.names = list(world.nodes)
        self.ledgers: list[LedgerOrRefused] = [node.ledger for node in world.nodes.values()]
        self.requested = [dict(node.requested) for node in world.nodes.values()]
        self._allocatable = [node.facts.allocatable for node in world.nodes.values()]
        self._host = [left.get(name) for name in self.names]
        self.rooms = [node_ledger.room(ledger, host) for ledger, host in zip(self.ledgers, self._host, strict=True)]
        """Nodes as they look now."""
        self.free_mib = sum(map(_free, self.rooms))
        """On the GPUs of all nodes."""
        self._mixed = any(map(_is_mixed, self.ledgers))
        self._labels = {namespace: list(labels) for namespace, labels in world.holders.items()}
        self._resolved: dict[Wanted, RequestShape] = {}
        self._flips = 0
        self._pods = pods
        empty = [node_ledger.room(_emptied(node.ledger), hosts.get(name)) for name, node in world.nodes.items()]
        self._by_policy = PolicyCosts(policy, Learner(empty, known, chance=chance), self.rooms)

    @property
    def epoch(self) -> int:
        """As `Gpus`."""
        return self._by_policy.epoch + self._flips

    @property
    def fine_epoch(self) -> int:
        """As `Gpus`."""
        return self._by_policy.fine_epoch

    def came(self, kind: Kind) -> None:
        """Learn from it."""
        self._by_policy.came(kind.ask, self.rooms)
        if (wanted := _wanted(kind)) is not None:
            self._resolve(wanted)

    def costs(self, kind: Kind, nodes: Sequence[int]) -> list[int | None]:
        """As `Gpus`."""
        able = [node for node in nodes if not self._is_short(kind, node)]
        if self._follows_from_room(kind):
            found = self._costs(kind).of(kind.ask, [self.rooms[node] for node in able])
        else:
            found = [self._cost_of_grants(kind, node) for node in able]
        return list(map(dict(zip(able, found, strict=True)).get, nodes))

    def fine(self, kind: Kind, nodes: Sequence[int]) -> list[int]:
        """As `Gpus`."""
        if not self._follows_from_room(kind):
            return [0] * len(nodes)  # `costs` has said all
        return self._costs(kind).fine(kind.ask, [self.rooms[node] for node in nodes])

    def _costs(self, kind: Kind) -> Costs:
        wanted = _wanted(kind)
        return self._by_policy.of(wanted.policy if wanted is not None else None)

    def _follows_from_room(self, kind: Kind) -> bool:
        wanted = _wanted(kind)
        return wanted is None or (wanted.plain and not self._mixed)

    def _cost_of_grants(self, kind: Kind, node: int) -> int | None:
        verdict, ledger = self.verdict(kind, node), self.ledgers[node]
        if isinstance(verdict, Refused) or isinstance(ledger, Refused):
            return None
        policy, host = self._costs(kind).ranking, self._host[node]
        return ranking.cost_of(verdict.grants, ledger, policy, host=host, takes=kind.ask.host)

    def verdict(self, kind: Kind, node: int) -> Verdict:
        """Whether a pod fits on the GPUs of a node, and on which."""
        wanted = _wanted(kind)
        if wanted is None:
            return NO_GPUS
        return node_ledger.verdict(self._resolve(wanted), self.ledgers[node], self._by_policy.policies)

    def _is_short(self, kind: Kind, node: int) -> bool:
        """Whether the node as a whole has too little of a GPU resource, by kube-scheduler's count."""
        has = self._allocatable[node]
        used = self.requested[node]
        return has is not None and any(
            amount > has.get(resource, 0) - used.get(resource, 0) for resource, amount in counted(kind)
        )

    def take(self, kind: Kind, node: int, pod: int) -> Taken:
        """As `Gpus`."""
        wanted, ledger, allocation = _wanted(kind), self.ledgers[node], None
        if wanted is not None and isinstance(ledger, NodeLedger):
            verdict = self.verdict(kind, node)
            if isinstance(verdict, Refused):
                raise ValueError(f"{self.names[node]} has no room for {wanted.shape}")
            ref, labels = self._pods(pod)
            allocation = Allocation(pod=ref, node=self.names[node], grants=verdict.grants, labels=labels)
            self.ledgers[node] = ledger.with_allocation(allocation)
            self._labels.setdefault(ref.namespace, []).append(labels)
        self._count(kind, node, 1)
        return Taken(kind, allocation)

    def give(self, node: int, taken: Taken) -> None:
        """As `Gpus`."""
        ledger, allocation = self.ledgers[node], taken.allocation
        if allocation is not None and isinstance(ledger, NodeLedger):
            rest = (held for uid, held in ledger.allocations.items() if uid != allocation.pod.uid)
            self.ledgers[node] = NodeLedger.of(ledger.inventory, rest)
            self._labels[allocation.pod.namespace].remove(allocation.labels)
        self._count(taken.kind, node, -1)
        self._by_policy.left(taken.kind.ask)

    def _count(self, kind: Kind, node: int, sign: int) -> None:
        host, requested = self._host[node], self.requested[node]
        for resource, amount in counted(kind):
            requested[resource] = requested.get(resource, 0) + sign * amount
        if host is not None:
            self._host[node] = host.without(kind.ask.host) if sign > 0 else host.plus(kind.ask.host)
        self.free_mib -= _free(self.rooms[node])
        self.rooms[node] = node_ledger.room(self.ledgers[node], self._host[node])
        self.free_mib += _free(self.rooms[node])

    def _resolve(self, wanted: Wanted) -> RequestShape:
        """With what depends on the pods of its namespace."""
        if wanted.shape.affinity is None:
            return wanted.shape
        found = groups.resolved(wanted.shape, dict(wanted.labels), lambda namespace: self._labels.get(namespace, ()))
        if self._resolved.setdefault(wanted, found) != found:
            self._resolved[wanted] = found
            self._flips += 1
        return found


def grants(taken: Taken) -> tuple[Grant, ...]:
    """What a pod was given."""
    return taken.allocation.grants if taken.allocation is not None else ()


def _wanted(kind: Kind) -> Wanted | None:
    return kind.more if isinstance(kind.more, Wanted) else None


def _free(room: NodeCapacity) -> int:
    return sum(gpu.free_mib for gpu in room.gpus)


def _emptied(ledger: LedgerOrRefused) -> LedgerOrRefused:
    return ledger if isinstance(ledger, Refused) else NodeLedger.of(ledger.inventory)


def _is_mixed(ledger: LedgerOrRefused) -> bool:
    return isinstance(ledger, NodeLedger) and ledger.inventory.is_mixed
