"""Why a pod goes to one node and not to another one, taken apart, on nodes that are small enough to see it."""

import pytest

from gpushare.model.capacity import Ask, FreeGpu, FreeHost, NodeCapacity
from gpushare.model.request import Policy
from gpushare.model.selector import ANY_GPU, Choice
from gpushare.placement import lacks, outlook
from gpushare.placement.costs import Change, costs_of
from gpushare.placement.lacks import FewerPods, Fragments, Free, Kept, Lack, MoreUse, Nothing, Remainder
from gpushare.placement.outlook import Outlook
from gpushare.placement.policies import POLICIES
from testing.placing import after

GPU = 1024


def node(*free: int, model: str = "T4", cpu: int | None = None) -> NodeCapacity:
    gpus = tuple(sorted(FreeGpu(GPU, mib) for mib in free))
    return NodeCapacity(model, gpus, None if cpu is None else FreeHost(cpu, 10**6))


def share(mib: int, cpu: int = 0, models: Choice = ANY_GPU.models) -> Ask:
    return Ask(gpus=1, memory_mib=mib, cpu_milli=cpu, models=models)


def change(ask: Ask, before: NodeCapacity, free: int | None = None) -> Change:
    """What becomes of a node whose GPU with so much free memory, the first if none is named, gets a pod."""
    gpu = next(gpu for gpu in before.gpus if free in {None, gpu.free_mib})
    return Change(before, after(before, ask, (gpu,)))


def found(policy: Policy, ask: Ask, there: NodeCapacity, here: NodeCapacity, known: Outlook | None = None) -> Lack:
    """What the first node lacks; the policy must find the second one better."""
    known = known or outlook.of_cluster([ask], [there, here], [there, here])
    of_there, of_here = change(ask, there), change(ask, here)
    cost_there, cost_here = costs_of([of_there, of_here], POLICIES[policy](known))
    assert cost_there >= cost_here
    return lacks.lack(policy, known, of_there, of_here)


def test_nodes_that_are_full_or_empty_are_compared_by_what_stays_free() -> None:
    full, empty = node(512, 1024), node(1024, 1024)

    assert found(Policy.BINPACK, share(256), empty, full) == Free((1792, 2048), (1280, 2048))
    assert found(Policy.SPREAD, share(256), full, empty) == Free((1280, 2048), (1792, 2048))


@pytest.mark.parametrize("policy", Policy)
def test_equal_nodes_lack_nothing(policy: Policy) -> None:
    assert found(policy, share(256), node(512, 1024), node(512, 1024)) == Nothing()


def test_a_remainder_that_few_pods_ask_for_is_named() -> None:
    known = outlook.of_cluster([share(512)] * 9, [node(1024)] * 3, [node(1024)] * 3)

    assert found(Policy.DENSE, share(400), node(512), node(400), known) == Remainder(FreeGpu(GPU, 112))
    assert lacks.little_asked_for(FreeGpu(GPU, 64), known)
    assert not lacks.little_asked_for(FreeGpu(GPU, 512), known)
    assert not lacks.little_asked_for(FreeGpu(GPU, 0), known), "nothing is left of it"
    assert not lacks.little_asked_for(FreeGpu(4 * GPU, 64), known), "nothing is known of GPUs of this size"


def test_memory_that_others_can_use_is_left_to_them() -> None:
    """A quarter is all that others could use of what is free here; of the empty GPU it is three thirds."""
    known = outlook.of_cluster([share(512)] * 9, [node(1024)] * 3, [node(1024)] * 3)

    assert found(Policy.DENSE, share(300), node(1024), node(300), known) == MoreUse()


def test_a_scarce_model_is_kept_for_those_who_need_it() -> None:
    empty = [node(1024, 1024, model="V100"), node(1024, 1024, model="T4")]
    only = [share(1024, models=Choice(wanted=("T4",)))] * 8
    known = outlook.of_cluster([*only, share(1024), share(1024)], empty, empty)

    assert found(Policy.DENSE, share(1024), empty[1], empty[0], known) == Kept("T4")


def test_cpu_that_other_pods_need_beside_their_gpus_counts_as_their_room() -> None:
    """Also where the model is another one that is wanted as much."""
    rich, poor = node(1024, cpu=40_000), node(1024, cpu=8_000, model="V100")
    usual = share(1024, cpu=20_000)
    known = outlook.of_cluster([usual] * 5, [rich, node(1024, cpu=40_000, model="V100")], [rich, poor])
    lack = found(Policy.DENSE, share(1024, cpu=1_000), rich, poor, known)

    assert isinstance(lack, FewerPods)
    assert lack.ask.gpus == 1
    assert lack.there > lack.here


def test_fragments_are_counted_in_gpus() -> None:
    usual = [share(512)] * 3
    known = outlook.of_cluster(usual, [node(1024)] * 2, [node(1024)] * 2)
    lack = found(Policy.FGD, usual[0], node(768), node(512), known)

    assert isinstance(lack, Fragments)
    assert (lack.there, lack.here) == pytest.approx((0.25, 0.0), abs=0.01)


def test_only_the_gpus_that_the_pod_gets_count_as_remainders() -> None:
    of_two = change(share(256), node(512, 512, 300), free=512)

    assert of_two.remainders == (FreeGpu(GPU, 256),)
