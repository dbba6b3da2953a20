"""The published policy, by hand on a few GPUs of 1000 parts."""

from collections import Counter
from dataclasses import replace

import pytest

from gpushare.model.capacity import Ask, FreeGpu, FreeHost, NodeCapacity
from gpushare.model.request import Need
from gpushare.model.selector import Choice
from gpushare.placement import demand
from gpushare.placement.columns import Nodes
from gpushare.placement.policies import Fgd
from testing.placing import best

HALF = Ask(gpus=1, memory_mib=500, cpu_milli=1000)
WHOLE = Ask(gpus=1, whole=True, cpu_milli=1000)


def learned(*sample: Ask) -> Fgd:
    return Fgd(demand.typical(Counter(sample)))


def node(*free: int, cpu: int = 10_000) -> NodeCapacity:
    return NodeCapacity("T4", tuple(sorted(FreeGpu(1000, mib) for mib in free)), FreeHost(cpu, 10**6))


def score(fgd: Fgd, ask: Ask, room: NodeCapacity) -> int:
    found = best(ask, room, fgd)
    assert found is not None
    return -found.cost[0]


def usable(fgd: Fgd, room: NodeCapacity) -> int:
    """What is free and of use, summed over the sample: what is lost of it when all is taken."""
    nothing = NodeCapacity(room.model, tuple(FreeGpu(gpu.total_mib, 0) for gpu in room.gpus), room.host)
    free = sum(gpu.free_mib for gpu in room.gpus) * fgd.number
    return free + int(fgd.grown(Nodes.of([room]), Nodes.of([nothing]))[0])


def test_what_is_free_counts_for_each_typical_pod_that_it_is_of_use_to() -> None:
    fgd = learned(HALF, WHOLE)
    assert usable(fgd, node(1000)) == 1000 + 1000
    assert usable(fgd, node(500)) == 500
    assert usable(fgd, node(400)) == 0
    assert usable(fgd, node(1000, cpu=999)) == 0
    assert usable(learned(replace(WHOLE, gpus=65)), node(*[1000] * 64)) == 0


def test_a_half_goes_to_a_half() -> None:
    """There the fragment of 500 for whole GPUs ends: 250 of a mean; on an untouched GPU as much begins."""
    fgd = learned(HALF, WHOLE)
    assert (score(fgd, HALF, node(500)), score(fgd, HALF, node(1000))) == (56, 43)


def test_only_the_most_frequent_requests_count() -> None:
    fgd = learned(*[HALF] * 96, *[WHOLE] * 4)
    assert usable(fgd, node(1000)) == 96 * 1000


def test_a_model_that_a_pod_does_not_accept_is_of_no_use_to_it() -> None:
    assert usable(learned(Ask(gpus=1, whole=True, models=Choice(wanted=("A100",)))), node(1000)) == 0


@pytest.mark.parametrize(("free", "taken"), [((500, 1000), 500), ((900, 1000), 1000)])
def test_on_a_node_it_takes_the_gpu_where_the_least_becomes_of_no_use(free: tuple[int, ...], taken: int) -> None:
    found = best(HALF, node(*free), learned(*[HALF] * 9, WHOLE))
    assert found is not None
    assert [gpu.free_mib for gpu in found.gpus] == [taken]


def test_gpus_that_are_taken_whole_are_worth_the_same() -> None:
    assert learned(WHOLE, WHOLE).of_gpus([(FreeGpu(1000, 1000), Need(1000, 100))]) == [0]
