"""Laws that hold for every policy, with and without knowledge of the cluster."""

import random
from collections.abc import Sequence
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from gpushare.model.allocation import Placed, Refused, Verdict
from gpushare.model.capacity import Ask, FreeHost, NodeCapacity
from gpushare.model.ledger import NodeLedger
from gpushare.model.request import Policy, RequestShape
from gpushare.placement import outlook
from gpushare.placement.columns import Nodes
from gpushare.placement.costs import Cost, change_of, costs_of
from gpushare.placement.place import place
from gpushare.placement.policies import Policies
from gpushare_cli.simulate.cluster import Learner
from testing.builders import make_allocation
from testing.placing import best
from tests.property.brute_force import brute_force
from tests.property.strategies import ledgers, shapes
from tests.property.test_dense import asks, clusters, emptied, samples

policies = st.sampled_from(Policy)
any_asks = asks | st.builds(Ask, cpu_milli=st.integers(0, 20_000), host_mib=st.integers(0, 64))


def learned(default: Policy, sample: Sequence[Ask], nodes: Sequence[NodeCapacity]) -> Policies:
    return Policies(default, outlook.of_cluster(sample, map(emptied, nodes), nodes))


def of_ledger(policy: Policy, sample: Sequence[Ask], ledger: NodeLedger) -> Policies:
    return learned(policy, sample, [NodeCapacity.of(ledger)])


def cost(verdict: Verdict, ledger: NodeLedger, policies: Policies, policy: Policy) -> Cost | None:
    if isinstance(verdict, Refused):
        return None
    change = change_of(verdict.grants, ledger, host=FreeHost(9000, 900), takes=FreeHost(10, 1))
    return costs_of([change], policies.of(policy))[0]


@given(shapes(), ledgers(), samples, policies)
def test_no_policy_changes_whether_a_pod_fits_or_why_not(
    shape: RequestShape, ledger: NodeLedger, sample: list[Ask], policy: Policy
) -> None:
    shape = replace(shape, policy=policy)
    verdict = place(shape, ledger, of_ledger(policy, sample, ledger))
    assert isinstance(verdict, Placed) == brute_force(shape, ledger)
    plain = place(replace(shape, policy=None), ledger)
    assert (verdict if isinstance(verdict, Refused) else None) == (plain if isinstance(plain, Refused) else None)


@given(shapes(), ledgers(), samples, policies)
def test_no_policy_over_commits(shape: RequestShape, ledger: NodeLedger, sample: list[Ask], policy: Policy) -> None:
    verdict = place(replace(shape, policy=policy), ledger, of_ledger(policy, sample, ledger))
    if isinstance(verdict, Placed):
        after = ledger.with_allocation(make_allocation("new", *verdict.grants))
        assert set(after.over_committed()) <= set(ledger.over_committed())
        touched = {uuid for found in verdict.grants for uuid in found.gpus if found.compute_percent}
        assert not touched & set(after.over_computed())


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
