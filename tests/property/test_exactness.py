"""Every answer to kube-scheduler is that of `place` and of the policy's definition, whatever has changed before."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from hypothesis import example, given
from hypothesis import strategies as st

from controller.cluster_table import NodeNames, PodKind
from controller.state import Reserved
from controller.watches import NodeSink, PodSink
from gpushare.cluster.node_records import NodeRecord
from gpushare.cluster.pod_records import NonGpuPod
from gpushare.identity import ContainerName, NodeName, PodUid
from gpushare.model.allocation import Placed, Refused
from gpushare.model.capacity import FreeHost
from gpushare.model.gpu import GpuHealth
from gpushare.model.ledger import NodeLedger
from gpushare.model.request import ContainerRequest, PodRequest, Policy, RequestShape
from gpushare.placement.place import place
from gpushare.units import ResourceConfig
from testing import plain_policies as plain
from testing.builders import make_inventory, make_ref
from testing.controller.world import World
from tests.property.strategies import ledgers, shapes

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


Nodes = list[NodeRecord]
clusters: st.SearchStrategy[Nodes] = st.integers(1, 4).flatmap(
    lambda number: st.tuples(*(records(f"node-{i}") for i in range(number))).map(list)
)
Step = tuple[str, int]
steps = st.lists(
    st.tuples(st.sampled_from(["bind", "bind", "undo", "end", "other pod", "gone", "comes", "cordon", "outlook"]),
              st.integers(0, 20)),
    max_size=6,
)  # fmt: skip


@dataclass
class Cluster:
    """One controller, and what happens to it."""

    nodes: Nodes
    policy: Policy
    world: World = field(default_factory=World)
    pods: int = 0

    def __post_init__(self) -> None:
        self.world.start_controller(WHOLE, self.policy)
        NodeSink(self.world.state.index).replace(self.nodes)

    def happen(self, step: Step, asks: Sequence[RequestShape]) -> None:
        """Something changes between two questions."""
        what, number = step
        record, state = self.nodes[number % len(self.nodes)], self.world.state
        self.pods += 1
        match what:
            case "bind" | "undo" | "end":
                request = PodRequest(pod=make_ref(f"p{self.pods}"), shape=asks[number % len(asks)], cpu_milli=300)
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
        """What is said of all nodes, and of one that is not there."""
        world, names = self.world, [*(record.name for record in self.nodes), NodeName("unknown")]
        state = world.state
        known, hosts, nodes = state.index.snapshot().ledgers, world.capacities(), NodeNames(names)
        resolved = state.resolve(shape, {})
        verdicts = {
            name: ledger if isinstance(ledger, Refused) else place(resolved, ledger, state.policies)
            for name, ledger in known.items()
        }
        found = world.table.filter(resolved, nodes)
        refused = {name: each for name, each in verdicts.items() if isinstance(each, Refused)}
        assert found.fits == [name for name in names if isinstance(verdicts.get(name), Placed)]
        assert {**found.failed, **found.unresolvable}.items() >= {
            n: each.message for n, each in refused.items()
        }.items()
        assert set(found.unresolvable) == {name for name, each in refused.items() if each.permanent}

        costs: list[plain.Cost | None] = []
        for name in names:
            verdict, ledger, cost = verdicts.get(name), known.get(name), None
            if isinstance(verdict, Placed) and isinstance(ledger, NodeLedger):
                before, after = plain.change(verdict.grants, ledger, hosts[name].host, TAKES)
                cost = plain.cost(shape.policy or self.policy, state.policies.outlook, before, after)
            costs.append(cost)
        assert world.table.grades(PodKind(resolved, TAKES), nodes).tolist() == plain.grades(names, costs)


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
@given(clusters, st.lists(shapes(max_containers=2), min_size=1, max_size=3), st.sampled_from(Policy), steps)
def test_every_answer_is_that_of_place_and_of_the_policy(
    nodes: Nodes, asks: list[RequestShape], policy: Policy, changes: list[Step]
) -> None:
    cluster = Cluster(nodes, policy)
    for step in [*changes, None]:
        for shape in asks:
            cluster.check(shape)
        if step is not None:
            cluster.happen(step, asks)
