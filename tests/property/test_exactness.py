"""Every answer to kube-scheduler is that of `place` and of the policy's definition, whatever has changed before."""

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from threading import Event
from typing import Final

import numpy as np
from hypothesis import example, given, settings, strategies as st

from controller.cluster_table import PodKind
from controller.index import ChangedNode
from controller.reconcile import loop
from controller.state import Reserved
from controller.watches import NodeSink, PodSink
from gpushare.cluster import node_ledger
from gpushare.cluster.node_records import NodeRecord
from gpushare.cluster.pod_records import NonGpuPod
from gpushare.identity import ContainerName, GpuUuid, NodeName, PodUid
from gpushare.model.capacity import Ask, FreeGpu, FreeHost, NodeCapacity
from gpushare.model.gpu import GpuHealth
from gpushare.model.ledger import LedgerOrRefused, NodeLedger, Placed, Refused, Verdict
from gpushare.model.request import ANY_GPU, ContainerRequest, Need, PodRequest, Policy, RequestShape
from gpushare.placement import columns, outlook, policies as scoring
from gpushare.placement.columns import Kinds, Nodes
from gpushare.placement.costs import Costs
from gpushare.placement.place import place
from gpushare.placement.policies import Policies
from gpushare.placement.table import FITS, Fits, NodeNames, Table, refusal
from gpushare.units import ResourceConfig
from testing import plain_policies as plain
from testing.builders import make_inventory, make_ref
from testing.controller.world import World
from tests.property.strategies import ledgers, shapes
from tests.property.test_policies import asks, clusters, emptied, samples

WHOLE = ResourceConfig(whole_gpus=True)
hosts = st.none() | st.builds(FreeHost, st.sampled_from([1000, 8000, 96_000]), st.sampled_from([512, 65_536]))
TAKES = FreeHost(2000, 1024)


@st.composite
def records(draw: st.DrawFn, name: str) -> NodeRecord:
    """A node of any kind."""
    inventory = draw(ledgers(name)).inventory
    if draw(st.booleans()):  # of one model, as nearly every node
        inventory = replace(inventory, gpus=tuple(replace(gpu, model="Tesla T4") for gpu in inventory.gpus))
    return NodeRecord(name=inventory.node, published="", inventory=inventory, allocatable=draw(hosts))


ChangingNodes = list[NodeRecord]
changing_clusters: st.SearchStrategy[ChangingNodes] = st.integers(1, 4).flatmap(
    lambda number: st.tuples(*(records(f"node-{i}") for i in range(number))).map(list)
)
Seen = Mapping[NodeName, tuple[LedgerOrRefused, FreeHost | None]]
Step = tuple[str, int]
CHANGES: Final = ("bind", "bind", "undo", "end", "other pod", "gone", "comes", "cordon")
steps = st.lists(st.tuples(st.sampled_from([*CHANGES, "outlook"]), st.integers(0, 20)), max_size=6)


@dataclass
class Cluster:
    """One controller, and what happens to it."""

    nodes: ChangingNodes
    policy: Policy
    world: World = field(default_factory=World)
    lists: dict[tuple[NodeName, ...], NodeNames] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.world.start_controller(WHOLE, self.policy)
        NodeSink(self.world.state.index).replace(self.nodes)

    def happen(self, step: Step, asks: Sequence[RequestShape], name: str) -> None:
        """Something changes between two questions, or beside them."""
        what, number = step
        record, state = self.nodes[number % len(self.nodes)], self.world.state
        match what:
            case "bind" | "undo" | "end":
                labels = {"app": "web"} if number % 2 else {}
                shape = asks[number % len(asks)]
                request = PodRequest(pod=make_ref(name), shape=shape, labels=labels, cpu_milli=300)
                reserved = state.reserve(request, record.name, now=0.0)
                if isinstance(reserved, Reserved) and what == "undo":
                    state.undo(reserved)
                elif isinstance(reserved, Reserved):
                    state.confirm(reserved, reserved.allocation)
            case "other pod":
                taken = FreeHost(100 * number, 64)
                PodSink(state.index).upsert(NonGpuPod(PodUid(f"guest-{number}"), record.name, taken))
            case "gone":
                NodeSink(state.index).remove(record)
            case "comes":
                NodeSink(state.index).upsert(record)
            case "cordon":
                assert record.inventory is not None
                gpus = tuple(replace(gpu, health=GpuHealth.CORDONED) for gpu in record.inventory.gpus[:1])
                inventory = replace(record.inventory, gpus=(*gpus, *record.inventory.gpus[1:]))
                NodeSink(state.index).upsert(replace(record, inventory=inventory))
            case _:
                self.world.clock.at += 60
                self.world.outlooks.tick()

    def check(self, shape: RequestShape) -> None:
        """What is said of all nodes, and of one that is not there, against the cluster as it is."""
        hosts = {name: each.host for name, each in self.world.capacities().items()}
        seen: Seen = {name: (ledger, hosts[name]) for name, ledger in self.world.snapshot().ledgers.items()}
        self.compare(shape, lambda: seen)

    def compare(self, shape: RequestShape, seen: Callable[[], Seen]) -> None:
        """Against ledgers and hosts as they were when the table was asked."""
        state, table = self.world.state, self.world.table
        names = [*(record.name for record in self.nodes), NodeName("unknown")]
        nodes = self.lists.setdefault(tuple(names), NodeNames(names))  # rows of a list that is known may change
        resolved = state.index.resolve(shape, {})
        found = table.filter(resolved, nodes)
        known, said = seen(), verdicts(resolved, seen(), state.policies)
        refused = {name: each for name, each in said.items() if isinstance(each, Refused)}
        assert found.fits == [name for name in names if name in known and name not in refused]
        told = {name: text for name, text in {**found.failed, **found.unresolvable}.items() if name in known}
        assert told == {name: each.message for name, each in refused.items()}
        assert set(found.unresolvable) == {name for name, each in refused.items() if each.permanent}

        grades = table.grades(PodKind(resolved, TAKES), nodes).tolist()
        known, costs = seen(), list[plain.Cost | None]()
        placed = verdicts(resolved, known, state.policies)
        for name in names:
            verdict, (ledger, host), cost = placed.get(name), known.get(name, (None, None)), None
            if isinstance(verdict, Placed) and isinstance(ledger, NodeLedger):
                before, after = plain.change(verdict.grants, ledger, host, TAKES)
                cost = plain.cost(shape.policy or self.policy, state.policies.outlook, before, after)
            costs.append(cost)
        assert grades == plain.grades(names, costs)


def verdicts(shape: RequestShape, seen: Seen, policies: Policies) -> dict[NodeName, Verdict]:
    return {name: node_ledger.verdict(shape, ledger, policies) for name, (ledger, _) in seen.items()}


def percent_of(percent: int, gpus: int) -> RequestShape:
    container = ContainerRequest(container=ContainerName("c"), memory_percent=percent, gpu_count=gpus)
    return RequestShape(containers=(container,))


def gpus(name: str, *gib: int, host: FreeHost | None = None) -> NodeRecord:
    return NodeRecord(name=NodeName(name), published="", inventory=make_inventory(*gib, node=name), allocatable=host)


MIN = RequestShape(
    containers=(ContainerRequest(container=ContainerName("c"), memory_mib=1024),),
    gpus=replace(percent_of(1, 1).gpus, min_memory_mib=1),
)


@example([gpus("node-0", 16, 24), gpus("node-1", 20, 20)], [percent_of(50, 2)], Policy.BINPACK, [])
@example([gpus("node-0", 16, host=FreeHost(1000, 4096)), gpus("node-1", 16)], [MIN], Policy.DENSE, [("outlook", 0)])
@given(changing_clusters, st.lists(shapes(max_containers=2), min_size=1, max_size=3), st.sampled_from(Policy), steps)
def test_every_answer_is_that_of_place_and_of_the_policy(
    nodes: ChangingNodes, asks: list[RequestShape], policy: Policy, changes: list[Step]
) -> None:
    cluster = Cluster(nodes, policy)
    for number, step in enumerate([*changes, None]):
        for shape in asks:
            cluster.check(shape)
        if step is not None:
            cluster.happen(step, asks, f"p{number}")
    state, names = cluster.world.state, [record.name for record in nodes]
    for name in names:
        request = PodRequest(pod=make_ref(f"on-{name}"), shape=asks[0])
        fits = name in cluster.world.table.filter(state.index.resolve(request.shape, {}), names).fits
        assert isinstance(state.reserve(request, name, now=0.0), Reserved) == fits
    for ledger in state.index.snapshot().ledgers.values():
        assert isinstance(ledger, NodeLedger)
        assert ledger.over_committed() == ledger.over_computed() == {}
    assert loop.audit(state.index) == []


@given(
    st.lists(ledgers(), min_size=1, max_size=4),
    shapes(max_containers=1),
    st.sampled_from(Policy),
    samples,
    st.booleans(),
)
def test_columns_say_of_any_ledger_what_place_says(
    found: list[NodeLedger], shape: RequestShape, policy: Policy, sample: list[Ask], wide: bool
) -> None:
    """Also of GPUs on which more is held than they have, or nothing by someone who is there."""
    gpus_of_any = replace(shape.gpus, uuids=ANY_GPU.uuids)
    shape = replace(shape, containers=shape.containers[:1], affinity=None, gpus=gpus_of_any)
    table, fits = Table(), Fits(shape)
    for number, ledger in enumerate(found):
        inventory = ledger.inventory
        if wide:  # more GPUs than rows have places at first
            more = (
                replace(gpu, uuid=GpuUuid(f"{gpu.uuid}-{i}"), index=10 * i + gpu.index)
                for gpu in inventory.gpus
                for i in range(1, 4)
            )
            inventory = replace(inventory, gpus=(*inventory.gpus, *more))
        name = NodeName(f"node-{number}")
        known = NodeLedger.of(replace(inventory, node=name), ledger.allocations.values())
        table.set(name, known, FreeHost(1500, 2**number * 700), None)
    policies = Policies(policy, outlook.look(Counter(sample), *table.sharing()))
    costs = Costs(TAKES, policies.of(shape.policy))
    fits.update(table)
    costs.update(table, fits)
    for row in table.rows.values():
        code, known_ledger = int(fits.codes[row]), table.ledgers[row]
        assert isinstance(known_ledger, NodeLedger)
        verdict = place(shape, known_ledger, policies)
        if isinstance(verdict, Refused):
            assert refusal(code) == (verdict.reason, verdict.permanent)
            continue
        assert code == FITS
        before, after = plain.change(verdict.grants, known_ledger, table.host(row), TAKES)
        assert tuple(costs.costs[row].tolist()) == plain.cost(shape.policy or policy, policies.outlook, before, after)


@settings(max_examples=20)
@given(
    changing_clusters,
    st.lists(shapes(max_containers=2), min_size=3, max_size=3),
    st.sampled_from(Policy),
    st.integers(),
)
def test_every_answer_is_of_one_moment_while_pods_come_and_go(
    nodes: ChangingNodes, asks: list[RequestShape], policy: Policy, seed: int
) -> None:
    """The table is asked by one thread, which writes down what it has taken of the index by then."""
    cluster, seen, stop = Cluster(nodes, policy), dict[NodeName, tuple[LedgerOrRefused, FreeHost | None]](), Event()
    index = cluster.world.state.index
    take = index.take_changed

    def noting() -> list[ChangedNode]:
        changed = take()
        for each in changed:
            seen.pop(each.name, None)
            if each.ledger is not None:
                seen[each.name] = each.ledger, each.left
        return changed

    def change(thread: int) -> None:
        chance, number = random.Random(f"{seed} {thread}"), 0
        while not stop.is_set():
            number += 1
            cluster.happen((chance.choice(CHANGES), chance.randrange(20)), asks, name=f"{thread}-{number}")

    index.take_changed = noting  # type: ignore[method-assign]
    with ThreadPoolExecutor(3) as others:
        running = [others.submit(change, thread) for thread in range(3)]
        try:
            for _ in range(5):
                for shape in asks:
                    cluster.compare(shape, lambda: seen)
        finally:
            stop.set()
        for each in running:
            each.result()


policies = st.sampled_from(Policy)
needs = st.builds(Need, st.integers(1, 8), st.sampled_from([0, 0, 30]))  # all ask for something


def taken(node: NodeCapacity, place: int, need: Need, takes: FreeHost) -> NodeCapacity:
    """A node after a pod has come to one of its GPUs."""
    gpus = list(node.gpus)
    gpus[place] = gpus[place].without(need)
    return NodeCapacity(node.model, tuple(gpus), node.host and node.host.without(takes))


@given(clusters, samples, policies, needs)
def test_costs_are_those_of_the_definition(
    nodes: list[NodeCapacity], sample: list[Ask], policy: Policy, need: Need
) -> None:
    known = outlook.of_cluster(sample, map(emptied, nodes), nodes)
    found, takes = scoring.POLICIES[policy](known), FreeHost(700, 3)
    before = Nodes.of(nodes)
    by_gpu = found.gpu_costs(before.gpus, need.memory_mib, need.compute_percent)
    after = before.after(np.zeros((len(nodes), 1), np.int64), need.memory_mib, need.compute_percent, takes)
    costs = found.costs(before, after)
    assert found.learns or np.array_equal(costs, scoring.POLICIES[policy]().costs(before, after))
    for row, node in enumerate(nodes):
        expected = [plain.gpu_cost(policy, known, gpu, need) for gpu in node.gpus]
        if all(gpu.free_mib >= need.memory_mib for gpu in node.gpus):
            assert by_gpu[row, : len(node.gpus)].tolist() == expected
        if node.gpus[0].free_mib >= need.memory_mib and node.gpus[0].free_percent >= need.compute_percent:
            cost = plain.cost(policy, known, node, taken(node, 0, need, takes))
            assert tuple(costs[row].tolist()) == cost


@given(clusters, st.lists(asks, min_size=1, max_size=5))
def test_room_in_pods_is_that_of_the_definition(nodes: list[NodeCapacity], kinds: Sequence[Ask]) -> None:
    by_gpus, fit = columns.how_many(Kinds(kinds), Nodes.of(nodes))
    assert by_gpus.tolist() == [[plain.how_many(kind, node) for kind in kinds] for node in nodes]
    assert fit.tolist() == [[plain.how_many(kind, node, node.host) for kind in kinds] for node in nodes]


HUGE = FreeGpu(2**70, 2**69, 2**64)


@example([NodeCapacity("T4", (HUGE,) * 64, FreeHost(2**80, 2**80))], [Ask(gpus=1, memory_mib=2**65, cpu_milli=2**65)])
@given(clusters, st.lists(asks, max_size=3))
def test_no_amount_overflows(nodes: list[NodeCapacity], sample: list[Ask]) -> None:
    """Numbers beyond all bounds count as the bound."""
    bounded = [replace(node, gpus=tuple(FreeGpu(*columns.cell(gpu)[:3]) for gpu in node.gpus)) for node in nodes]
    known = outlook.of_cluster([*sample, Ask(gpus=1, memory_mib=1)], bounded, bounded)
    most = replace(
        known,
        weights={model: (2**62,) * len(known.kinds) for model in known.weights},
        accepted={model: (2**62,) * len(known.kinds) for model in known.accepted},
    )
    assert (scoring.Dense(most).worth(Nodes.of(nodes)) >= 0).all()
