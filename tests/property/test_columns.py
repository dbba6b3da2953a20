"""The columns of a policy are its definition (`testing.plain_policies`), for each row, whatever is beside it."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from gpushare.model.capacity import Ask, FreeGpu, FreeHost, NodeCapacity
from gpushare.model.request import Need, Policy
from gpushare.placement import columns, outlook
from gpushare.placement import policies as scoring
from gpushare.placement.columns import Kinds, Nodes
from testing import plain_policies as plain
from tests.property.test_policies import asks, clusters, emptied, samples

policies = st.sampled_from(Policy)
needs = st.builds(Need, st.integers(0, 8), st.sampled_from([0, 0, 30]))


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
    first, lost = found.first(before, after), found.worth(before) - found.worth(after)
    for row, node in enumerate(nodes):
        expected = [plain.gpu_cost(policy, known, gpu, need) for gpu in node.gpus]
        if all(gpu.free_mib >= need.memory_mib for gpu in node.gpus):
            assert by_gpu[row, : len(node.gpus)].tolist() == expected
        if node.gpus[0].free_mib >= need.memory_mib and node.gpus[0].free_percent >= need.compute_percent:
            cost = plain.cost(policy, known, node, taken(node, 0, need, takes))
            assert (int(first[row]), *map(int, lost[row])) == cost


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
    for policy in Policy:
        worth = scoring.POLICIES[policy](most).worth(Nodes.of(nodes))
        assert (worth >= 0).all()
