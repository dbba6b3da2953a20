"""Laws of defragmentation, on random clusters: it never makes it worse, and evicts no pod in vain."""

import itertools
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

import pytest
from hypothesis import settings

from gpushare.cluster import budgets
from gpushare.cluster.budgets import Budget
from gpushare.cluster.node_ledger import Node, PodToPlace
from gpushare.cluster.node_records import NodeRecord
from gpushare.cluster.pod_records import Bound
from gpushare.identity import ContainerName, NodeName
from gpushare.model.capacity import FreeHost
from gpushare.model.ledger import NodeLedger, Placed
from gpushare.model.request import ContainerRequest, LabelSelector, Operator, Policy, RequestShape, Requirement
from gpushare.placement.place import place
from gpushare.placement.policies import Policies
from gpushare_cli.evict import move_search
from gpushare_cli.evict.move_search import Evictable, Movable, Plan
from testing.builders import make_inventory, make_ref

CLUSTERS: Final = 5 * settings().max_examples
GIB: Final = 1024
APP = LabelSelector((Requirement("app", Operator.IN, ("guarded",)),), text="")


def shape(chance: random.Random, least: int, most: int) -> RequestShape:
    """Of a pod with one container, or two."""
    containers = [
        ContainerRequest(
            container=ContainerName(f"c{i}"),
            memory_mib=chance.randint(least, most) * GIB,
            compute_percent=chance.choice([0, 0, 0, 20, 50]) if i == 0 else 0,
            gpu_count=chance.choice([1, 1, 1, 1, 2]) if i == 0 else 1,
        )
        for i in range(chance.choice([1, 1, 1, 1, 2]))
    ]
    if chance.random() < 0.05:
        containers = [ContainerRequest(container=ContainerName("c0"), whole=True, compute_percent=100)]
    return RequestShape(containers=tuple(containers), policy=chance.choice([None, *Policy]))


def cluster(seed: int) -> tuple[PodToPlace, Movable]:
    """Up to four nodes, filled with pods at random, and a pod that may wait."""
    chance = random.Random(seed)
    nodes: dict[NodeName, Node] = {}
    evictable: list[Evictable] = []
    size = chance.choice([8, 16, 24])
    for n in range(chance.randint(1, 4)):
        node = NodeName(f"node-{n}")
        ledger = NodeLedger.of(make_inventory(*[size] * chance.randint(1, 4), node=node))
        host = FreeHost(chance.randint(4, 12) * 1000, 64 * GIB) if chance.random() < 0.5 else None
        node_state = Node(record=NodeRecord(name=node, published=None), ledger=ledger, host=host)
        for p in range(chance.randint(4, 12)):
            pod = PodToPlace(ref=make_ref(f"p{n}-{p}"), shape=shape(chance, 1, size // 2), takes=FreeHost(500, GIB))
            # At random, as a cluster is after a while.
            grants = node_state.grants(pod, replace(pod.shape, policy=chance.choice([*Policy])), Policies())
            if grants is None:
                continue
            labels = {"app": "guarded"} if chance.random() < 0.2 else {}
            pod = replace(pod, labels=labels)
            node_state = node_state.plus(pod, grants)
            if chance.random() < 0.85:
                bound = Bound(ref=pod.ref, node=node, labels=labels, priority=chance.choice([0, 0, 10]))
                evictable.append(Evictable(bound=bound, pod=pod))
        nodes[node] = node_state
    for ended in [one for one in evictable if chance.random() < 0.25]:
        nodes[ended.bound.node] = nodes[ended.bound.node].without([ended.pod])
        evictable.remove(ended)
    known = [Budget(namespace="default", name="guard", selector=APP, allowed=chance.choice([0, 1, 5]))]
    closed = {(one.pod.ref.uid, node) for one in evictable for node in nodes if chance.random() < 0.1}
    movable = Movable(
        nodes=nodes, evictable=evictable, budgets=known, admits=lambda pod, node: (pod.ref.uid, node) not in closed
    )
    return PodToPlace(ref=make_ref("waits"), shape=shape(chance, size // 4, size), takes=FreeHost(500, GIB)), movable


def waiting() -> Iterator[tuple[int, PodToPlace, Movable]]:
    """Clusters with a pod that fits nowhere."""
    for seed in range(CLUSTERS):
        pod, movable = cluster(seed)
        if not movable.fits(pod):
            yield seed, pod, movable


def ledger_of(node: Node) -> NodeLedger:
    assert isinstance(node.ledger, NodeLedger)
    return node.ledger


def pods_in(nodes: Mapping[NodeName, Node]) -> set[str]:
    return {str(uid) for node_state in nodes.values() for uid in ledger_of(node_state).allocations}


def carried_out(pod: PodToPlace, movable: Movable, plan: Plan) -> Mapping[NodeName, Node]:
    """The cluster after each step was taken for itself: an eviction, then its successor, and last the pod."""
    pods = {one.bound.ref.uid: one.pod for one in movable.evictable}
    nodes = dict(movable.nodes)
    for move in plan.moves:
        moved = pods[move.pod.uid]
        assert move.pod.uid in ledger_of(nodes[move.source]).allocations
        nodes[move.source] = nodes[move.source].without([moved])
        assert move.target is not None
        there = nodes[move.target]
        open_now = there.closed(plan.kept_free) if move.target == plan.node else there
        assert movable.admits(moved, move.target)
        verdict = place(moved.shape, ledger_of(open_now), movable.policies)
        assert isinstance(verdict, Placed)
        assert verdict.grants == move.grants
        nodes[move.target] = there.plus(moved, move.grants)
    verdict = place(pod.shape, ledger_of(nodes[plan.node]), movable.policies)
    assert isinstance(verdict, Placed)
    assert verdict.grants == plan.grants
    nodes[plan.node] = nodes[plan.node].plus(pod, plan.grants)
    return nodes


def test_it_never_makes_it_worse_and_evicts_no_pod_in_vain() -> None:
    helped = 0
    for seed, pod, movable in waiting():
        plan = move_search.plan(pod, movable)
        if plan is None or plan.waiting:
            continue
        helped += 1
        after = carried_out(pod, movable, plan)
        assert pods_in(after) == pods_in(movable.nodes) | {str(pod.ref.uid)}, seed
        for node_state in after.values():
            assert not ledger_of(node_state).over_committed(), seed
            assert not ledger_of(node_state).over_computed(), seed
            assert node_state.host is None or min(node_state.host) >= 0, seed
        moved = {move.pod.uid for move in plan.moves}
        bounds = [one.bound for one in movable.evictable if one.bound.ref.uid in moved]
        assert not budgets.broken(bounds, movable.budgets), seed
        assert {move.source for move in plan.moves} == {plan.node}, seed
        # While any of them stays where it is, the pod does not fit there.
        gone = [one.pod for one in movable.evictable if one.bound.ref.uid in moved]
        for stays in gone:
            left = movable.nodes[plan.node].without([pod for pod in gone if pod is not stays])
            assert left.grants(pod, pod.shape, movable.policies) is None, seed
    assert helped > CLUSTERS // 20, "the clusters are such that it matters"


@pytest.mark.parametrize("count", [1, 2])
def test_if_so_few_evictions_are_enough_it_proposes_no_more(count: int) -> None:
    """By trying every so many pods of every node that are in the way, one after the other in any order."""
    found = 0
    for seed, pod, movable in waiting():
        on_node = [[one for one in movable.evictable if one.bound.node == node] for node in movable.nodes]
        if any(
            in_the_way(pod, movable, some) and any(replayed(pod, movable, order) for order in (some, some[::-1]))
            for there in on_node
            for some in itertools.combinations(there, count)
        ):
            found += 1
            plan = move_search.plan(pod, movable)
            assert plan is not None, seed
            assert len(plan.moves) <= count, seed
            assert not plan.waiting, seed
    assert found > CLUSTERS // (50 * count)


def in_the_way(pod: PodToPlace, movable: Movable, gone: Sequence[Evictable]) -> bool:
    """Whether the pod fits without these, and not while one of them stays."""
    if budgets.broken([one.bound for one in gone], movable.budgets) or not movable.admits(pod, gone[0].bound.node):
        return False
    here = movable.nodes[gone[0].bound.node]
    smaller = [[other.pod for other in gone if other is not one] for one in gone]
    return here.without([one.pod for one in gone]).grants(pod, pod.shape, movable.policies) is not None and not any(
        here.without(some).grants(pod, pod.shape, movable.policies) for some in smaller
    )


def replayed(pod: PodToPlace, movable: Movable, order: Sequence[Evictable]) -> bool:
    """Whether all of these get a place when they are evicted one after another, and then the pod."""
    node = order[0].bound.node
    grants = movable.nodes[node].without([one.pod for one in order]).grants(pod, pod.shape, movable.policies)
    kept = {gpu for grant in grants or () for gpu in grant.gpus}
    nodes = {**movable.nodes, node: movable.nodes[node].closed(kept)}
    for one in order:
        nodes[node] = nodes[node].without([one.pod])
        target, taken = replace(movable, nodes=nodes).best(one.pod)
        if target is None:
            return False
        nodes[target] = nodes[target].plus(one.pod, taken)
    return nodes[node].opened(kept).grants(pod, pod.shape, movable.policies) is not None


@pytest.mark.parametrize("most", [0, 1, 2])
def test_it_proposes_no_more_evictions_than_it_may(most: int) -> None:
    plans = [move_search.plan(pod, movable, most=most) for _, pod, movable in waiting()]
    assert max(len(plan.moves) if plan else 0 for plan in plans) == most
