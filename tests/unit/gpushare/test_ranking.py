"""Costs by hand, and where the cheapest place leads, pod after pod."""

import random
from collections.abc import Sequence

import numpy as np
import pytest

from gpushare.identity import NodeName
from gpushare.model.capacity import Ask, FreeGpu, FreeHost, NodeCapacity
from gpushare.model.ledger import Placed
from gpushare.model.request import Choice, MigChoice, Need, Policy, accepts
from gpushare.placement import columns, costs, outlook, policies
from gpushare.placement.columns import Ints, Kinds, Nodes, how_many, quotient
from gpushare.placement.costs import change_of, costs_of
from gpushare.placement.place import place
from gpushare.placement.policies import Binpack, Dense, Policies
from gpushare.placement.table import Fits, Table
from testing.builders import make_ledger, make_shape
from testing.placing import after, best

SLICE = FreeGpu(10, 10, mig=True)
CARD = FreeGpu(10, 10)


@pytest.mark.parametrize(
    ("ask", "fits"),
    [
        (Ask(gpus=1, memory_mib=4), [SLICE, CARD]),
        (Ask(gpus=2, memory_mib=4), [CARD]),
        (Ask(gpus=1, whole=True), [CARD]),
        (Ask(gpus=1, whole=True, mig=MigChoice.ONLY), [SLICE]),
        (Ask(gpus=1, memory_mib=4, mig=MigChoice.ONLY), [SLICE]),
        (Ask(gpus=1, memory_mib=4, mig=MigChoice.NEVER), [CARD]),
    ],
)
def test_a_mig_instance_is_no_whole_gpu_and_no_part_of_several(ask: Ask, fits: list[FreeGpu]) -> None:
    assert [room for room in (SLICE, CARD) if ask.fits(room)] == fits


@pytest.mark.parametrize("by", [1, 3, 7, 10, 2**10 - 1, 2**20, 2**26 + 1, 2**40])
def test_quotients_are_exact_beside_every_whole_one(by: int) -> None:
    """As for whole numbers of any size: one less than a multiple is not rounded up to it."""
    times = [2**53 // by >> step for step in range(54)]
    amounts = [amount for n in times for amount in (n * by - 1, n * by, n * by + 1) if 0 <= amount <= 2**53]
    assert quotient(np.array(amounts), np.array(by)).tolist() == [amount // by for amount in amounts]
    assert policies._MOST_ACCEPTED * policies.SERVED * columns.PART * columns._MOST_PODS <= 2**53


def test_a_node_without_gpus_is_the_best_for_a_pod_that_needs_none() -> None:
    none, full, idle = NodeCapacity("", ()), NodeCapacity("T4", (FreeGpu(10, 0),)), NodeCapacity("T4", (CARD,))
    for policy in (Policy.BINPACK, Policy.SPREAD):
        costs = [found.cost for room in (none, full, idle) if (found := best(Ask(), room, Policies(policy).of(None)))]
        assert min(costs) == costs[0]
        assert costs[2] != costs[1]


def test_the_host_counts_for_policies_that_look_at_it_and_has_at_least_what_the_pod_takes() -> None:
    class Host(Binpack):
        def costs(self, before: Nodes, after: Nodes) -> Ints:
            return np.pad((before.cpu - 10 * after.memory)[:, None], ((0, 0), (0, 2)))

    ledger = make_ledger([10])
    verdict = place(make_shape(3), ledger)
    assert isinstance(verdict, Placed)
    for host, expected in ((FreeHost(500, 50), 500 - 470), (FreeHost(20, 50), 30 - 0)):
        change = change_of(verdict.grants, ledger, host=host, takes=FreeHost(30, 3))
        assert costs_of([change], Host()) == [(expected, 0, 0)]


A, B, C, D = (NodeName(name) for name in "abcd")


@pytest.mark.parametrize(
    ("names", "found", "reserved", "expected"),
    [
        ([], [], [], []),
        ([B, D], [None, None], [], [0, 0]),
        # One alone is the best by a distance that other plugins do not make up for.
        ([A], [3], [], [10]),
        ([A, B, C], [7, None, None], [], [10, 0, 0]),
        ([A, B, C, D], [2**60, -1, -2, 2**61], [], [4, 6, 10, 1]),
        # Kube-scheduler would choose among equal ones by chance: the first by name is the best.
        ([D, C, A, B], [3, 3, 9, 3], [], [8, 8, 1, 10]),
        ([A, B, C, D], [9, 3, 3, 3], [], [1, 10, 8, 8]),
        # Memory is reserved for this pod there.
        ([A, B], [7, None], [1], [8, 10]),
    ],
)
def test_one_node_is_the_best_by_a_distance_and_the_others_follow_by_rank(
    names: list[NodeName], found: list[int | None], reserved: list[int], expected: list[int]
) -> None:
    fits = np.array([cost is not None for cost in found], np.bool_)
    columns = np.array([(cost or 0, 0, 0) for cost in found], np.int64).reshape(-1, 3)
    assert costs.grades(columns, fits, names, reserved).tolist() == expected


def test_costs_of_gpus_are_the_same_when_they_were_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    found = Binpack()
    asked = [(FreeGpu(total_mib=100 * number, free_mib=50 * number), Need(10, 0)) for number in (1, 2, 3)]
    before = found.of_gpus(asked)
    monkeypatch.setattr(policies, "_MOST_KNOWN", 2)
    assert found.of_gpus([*asked, (FreeGpu(total_mib=9, free_mib=9), Need(1, 0))])[:3] == before
    assert len(found._known) == 4


def test_room_in_pods_of_instances_is_that_of_one_instance_for_each() -> None:
    """A pod for two GPUs has no instances, whatever it says of them."""
    node = NodeCapacity("A100", (FreeGpu(total_mib=10, free_mib=10, mig=True),) * 2, FreeHost(1000, 1000))
    asks = [Ask(gpus=count, memory_mib=5, mig=MigChoice.ONLY) for count in (1, 2)]
    by_gpus, _ = how_many(Kinds(asks), Nodes.of([node]))
    assert (by_gpus[0][0] > 0, by_gpus[0][1]) == (True, 0)


@pytest.mark.parametrize("looks", [3, 100])
def test_nodes_whose_gpus_are_alike_have_room_as_each_alone(looks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if many had the same key by chance."""
    kinds = Kinds([Ask(gpus=1, memory_mib=5, cpu_milli=500), Ask(gpus=2, whole=True), Ask(gpus=1, compute_percent=30)])
    nodes = [
        NodeCapacity("T4", (FreeGpu(100, 100 - row % looks), FreeGpu(100, 100)), FreeHost(100 * row, 1000))
        for row in range(100)
    ]
    alone = np.concatenate([how_many(kinds, Nodes.of([node])) for node in nodes], axis=1)
    for mix in columns._MIX, np.uint64(0):
        monkeypatch.setattr(columns, "_MIX", mix)
        assert np.array_equal(how_many(kinds, Nodes.of(nodes)), alone)


def test_many_nodes_without_a_gpu_that_takes_pods_have_no_room() -> None:
    nodes = Nodes.of([NodeCapacity("T4", ())] * 100)
    for asks in [], [Ask(gpus=1, memory_mib=5)]:
        assert how_many(Kinds(asks), nodes)[1].tolist() == [[0] * len(asks)] * 100


def test_costs_of_nodes_that_look_alike_are_those_of_each_also_when_they_were_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(costs, "_MOST_ALIKE", 2)
    table, shape, policy = Table(), make_shape(1), Binpack()
    kept = costs.Costs(FreeHost(0, 0), policy), Fits(shape)
    for step in (0, 1, 2, 0, 1, 2, 1, 0):
        table.set(A, make_ledger([8, 8], {0: step}), None, None)
        fresh = costs.Costs(FreeHost(0, 0), policy), Fits(shape)
        for found, fits in (kept, fresh):
            fits.update(table)
            found.update(table, fits)
        row = table.rows[A]
        assert kept[0].costs[row].tolist() == fresh[0].costs[row].tolist()


GIB = 1024
MIB = {"T4": 15360, "A10": 23028, "A100": 40960, "H100": 81559}


def node(model: str, gpus: int = 2, cpu: int = 64_000) -> NodeCapacity:
    return NodeCapacity(model, (FreeGpu(MIB[model], MIB[model]),) * gpus, FreeHost(cpu, 256 * GIB))


def share(gib: int, *models: str) -> Ask:
    return Ask(gpus=1, memory_mib=gib * GIB, cpu_milli=2000, host_mib=4 * GIB, models=Choice(wanted=models))


def whole(*models: str, gpus: int = 1) -> Ask:
    return Ask(gpus=gpus, whole=True, cpu_milli=4000, host_mib=8 * GIB, models=Choice(wanted=models))


def filled(
    empty: Sequence[NodeCapacity], pods: Sequence[Ask], *, dense: bool = True
) -> tuple[list[NodeCapacity], list[int]]:
    """The nodes, and where each pod went; -1 if nowhere. What comes later is not known."""
    nodes, went = list(empty), list[int]()
    for position, pod in enumerate(pods):
        ranking = Dense(outlook.of_cluster(pods[: position + 1], empty, nodes)) if dense else Binpack()
        found = {
            i: one
            for i, room in enumerate(nodes)
            if accepts(pod.models, room.model) and (one := best(pod, room, ranking)) is not None
        }
        chosen = min(found, key=lambda i: (found[i].cost, i), default=-1)
        went.append(chosen)
        if chosen >= 0:
            nodes[chosen] = after(nodes[chosen], pod, found[chosen].gpus)
    return nodes, went


def untouched(nodes: Sequence[NodeCapacity]) -> int:
    return sum(gpu.untouched for room in nodes for gpu in room.gpus)


def test_two_pods_share_a_gpu_before_a_third_gpu_is_opened() -> None:
    nodes, went = filled([node("A10")] * 3, [share(8)] * 4)
    assert untouched(nodes) == 4
    assert len(set(went)) == 1, "the other nodes stay free for wide pods"


def test_a_small_pod_fills_the_remainder_that_nothing_else_fills() -> None:
    """10 and 10 GiB leave 2.5 GiB; beside a pod of 8 GiB there is room for another that needs it."""
    nodes, went = filled([node("A10", 1)] * 3, [share(10), share(10), share(8), share(2)])
    assert went[3] == went[0] == went[1]
    assert untouched(nodes) == 1


def test_a_pod_that_needs_a_model_still_finds_it() -> None:
    empty = [node("A100"), node("T4"), node("T4")]
    _, went = filled(empty, [whole(), share(8), whole(), share(4), share(4), whole("A100")])
    assert went[5] == 0


def test_a_pod_that_takes_a_gpu_whole_takes_a_small_one() -> None:
    assert filled([node("H100", 1), node("T4", 1)], [whole(), whole()])[1] == [1, 0]


def test_shares_of_half_a_small_gpu_leave_it_to_pods_that_take_it_whole() -> None:
    """A whole GPU is one pod on either; of 8 GiB the large one has room for nine, the small one for one."""
    nodes = {"H100": node("H100", 1), "T4": node("T4", 1)}
    ranking = Dense(outlook.of_cluster([share(8), whole()] * 5, nodes.values(), nodes.values()))

    def cheapest(pod: Ask) -> str:
        found = {name: one.cost for name, room in nodes.items() if (one := best(pod, room, ranking)) is not None}
        return min(found, key=found.__getitem__)

    assert [cheapest(share(8)), cheapest(whole())] == ["H100", "T4"]


def test_in_small_clusters_as_many_pods_fit_and_gpus_stay_free_as_with_binpack() -> None:
    """Three nodes of two GPUs and up to 20 pods: over many mixes, not in each of them."""
    usual = [share(2), share(3), share(4), share(8), share(10), whole()]
    free = placed = free_of_binpack = placed_of_binpack = 0
    for models in (("A10",) * 3, ("T4", "A10", "A100"), ("T4", "T4", "H100")):
        empty = [node(model) for model in models]
        for seed in range(10):
            rng = random.Random(f"{seed} {models}")
            pods = rng.choices(usual, k=rng.randint(3, 20))
            nodes, went = filled(empty, pods)
            others, of_binpack = filled(empty, pods, dense=False)
            free, free_of_binpack = free + untouched(nodes), free_of_binpack + untouched(others)
            placed += sum(place >= 0 for place in went)
            placed_of_binpack += sum(place >= 0 for place in of_binpack)
    assert placed >= placed_of_binpack
    assert free >= free_of_binpack
