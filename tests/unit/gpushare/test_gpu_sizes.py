"""Policies compare parts of GPUs: the same cluster with larger GPUs, and requests as much larger, is the same."""

import pytest

from gpushare.model.capacity import Ask, FreeGpu, NodeCapacity
from gpushare.model.request import Policy
from gpushare.placement import outlook
from gpushare.placement.policies import POLICIES
from testing.placing import best

ORDER = {
    Policy.BINPACK: ["little", "two thirds", "half", "whole"],
    Policy.SPREAD: ["half", "whole", "two thirds", "little"],
    Policy.DENSE: ["little", "half", "two thirds", "whole"],
    Policy.FGD: ["little", "whole", "half", "two thirds"],
}


@pytest.mark.parametrize("policy", Policy)
@pytest.mark.parametrize("size", [1000, 16_000, 81_000])
def test_the_size_of_gpus_changes_no_order(policy: Policy, size: int) -> None:
    def node(*percent: int) -> NodeCapacity:
        return NodeCapacity("T4", tuple(sorted(FreeGpu(size, size * part // 100) for part in percent)))

    def share(percent: int) -> Ask:
        return Ask(gpus=1, memory_mib=size * percent // 100)

    empty = [node(100, 100)] * 4
    nodes = {"half": node(50, 50), "two thirds": node(66, 0), "whole": node(100, 0), "little": node(45, 20)}
    known = outlook.of_cluster([share(50)] * 6 + [share(30)] * 3 + [share(20)], empty, nodes.values())
    compared = POLICIES[policy](known)
    costs = {}
    for name, room in nodes.items():
        found = best(share(30), room, compared)
        assert found is not None
        costs[name] = found.cost

    assert sorted(costs, key=lambda name: (costs[name], name)) == ORDER[policy]
