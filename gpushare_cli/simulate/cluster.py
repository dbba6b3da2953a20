"""The nodes of a simulation: who gets which GPUs, and what that costs, are the controller's own decisions. Pure."""

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from gpushare.cluster import groups, node_ledger
from gpushare.model.capacity import Ask, FreeHost, NodeCapacity
from gpushare.model.ledger import Allocation, LedgerOrRefused, NodeLedger, Placed, Refused, Verdict
from gpushare.model.request import PodRequest, Policy, RequestShape
from gpushare.placement import costs, outlook, table
from gpushare.placement.columns import Bools, Ints, Nodes as Columns, clipped
from gpushare.placement.costs import Costs
from gpushare.placement.outlook import NOTHING_KNOWN, Outlook
from gpushare.placement.policies import LEARNING, Policies, Scoring
from gpushare.placement.table import Fits, Table
from gpushare_cli.kube_scores import Floats
from gpushare_cli.schedulable import PODS
from gpushare_cli.simulate.signature import Owner, PodAffinity, PodSignature
from gpushare_cli.world import World

ENOUGH: Final = 10**15  # CPU, memory and pods of a node that does not tell
_HEAP: Final = 2**21
"""Numbers of an array that is freed at once: from then on glibc keeps that much for others. Else it gives the memory of
each step back to the kernel, and clearing it again takes a tenth of the time."""
_MOST_KEPT: Final = 20_000_000  # of nodes times signatures; some 500 MiB


@dataclass(frozen=True, slots=True, kw_only=True)
class Nodes:  # before a run, each by its number: they are sorted by name
    world: World
    used: Floats  # what the pods on each take: `[field of Load, node]`
    replicas: Mapping[Owner, Mapping[int, int]]  # how many of these pods each owner has on which node
    affinities: Sequence[tuple[PodAffinity, int]] | None  # of these pods, with their nodes; None if none says anything
    asks: Sequence[Ask]  # what all pods ask for that the cluster has already

    @property
    def has(self) -> list[FreeHost | None]:
        """CPU and memory of each; None if it does not tell."""
        return [node.record.allocatable for node in self.world.nodes.values()]

    @property
    def hosts(self) -> Floats:
        """What each gives to pods, as kube-scheduler counts it: `[CPU, memory or pods; node]`."""
        counts = [(node.facts.allocatable or {}).get(PODS) or ENOUGH for node in self.world.nodes.values()]
        rows = [(*(has or (ENOUGH, ENOUGH)), clipped(pods, ENOUGH)) for has, pods in zip(self.has, counts, strict=True)]
        return np.array(rows, np.float64).reshape(-1, 3).T

    @property
    def labels(self) -> list[Mapping[str, str]]:
        return [node.facts.labels for node in self.world.nodes.values()]


class Learner:
    """What the controller learns of a cluster from its pods."""

    def __init__(self, known: Iterable[Ask] = (), *, draw: Callable[[int], int] | None = None) -> None:
        """From what pods ask for that are there.

        `draw` gives a number below the given one, by which the outlook is made earlier or later than it is due: the
        controller looks by the clock, too, and how fast pods come is not known.
        """
        self._seen, self._draw = Counter(known), draw
        self._until_next = self._wait()
        self.outlook: Outlook = NOTHING_KNOWN

    def came(self, ask: Ask) -> bool:
        """A pod has come; whether the outlook should be made again."""
        self._seen[ask] += 1
        return self.is_due()

    def is_due(self) -> bool:
        """Whether the outlook should be made again, as one more pod has come."""
        self._until_next -= 1
        if self._until_next:
            return False
        self._until_next = self._wait()
        return True

    def left(self, ask: Ask) -> None:
        if self._seen[ask]:
            self._seen[ask] -= 1

    def look(self, empty: Columns, now: Columns) -> bool:
        """Make the outlook of nodes that look so without pods, and so now; whether it has changed."""
        found = outlook.look(+self._seen, empty, now, self.outlook.epoch + 1)
        if found == replace(self.outlook, epoch=found.epoch):
            return False
        self.outlook = found
        return True

    def _wait(self) -> int:
        due = outlook.due_after(self._seen.total())
        return due if self._draw is None else 1 + self._draw(2 * due - 1)


class Cluster:
    """The ledger of every node, in a table."""

    def __init__(self, nodes: Nodes, policy: Policy, learner: Learner, *, rank_others: bool = False) -> None:
        every = nodes.world.nodes
        self.names = list(every)
        self.places = {name: number for number, name in enumerate(every)}
        self.ledgers: list[LedgerOrRefused] = [node.ledger for node in every.values()]
        self.requested = [Counter(node.requested) for node in every.values()]
        self._allocatable = [node.facts.allocatable for node in every.values()]
        self._spare: dict[str, Floats] = {}  # of extended resources, by node
        self._has = nodes.has
        self._left = [
            has and FreeHost(max(has.cpu_milli - int(cpu), 0), max(has.memory_mib - int(memory), 0))
            for has, cpu, memory in zip(self._has, nodes.used[0], nodes.used[1], strict=True)
        ]
        self._rooms: dict[int, NodeCapacity] = {}
        self.free_mib = sum(map(_free_mib, self.ledgers))  # on the GPUs of all nodes
        self.table = Table()
        for node in range(len(self.names)):
            self._set(node)
        self._labels = {namespace: list(labels) for namespace, labels in nodes.world.holders.items()}
        self.policies = Policies(policy)
        self._learner = learner
        self._used = {policy, self.policies.ranks(None)} if rank_others else {policy}
        self._scorings: dict[Policy, Scoring] = {}
        self._columns: OrderedDict[PodSignature, Column] = OrderedDict()
        self._most_columns = max(_MOST_KEPT // max(len(self.names), 1), 16)
        np.empty(_HEAP)
        self._look()

    def room(self, node: int) -> NodeCapacity:
        if node not in self._rooms:
            self._rooms[node] = node_ledger.room(self.ledgers[node], self._left[node])
        return self._rooms[node]

    @property
    def rooms(self) -> list[NodeCapacity]:
        return list(map(self.room, range(len(self.names))))

    def came(self, pod: PodSignature) -> None:
        if self._learner.came(pod.ask):
            self._look()

    def _look(self) -> None:
        if LEARNING.isdisjoint(self._used) or not self._learner.look(*self.table.sharing()):
            return
        self.policies = replace(self.policies, outlook=self._learner.outlook)
        self._scorings = {policy: each for policy, each in self._scorings.items() if policy not in LEARNING}

    def column(self, pod: PodSignature, wanted: Bools) -> "Column":
        """Where pods fit of the nodes that are wanted, as they are now. The columns that were used last are kept."""
        policy, shape = self.policies.ranks(pod.shape), self._resolved(pod)
        if shape is not None:
            self._used.add(policy)
        scoring = self._scorings.setdefault(policy, self.policies.of(policy))
        found = self._columns.get(pod)
        if found is None or found.shape != shape:
            found = self._columns[pod] = Column(pod, shape)
            if len(self._columns) > self._most_columns:
                self._columns.popitem(last=False)
        self._columns.move_to_end(pod)
        found.update(self, scoring, wanted)
        return found

    def verdict(self, pod: PodSignature, node: int) -> Verdict:
        shape = self._resolved(pod)
        return Placed(()) if shape is None else node_ledger.verdict(shape, self.ledgers[node], self.policies)

    def enough(self, pod: PodSignature) -> Bools:
        """Whether nodes as a whole have enough of GPU resources, by kube-scheduler's count."""
        found = np.ones(len(self.names), np.bool_)
        for resource, amount in pod.counted:
            found &= self._spare_of(resource) >= amount
        return found

    def _spare_of(self, resource: str) -> Floats:
        if resource not in self._spare:
            pairs = zip(self._allocatable, self.requested, strict=True)
            spare = [ENOUGH if has is None else has.get(resource, 0) - used[resource] for has, used in pairs]
            self._spare[resource] = np.array([clipped(each, ENOUGH) for each in spare], np.float64)
        return self._spare[resource]

    def change(self, node: int, placed: Placed, takes: FreeHost) -> costs.Change:
        ledger = self.ledgers[node]
        assert isinstance(ledger, NodeLedger)  # noqa: S101 - for the type checker: others grant nothing
        return costs.change_of(placed.grants, ledger, host=self._left[node], takes=takes)

    def take(self, pod: PodSignature, node: int, request: PodRequest | None) -> Allocation | None:
        """Give a pod its GPUs of a node where it fits; none to a pod without a request."""
        ledger, allocation = self.ledgers[node], None
        if request is not None and isinstance(ledger, NodeLedger):
            verdict = self.verdict(pod, node)
            if isinstance(verdict, Refused):
                raise ValueError(f"{self.names[node]} has no room for {pod.shape}")
            ref, labels = request.pod, request.labels
            allocation = Allocation(pod=ref, node=self.names[node], grants=verdict.grants, labels=labels)
            self._changed(node, ledger.with_allocation(allocation))
            self._labels.setdefault(ref.namespace, []).append(labels)
        self._count(pod, node, 1)
        return allocation

    def give(self, pod: PodSignature, node: int, allocation: Allocation | None) -> None:
        ledger = self.ledgers[node]
        if allocation is not None and isinstance(ledger, NodeLedger):
            rest = (held for uid, held in ledger.allocations.items() if uid != allocation.pod.uid)
            self._changed(node, NodeLedger.of(ledger.inventory, rest))
            self._labels[allocation.pod.namespace].remove(allocation.labels)
        self._count(pod, node, -1)
        self._learner.left(pod.ask)

    def _changed(self, node: int, ledger: NodeLedger) -> None:
        self.free_mib += _free_mib(ledger) - _free_mib(self.ledgers[node])
        self.ledgers[node] = ledger

    def _count(self, pod: PodSignature, node: int, sign: int) -> None:
        for resource, amount in pod.counted:
            self._spare_of(resource)[node] -= sign * amount
            self.requested[node][resource] += sign * amount
        if (left := self._left[node]) is not None:
            self._left[node] = left.without(pod.ask.host) if sign > 0 else left.plus(pod.ask.host)
        self._set(node)

    def _set(self, node: int) -> None:
        self._rooms.pop(node, None)
        self.table.set(self.names[node], self.ledgers[node], self._left[node], self._has[node])

    def _resolved(self, pod: PodSignature) -> RequestShape | None:
        """With what depends on the pods of its namespace."""
        shape = pod.shape
        if shape is None or shape.affinity is None:
            return shape
        return groups.resolved(shape, dict(pod.labels), lambda namespace: self._labels.get(namespace, ()))


class Column:
    """Where pods of one signature fit, and what that costs. Rows of tables are numbers of nodes, plus one."""

    def __init__(self, pod: PodSignature, shape: RequestShape | None) -> None:
        self._pod, self.shape = pod, shape
        self._fits = None if shape is None else Fits(shape)
        self._scoring: Scoring | None = None
        self._bare: Bools = np.zeros(0, np.bool_)
        self.fits = self._bare

    def update(self, cluster: Cluster, scoring: Scoring, wanted: Bools) -> None:
        """Follow the cluster, under the outlook of that scoring."""
        if scoring is not self._scoring:
            self._scoring, self._costs = scoring, Costs(self._pod.ask.host, scoring)
        rows = slice(1, len(wanted) + 1)
        if self._fits is None:
            self._costs.update(cluster.table, None)
            facts = cluster.table.facts[:, rows]
            self.fits, self._bare = wanted, (facts[table.STATE] != table.WIDE) & (facts[table.GPUS] == 0)
            self._place(cluster, scoring, wanted & (facts[table.STATE] == table.WIDE) & ~self._costs.known[rows])
            return
        self._fits.update(cluster.table)
        self._costs.update(cluster.table, self._fits)
        codes = self._fits.codes[rows]
        known = (codes == table.FITS) & self._costs.known[rows]
        self._place(cluster, scoring, wanted & ((codes == table.UNSEEN) | ((codes == table.FITS) & ~known)))
        self.fits = wanted & (codes == table.FITS)

    def _place(self, cluster: Cluster, scoring: Scoring, nodes: Bools) -> None:
        changes: dict[int, costs.Change] = {}
        for node in np.flatnonzero(nodes).tolist():
            verdict = cluster.verdict(self._pod, node)
            if self._fits is not None:
                self._fits.keep(node + 1, verdict)
            if isinstance(verdict, Placed):
                changes[node] = cluster.change(node, verdict, self._pod.ask.host)
        if changes:
            for node, cost in zip(changes, costs.costs_of(list(changes.values()), scoring), strict=True):
                self._costs.keep(node + 1, cost)

    def best(self, nodes: Ints) -> int:
        """Of nodes where the pod fits, the one that costs least, the first of those that are exactly equal."""
        found = self._costs.costs[1 + nodes]
        return int(nodes[np.lexsort((found[:, 2], found[:, 1], found[:, 0]))[0]])

    def grades(self, nodes: Ints) -> NDArray[np.uint8]:
        """What kube-scheduler is told of nodes where the pod fits.

        For pods without GPUs all nodes without GPUs are the best, and those that take no pods with GPUs.
        """
        rows = 1 + nodes
        best = np.flatnonzero(self._bare[nodes]) if self._fits is None else ()
        return costs.grades(self._costs.costs[rows], self._costs.known[rows], nodes, best)


def _free_mib(ledger: LedgerOrRefused) -> int:
    return sum(map(ledger.left_mib, ledger.inventory.gpus)) if isinstance(ledger, NodeLedger) else 0
