"""Laws that hold for every policy, with and without knowledge of the cluster, and those of what is known."""

import itertools
import random
from collections.abc import Sequence
from dataclasses import replace

from hypothesis import example, given, strategies as st

from gpushare.model.capacity import Ask, FreeGpu, FreeHost, NodeCapacity
from gpushare.model.ledger import NodeLedger, Refused, Verdict
from gpushare.model.request import Choice, MigChoice, Policy, RequestShape
from gpushare.placement import outlook
from gpushare.placement.columns import PART, Kinds, Nodes, how_many
from gpushare.placement.costs import Cost, change_of, costs_of
from gpushare.placement.outlook import MAX_KINDS, SLOTS, WHOLE, prices
from gpushare.placement.place import place
from gpushare.placement.policies import Dense, Policies
from gpushare_cli.simulate.cluster import Learner
from testing.placing import after, best
from tests.property.strategies import ledgers, shapes

TOTALS = st.sampled_from([8, 24, 80])
MODELS = ("T4", "A100")


@st.composite
def gpu_rooms(draw: st.DrawFn) -> FreeGpu:
    total = draw(TOTALS)
    return FreeGpu(total, draw(st.integers(0, total)), draw(st.sampled_from([100, 100, 100, 40, 0])))


@st.composite
def rooms(draw: st.DrawFn) -> NodeCapacity:
    gpus = tuple(sorted(draw(st.lists(gpu_rooms(), min_size=1, max_size=4))))
    host = draw(st.none() | st.builds(FreeHost, st.integers(0, 64_000), st.integers(0, 256)))
    return NodeCapacity(draw(st.sampled_from(MODELS)), gpus, host)


asks = st.builds(
    Ask,
    gpus=st.just(1),
    memory_mib=st.integers(1, 30),
    compute_percent=st.sampled_from([0, 0, 30]),
    cpu_milli=st.integers(0, 20_000),
    host_mib=st.integers(0, 64),
    models=st.sampled_from([Choice(), Choice(), Choice(wanted=("T4",))]),
) | st.builds(Ask, gpus=st.integers(1, 3), whole=st.just(True), cpu_milli=st.integers(0, 20_000))
any_asks = asks | st.builds(Ask, cpu_milli=st.integers(0, 20_000), host_mib=st.integers(0, 64))
samples = st.lists(asks, max_size=12)
clusters = st.lists(rooms(), min_size=1, max_size=5)
policies = st.sampled_from(Policy)


def emptied(room: NodeCapacity) -> NodeCapacity:
    return replace(room, gpus=tuple(sorted(FreeGpu(gpu.total_mib, gpu.total_mib) for gpu in room.gpus)))


def learned(default: Policy, sample: Sequence[Ask], nodes: Sequence[NodeCapacity]) -> Policies:
    return Policies(default, outlook.of_cluster(sample, map(emptied, nodes), nodes))


def of_ledger(policy: Policy, sample: Sequence[Ask], ledger: NodeLedger) -> Policies:
    return learned(policy, sample, [NodeCapacity.of(ledger)])


def cost(verdict: Verdict, ledger: NodeLedger, policies: Policies, policy: Policy) -> Cost | None:
    if isinstance(verdict, Refused):
        return None
    change = change_of(verdict.grants, ledger, host=FreeHost(9000, 900), takes=FreeHost(10, 1))
    return costs_of([change], policies.of(policy))[0]


@given(shapes(), ledgers(), samples, policies, st.randoms(use_true_random=False))
def test_the_order_of_gpus_changes_no_cost(
    shape: RequestShape, ledger: NodeLedger, sample: list[Ask], policy: Policy, rng: random.Random
) -> None:
    shape = replace(shape, policy=policy)
    model = ledger.inventory.gpus[0].model  # of a node with several, that of the first GPU counts
    gpus = [replace(gpu, model=model) for gpu in ledger.inventory.gpus]
    mixed = [replace(gpu, index=i) for i, gpu in enumerate(rng.sample(gpus, len(gpus)))]
    found = []
    for order in (gpus, mixed):
        here = NodeLedger.of(replace(ledger.inventory, gpus=tuple(order)), ledger.allocations.values())
        policies = of_ledger(policy, sample, here)
        found.append(cost(place(shape, here, policies), here, policies, policy))
    assert found[0] == found[1]


@given(any_asks, samples, clusters, policies, st.randoms(use_true_random=False))
def test_the_order_of_pods_and_nodes_changes_no_cost(
    ask: Ask, sample: list[Ask], nodes: list[NodeCapacity], policy: Policy, rng: random.Random
) -> None:
    policies = learned(policy, sample, nodes)
    mixed = learned(policy, rng.sample(sample, len(sample)), rng.sample(nodes, len(nodes)))
    assert [best(ask, room, policies.of(policy)) for room in nodes] == [
        best(ask, room, mixed.of(policy)) for room in nodes
    ]


@given(st.lists(samples, min_size=1, max_size=4), clusters, any_asks, policies)
def test_a_restart_changes_nothing(looks: list[list[Ask]], nodes: list[NodeCapacity], ask: Ask, policy: Policy) -> None:
    """The new one has seen what is there at last, and nothing of what came and left before."""
    empty, now = Nodes.of([emptied(room) for room in nodes]), Nodes.of(nodes)
    old = Learner()
    for i, sample in enumerate(looks):
        for came in sample:
            old.came(came)
        old.look(empty, empty if i < len(looks) - 1 else now)
        for left in sample if i < len(looks) - 1 else ():
            old.left(left)
    before = Policies(policy, old.outlook)
    after = learned(policy, looks[-1], nodes)
    assert replace(before.outlook, epoch=0) == replace(after.outlook, epoch=0)
    for room in nodes:
        assert best(ask, room, before.of(policy)) == best(ask, room, after.of(policy))


@given(asks, rooms())
def test_room_is_as_many_pods_as_fit_one_after_another(kind: Ask, room: NodeCapacity) -> None:
    kind = replace(kind, models=Choice())
    _, counted = how_many(Kinds([kind]), Nodes.of([room]))
    fitting, left = 0, room
    while (found := best(kind, left, Dense(outlook.NOTHING_KNOWN))) is not None:
        left = after(left, kind, found.gpus)
        fitting += 1
    assert counted[0, 0] // PART == fitting


extremes = st.sampled_from([0, 1, 99, 10**6, 10**12, 2**53, 2**63])
odd_asks = st.builds(
    Ask,
    gpus=st.integers(0, 64),
    memory_mib=extremes,
    memory_percent=st.sampled_from([0, 1, 100, 10**9]),
    compute_percent=extremes,
    whole=st.booleans(),
    cpu_milli=extremes,
    host_mib=extremes,
    models=st.builds(
        Choice, wanted=st.sampled_from([(), ("",), ("T4", "A100")]), unwanted=st.sampled_from([(), ("/",)])
    ),
    mig=st.sampled_from([None, *MigChoice]),
)
odd_gpus = st.builds(FreeGpu, extremes, extremes, st.sampled_from([-5, 0, 100, 2**63]), st.booleans())
odd_rooms = st.builds(
    NodeCapacity,
    st.sampled_from(["", "T4", "/"]),
    st.lists(odd_gpus, max_size=3).map(lambda gpus: tuple(sorted(gpus))),
    st.none() | st.builds(FreeHost, extremes, extremes),
)


@example(Ask(), [Ask(gpus=1)], [NodeCapacity("T4", (FreeGpu(8, 8),))], Policy.DENSE)
@given(odd_asks, st.lists(odd_asks, max_size=6), st.lists(odd_rooms, max_size=3), st.sampled_from(Policy))
def test_no_amount_ends_what_is_learned(ask: Ask, sample: list[Ask], nodes: list[NodeCapacity], policy: Policy) -> None:
    known = outlook.of_cluster(sample, nodes, nodes)
    assert len(known.kinds) <= MAX_KINDS
    for room in nodes:
        best(ask, room, Policies(policy, known).of(policy))


@given(st.lists(st.integers(-3, SLOTS + 3), max_size=8))
def test_remainders_bring_at_most_what_the_gpu_is_worth(sizes: list[int]) -> None:
    value = prices(tuple(sizes))
    assert (len(value), value[0], value[SLOTS]) == (SLOTS + 1, 0, WHOLE)
    assert all(low <= high for low, high in itertools.pairwise(value))
    assert all(value[part] + value[SLOTS - part] <= WHOLE for part in range(0, SLOTS + 1))
