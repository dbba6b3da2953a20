"""Laws of `dense`, against placement and against plain counting."""

import itertools
import random
from collections.abc import Sequence
from dataclasses import replace

from hypothesis import example, given
from hypothesis import strategies as st

from gpushare.model.capacity import Ask, FreeGpu, FreeHost, NodeCapacity
from gpushare.model.ledger import NodeLedger
from gpushare.model.request import Policy
from gpushare.model.selector import Choice, MigChoice
from gpushare.placement import outlook
from gpushare.placement.columns import PART, Kinds, Nodes, how_many
from gpushare.placement.demand import MAX_KINDS
from gpushare.placement.outlook import SLOTS, WHOLE, prices
from gpushare.placement.policies import Dense, Policies
from testing.placing import after, best
from tests.property.strategies import ledgers

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
samples = st.lists(asks, max_size=12)
clusters = st.lists(rooms(), min_size=1, max_size=5)


def emptied(room: NodeCapacity) -> NodeCapacity:
    return replace(room, gpus=tuple(sorted(FreeGpu(gpu.total_mib, gpu.total_mib) for gpu in room.gpus)))


def learned(sample: Sequence[Ask], nodes: Sequence[NodeCapacity]) -> Dense:
    return Dense(outlook.of_cluster(sample, map(emptied, nodes), nodes))


@given(asks, samples, clusters)
def test_what_is_chosen_has_room_for_it(ask: Ask, sample: list[Ask], nodes: list[NodeCapacity]) -> None:
    dense = learned(sample, nodes)
    for room in nodes:
        if (found := best(ask, room, dense)) is not None:
            left = after(room, ask, found.gpus)
            assert len(found.gpus) == ask.gpus
            assert all(gpu.free_mib >= 0 and gpu.free_percent >= 0 for gpu in left.gpus)
            assert left.host is None or min(left.host) >= 0
            assert len(left.gpus) == len(room.gpus)


@given(ledgers(), st.randoms(use_true_random=False))
def test_the_order_of_gpus_changes_no_room(ledger: NodeLedger, rng: random.Random) -> None:
    gpus = ledger.inventory.gpus
    gpus = tuple(replace(gpu, model="T4") for gpu in gpus)
    same = NodeLedger.of(replace(ledger.inventory, gpus=gpus), ledger.allocations.values())
    mixed = NodeLedger.of(
        replace(ledger.inventory, gpus=tuple(rng.sample(gpus, len(gpus)))), ledger.allocations.values()
    )
    assert NodeCapacity.of(mixed) == NodeCapacity.of(same)


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
