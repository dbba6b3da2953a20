"""Where policies put pods, on clusters that are small enough to see why, and what they know of these."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import pytest

from gpushare.model.capacity import Ask, FreeGpu, FreeHost, NodeCapacity
from gpushare.model.request import ANY_GPU, Choice, Policy
from gpushare.placement import outlook
from gpushare.placement.columns import Kinds, Nodes, how_many
from gpushare.placement.outlook import EVERY, NOTHING_KNOWN, SLOTS, WHOLE, Outlook, due_after, prices, slots
from gpushare.placement.policies import POLICIES, Dense
from gpushare_cli.simulate.cluster import Learner
from testing.placing import best

MIB = 1000
T4 = Choice(wanted=("T4",))


def node(*free: int, model: str = "T4", cpu: int | None = None, memory: int = 10**6) -> NodeCapacity:
    gpus = tuple(sorted(FreeGpu(MIB, mib) for mib in free))
    return NodeCapacity(model, gpus, None if cpu is None else FreeHost(cpu, memory))


def share(mib: int, cpu: int = 0, models: Choice = ANY_GPU.models) -> Ask:
    return Ask(gpus=1, memory_mib=mib, cpu_milli=cpu, models=models)


def whole(gpus: int = 1, cpu: int = 0, models: Choice = ANY_GPU.models) -> Ask:
    return Ask(gpus=gpus, whole=True, cpu_milli=cpu, models=models)


def chosen(
    ask: Ask, nodes: Mapping[str, NodeCapacity], others: Sequence[Ask], empty: Sequence[NodeCapacity] = ()
) -> str:
    """The name of the node with the least cost."""
    dense = Dense(outlook.of_cluster(others, empty or nodes.values(), nodes.values()))
    found = {name: best(ask, room, dense) for name, room in nodes.items()}
    costs = {name: one.cost for name, one in found.items() if one is not None}
    least = [name for name, cost in costs.items() if cost == min(costs.values())]
    assert len(least) == 1, costs
    return least[0]


def test_a_share_goes_where_it_fills_a_gpu_and_not_where_the_least_is_free() -> None:
    """Beside 530 there is room for it and nothing else that is usual; of 800 it would leave what 320 cannot use up."""
    usual = [share(530)] * 5 + [share(470)] * 5 + [share(320)] * 4
    assert chosen(share(470), {"exact": node(470), "untouched": node(1000)}, usual) == "exact"
    assert chosen(share(320), {"470 fits": node(470), "330 is left": node(330)}, usual) == "330 is left"
    assert chosen(share(320), {"650 fits 320 twice": node(650), "470 fits": node(470)}, usual) == "650 fits 320 twice"


def test_a_pod_with_little_cpu_leaves_the_node_with_much_of_it() -> None:
    nodes = {"rich": node(1000, 1000, cpu=100_000), "poor": node(1000, 1000, cpu=20_000)}
    usual = [whole(cpu=2_000)] * 3 + [whole(cpu=40_000)] * 3
    assert chosen(whole(cpu=1_000), nodes, usual) == "poor"


def test_a_pod_without_gpus_goes_where_it_keeps_the_fewest_gpus_idle() -> None:
    nodes = {"needs its CPU": node(1000, cpu=10_000), "has more than its GPU needs": node(1000, cpu=30_000)}
    assert chosen(Ask(cpu_milli=8_000), nodes, [whole(cpu=10_000)] * 3) == "has more than its GPU needs"


def test_a_share_that_takes_much_cpu_leaves_no_rest_of_a_gpu_whose_host_has_none() -> None:
    """Most pods need more CPU than the poor host has, but its GPU is of use to those that need little."""
    nodes = {"poor": node(1000, cpu=8_000), "rich": node(1000, 1000, cpu=26_000)}
    heavy, light = share(500, cpu=8_000), share(500, cpu=3_000)
    usual = [whole(cpu=12_000)] * 12 + [light] * 3 + [heavy]
    assert chosen(heavy, nodes, usual) == "rich"
    assert chosen(light, nodes, usual) == "poor"


def test_pods_without_gpus_leave_a_host_that_a_wide_pod_needs_to_itself() -> None:
    """A host for nine tenths of a pod on four GPUs is no host for it, so the one that is broken already is used up."""
    nodes = {"enough": node(1000, 1000, 1000, 1000, cpu=100_000), "broken": node(1000, 1000, 1000, 1000, cpu=90_000)}
    assert chosen(Ask(cpu_milli=10_000), nodes, [whole(cpu=4_000)] * 20 + [whole(4, cpu=100_000)]) == "broken"


def test_a_pod_that_may_go_anywhere_leaves_a_scarce_model_that_others_need() -> None:
    nodes = {"scarce": node(1000, model="T4"), "usual": node(1000, model="A100")}
    usual = [whole()] * 5 + [whole(models=T4)] * 3
    assert chosen(whole(), nodes, usual) == "usual"
    full = {"scarce": nodes["scarce"], "usual": node(0, model="A100")}
    assert chosen(whole(), full, usual, list(nodes.values())) == "scarce"


def test_the_last_free_node_for_a_wide_pod_is_kept_for_it() -> None:
    empty = [node(1000, 1000, 1000, 1000)] * 4
    nodes = {"free": empty[0], "broken": node(0, 1000, 1000, 1000)}
    assert chosen(whole(), nodes, [whole()] * 20 + [whole(4)], empty) == "broken"


def test_before_any_wide_pod_was_seen_the_largest_free_node_is_kept_for_one() -> None:
    empty = [node(1000, 1000, cpu=64_000), node(1000, 1000, cpu=32_000)]
    nodes = {"largest": empty[0], "smaller": empty[1]}
    assert chosen(whole(cpu=4_000), nodes, [whole(cpu=4_000)] * 9) == "smaller"


def test_a_part_of_each_gpu_is_priced_on_each_gpu() -> None:
    percent = Ask(gpus=1, memory_percent=30, compute_percent=30)
    nodes = {"rest": NodeCapacity("T4", (FreeGpu(MIB, 400, 30),)), "untouched": node(1000)}
    assert chosen(percent, nodes, [percent, whole()]) == "rest"


def test_a_gpu_without_compute_is_no_loss() -> None:
    nodes = {
        "used up": NodeCapacity("T4", (FreeGpu(MIB, 600, 0),)),
        "half": NodeCapacity("T4", (FreeGpu(MIB, 600, 60),)),
    }
    assert chosen(share(500), nodes, [share(500)]) == "used up"
    assert not FreeGpu(MIB, MIB, 99).untouched


def test_several_gpus_are_those_whose_remainders_lose_the_least() -> None:
    """Of 1000, what is left is what most pods ask for; 700 and 300 are taken from shares of 500 and 250."""
    room = node(300, 700, 1000)
    found = best(Ask(gpus=2, memory_mib=200), room, Dense(outlook.of_cluster([share(800)] * 9, [room], [room])))
    assert found is not None
    assert sorted(gpu.free_mib for gpu in found.gpus) == [700, 1000]
    _, fit = how_many(Kinds([whole(2, cpu=2_000)]), Nodes.of([node(1000, 1000, cpu=1_000)]))
    assert fit.tolist() == [[0]], "a part of a pod is none"


@pytest.mark.parametrize(("gpus", "taken"), [(1, [300]), (2, [300, 500])])
def test_with_nothing_known_the_fullest_gpus_that_fit_are_taken(gpus: int, taken: list[int]) -> None:
    found = best(Ask(gpus=gpus, memory_mib=300), node(1000, 300, 200, 500), Dense(NOTHING_KNOWN))
    assert found is not None
    assert [gpu.free_mib for gpu in found.gpus] == taken


def test_demand_is_bounded_whatever_pods_ask_for() -> None:
    shares = [Ask(gpus=1, memory_mib=n, cpu_milli=n * n, host_mib=7 * n) for n in range(1, 3000)]
    kinds, sizes = outlook.demand_of(Counter([*shares, *map(whole, range(1, 64)), Ask(cpu_milli=4000)]), 16_384)
    assert (len(kinds), len(sizes)) == (outlook.MAX_KINDS, outlook.MAX_SIZES)


FULL = node(1000, 1000, 1000, 1000, cpu=32_000)
USUAL = [share(mib, cpu=2_000) for mib in (300, 400, 700)] * 10


@pytest.mark.parametrize(
    "never",
    [
        [Ask(gpus=64, memory_mib=2000 + 3**i) for i in range(40)],
        [Ask(gpus=5, memory_mib=1 + i) for i in range(700)],
        [share(500, cpu=32_001 * 2**i) for i in range(44)],
        [Ask(gpus=1, memory_mib=500, host_mib=1_000_001 * 4**i) for i in range(44)],
    ],
)
def test_pods_that_no_node_could_ever_hold_change_nothing(never: list[Ask]) -> None:
    """They may wait forever, cost nothing, and weigh as much as their authors like."""
    assert outlook.of_cluster([*USUAL, *never], [FULL], [FULL]) == outlook.of_cluster(USUAL, [FULL], [FULL])


def test_wide_pods_that_wait_displace_no_others() -> None:
    """Each weighs as much as dozens of others, so half of the kinds are left to these."""
    wide = [whole(gpus, cpu=10 * 2**i) for i in range(12) for gpus in (2, 3, 4)]
    known = outlook.of_cluster([*USUAL[:3], *wide * 9], [FULL], [FULL])
    assert {kind.memory_mib for kind in known.kinds if kind.gpus == 1} == {300, 400, 700}
    assert len(known.kinds) == outlook.MAX_KINDS
    every = outlook.of_cluster(wide, [FULL], [FULL])
    assert [kind.gpus > 1 for kind in every.kinds] == [True] * outlook.MAX_KINDS


@pytest.mark.parametrize("empty", [[], [replace(FULL, host=None)]])
def test_where_nodes_are_not_known_every_request_counts(empty: list[NodeCapacity]) -> None:
    asked = share(500, cpu=10**9)
    assert any(kind.cpu_milli for kind in outlook.of_cluster([asked], empty, empty).kinds)


def test_an_outlook_knows_the_usual_gpu_and_how_many_pods_each_model_may_get() -> None:
    room = NodeCapacity("T4", tuple(FreeGpu(mib, mib) for mib in (500, 500, 2000)))
    known = outlook.of_cluster([share(500)] * 3, [room], [room])
    assert (known.usual_mib, known.accepted) == (1000, {"T4": (1, 3)}), "one that takes all GPUs"


def test_nearly_equal_requests_are_one_kind_with_the_share_that_most_have() -> None:
    counts = Counter([share(470, cpu=8_000), share(470, cpu=7_000), share(480, cpu=6_000)])
    (kind,), sizes = outlook.demand_of(counts, 16_384)
    assert (kind.ask.memory_mib, kind.ask.cpu_milli, sum(kind.wanted.values())) == (470, 7_000, 3)
    assert [size.memory_mib for size in sizes] == [470, 480]
    _, sizes = outlook.demand_of({Ask(gpus=2, memory_mib=470): 2, share(300): 3}, 16_384)
    assert [size.memory_mib for size in sizes] == [470, 300], "once for each GPU"


# What the free part of a GPU is worth.

NINE_TENTHS, TWO_THIRDS, HALF_GPU, THIRD = SLOTS * 9 // 10, SLOTS * 2 // 3, SLOTS // 2, SLOTS // 3


def test_shares_that_fill_a_gpu_together_cost_a_gpu_together_and_what_none_fills_is_worth_nothing() -> None:
    assert prices((HALF_GPU,))[HALF_GPU] == WHOLE // 2
    value = prices((TWO_THIRDS, THIRD))
    assert value[TWO_THIRDS] + value[THIRD] == WHOLE
    value = prices((NINE_TENTHS, HALF_GPU))
    assert value[SLOTS - NINE_TENTHS - 1] < WHOLE // 8
    assert value[NINE_TENTHS] == WHOLE


def test_a_share_that_is_frequent_is_priced_before_one_that_is_rare() -> None:
    """Of what fits together on a GPU the one can have the other's part."""
    tall, flat = SLOTS * 6 // 10, SLOTS * 4 // 10
    assert prices((tall, flat))[flat] < prices((flat, tall))[flat]


def test_with_no_demand_at_all_every_part_is_worth_what_it_is() -> None:
    value = prices(())
    assert [value[part] for part in (0, 7, HALF_GPU, SLOTS)] == [0, WHOLE // SLOTS * 7, WHOLE // 2, WHOLE]
    assert prices((0, SLOTS)) == prices((1, HALF_GPU)) == value


def test_what_fits_together_on_a_gpu_does_in_slots() -> None:
    total = 81_559
    assert 3 * slots(total // 3, total) <= SLOTS
    assert slots(total, total) == SLOTS
    assert slots(5, 0) == 0


def test_only_the_most_frequent_requests_are_typical() -> None:
    assert outlook.typical(Counter([share(500)] * 96 + [whole()] * 4)) == {share(500): 96}


def test_to_fgd_a_gpu_is_of_no_use_to_pods_for_more_than_any_node_has_or_for_another_model() -> None:
    typical = Ask(cpu_milli=1), whole(65), whole(models=Choice(wanted=("A100",)))
    found = [best(whole(), node(1000), POLICIES[Policy.FGD](Outlook(typical={ask: 1}))) for ask in typical]
    assert found == found[:1] * 3


# Policies compare parts of GPUs, so the size of GPUs changes no order.

ORDER = {
    Policy.BINPACK: ["little", "two thirds", "half", "whole"],
    Policy.SPREAD: ["half", "whole", "two thirds", "little"],
    Policy.DENSE: ["little", "half", "two thirds", "whole"],
    Policy.FGD: ["little", "whole", "half", "two thirds"],
}


@pytest.mark.parametrize("policy", Policy)
@pytest.mark.parametrize("size", [1000, 16_000, 81_000])
def test_the_size_of_gpus_changes_no_order(policy: Policy, size: int) -> None:
    def sized(*percent: int) -> NodeCapacity:
        return NodeCapacity("T4", tuple(sorted(FreeGpu(size, size * part // 100) for part in percent)))

    def part(percent: int) -> Ask:
        return Ask(gpus=1, memory_mib=size * percent // 100)

    empty = [sized(100, 100)] * 4
    nodes = {"half": sized(50, 50), "two thirds": sized(66, 0), "whole": sized(100, 0), "little": sized(45, 20)}
    known = outlook.of_cluster([part(50)] * 6 + [part(30)] * 3 + [part(20)], empty, nodes.values())
    compared = POLICIES[policy](known)
    costs = {}
    for name, room in nodes.items():
        found = best(part(30), room, compared)
        assert found is not None
        costs[name] = found.cost

    assert sorted(costs, key=lambda name: (costs[name], name)) == ORDER[policy]


# When a cluster is looked at again: the controller and `gpushare simulate` have one rule.

A_SHARE = share(1024)


@pytest.mark.parametrize(("known", "pods"), [(0, 1), (1, 1), (7, 1), (8, 2), (400, 100), (512, EVERY), (9000, EVERY)])
def test_the_next_look_is_due_after_a_quarter_of_the_known_pods(known: int, pods: int) -> None:
    assert due_after(known) == pods


def looks(known: int, chance: Callable[[int], int] | None, number: int = 24) -> list[int]:
    """After which pods a simulation looks at its cluster."""
    learner = Learner([A_SHARE] * known, draw=chance)
    return [pod for pod in range(1, number + 1) if learner.came(A_SHARE)]


def test_a_simulation_looks_when_it_is_due() -> None:
    assert looks(0, None) == [1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 15, 18, 22]
    assert looks(20, None) == [5, 11, 18]


def test_by_chance_it_looks_after_any_pod_or_nearly_twice_as_many_as_are_due() -> None:
    assert looks(20, lambda _: 0) == list(range(1, 25))
    assert looks(20, lambda number: number - 1) == [9, 22]
