"""Laws of evictions, on random clusters: none is in vain, and preemption is as good as any."""

import itertools
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import pytest
from hypothesis import event, given, settings, strategies as st

from controller import preemption
from controller.preemption import Decision, Preemptor, Ruling, Victims
from gpushare.cluster import budgets
from gpushare.cluster.budgets import Budget
from gpushare.cluster.node_ledger import Node, PodToPlace
from gpushare.cluster.node_records import NodeRecord
from gpushare.cluster.pod_records import Bound
from gpushare.identity import ContainerName, NodeName, PodUid
from gpushare.model.capacity import FreeHost
from gpushare.model.ledger import Grant, NodeLedger, Placed
from gpushare.model.request import ContainerRequest, LabelSelector, PodRequest, Policy, RequestShape
from gpushare.placement.place import place
from gpushare.placement.policies import Policies
from gpushare_cli.evict import move_search
from gpushare_cli.evict.move_search import Evictable, Movable, Plan
from testing.builders import make_allocation, make_inventory, make_ref
from tests.property.strategies import shapes

CLUSTERS: Final = 5 * settings().max_examples
GIB: Final = 1024
APP = LabelSelector.parse("app=guarded")


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
        assert move.pod.uid in ledger_of(nodes[plan.node]).allocations
        nodes[plan.node] = nodes[plan.node].without([moved])
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


PRIORITY = 5


@dataclass(frozen=True)
class Case:
    """A node, the pods on it, and what is asked."""

    shape: RequestShape
    ledger: NodeLedger
    bound: Sequence[Bound]
    given: Victims
    budgets: Sequence[Budget]

    def decide(self) -> Decision:
        request = PodRequest(pod=make_ref("preemptor"), shape=self.shape)
        preemptor = Preemptor(request=request, priority=PRIORITY)
        return preemption.decide(preemptor, self.given, self.ledger, self.bound, self.budgets)

    def fits_without(self, gone: set[PodUid]) -> bool:
        rest = [held for uid, held in self.ledger.allocations.items() if uid not in gone]
        return isinstance(place(self.shape, NodeLedger.of(self.ledger.inventory, rest)), Placed)

    @property
    def weaker(self) -> set[PodUid]:
        return {pod.ref.uid for pod in self.bound if pod.priority < PRIORITY}

    def ways(self) -> Iterator[set[PodUid]]:
        """Every set of less important pods without which there is room."""
        for count in range(len(self.weaker) + 1):
            for gone in itertools.combinations(sorted(self.weaker), count):
                if self.fits_without(set(gone)):
                    yield set(gone)


@st.composite
def grants(draw: st.DrawFn, gpus: int) -> tuple[Grant, ...]:
    uuids = st.sampled_from([gpu.uuid for gpu in make_inventory(*[10] * gpus).gpus])
    several = st.lists(st.lists(uuids, min_size=1, max_size=2, unique=True), min_size=1, max_size=2)
    return tuple(
        Grant(
            container=ContainerName(f"c{i}"),
            gpus=tuple(on),
            memory_mib=draw(st.integers(1, 6)) * 1024,
            compute_percent=draw(st.sampled_from([0, 0, 30, 70])),
            whole=draw(st.sampled_from([False] * 5 + [True])),
        )
        for i, on in enumerate(draw(several))
    )


@st.composite
def cases(draw: st.DrawFn) -> Case:
    sizes = draw(st.lists(st.integers(6, 10), min_size=2, max_size=3))
    bound = []
    held = []
    for i in range(draw(st.integers(2, 6))):
        labels = draw(st.sampled_from([{}, {"app": "web"}, {"app": "api"}]))
        allocation = replace(make_allocation(f"p{i}", *draw(grants(len(sizes)))), labels=labels)
        held.append(allocation)
        if draw(st.sampled_from([True] * 5 + [False])):  # else chosen, but not yet seen on its pod
            bound.append(
                Bound(
                    ref=allocation.pod,
                    node=allocation.node,
                    allocation=allocation,
                    labels=labels,
                    priority=draw(st.sampled_from([0, 1, 1, 2, 2, PRIORITY - 1, PRIORITY])),
                    created=draw(st.sampled_from(["2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"])),
                    deleting=draw(st.sampled_from([False, False, True])),
                )
            )
    # The scheduler names only who is less important, and pods of which nothing is known here.
    names = [pod.ref.uid for pod in bound if pod.priority < PRIORITY] + [PodUid("cpu"), PodUid("disk")]
    asked = draw(st.lists(st.sampled_from(names), unique=True))
    selector, allowed = st.sampled_from([None, LabelSelector((), "")]), st.integers(0, 2)
    guards = st.builds(Budget, namespace=st.just("default"), name=st.just("b"), selector=selector, allowed=allowed)
    return Case(
        shape=draw(shapes(max_containers=1, max_gib=8) | shapes(max_containers=2, max_gib=6)),
        ledger=NodeLedger.of(make_inventory(*sizes), held),
        bound=bound,
        given=Victims(pods=tuple(asked), violations=draw(st.integers(0, 2))),
        budgets=draw(st.lists(guards, max_size=2)),
    )


@given(cases())
def test_no_one_is_evicted_who_does_not_help_and_no_one_who_is_as_important(case: Case) -> None:
    found = case.decide()
    event(found.ruling.value)
    if found.ruling is not Ruling.CHOSEN:
        assert found.victims == (case.given if found.ruling is Ruling.AS_GIVEN else Victims(pods=()))
        return
    holders = {uid for uid in found.victims.pods if uid in case.ledger.allocations}
    assert holders <= case.weaker
    assert not case.fits_without(set())
    assert case.fits_without(holders)
    if holders != set(case.given.pods) & case.weaker:  # else the scheduler has spared whom it could
        for uid in holders:
            assert not case.fits_without(holders - {uid}), uid
    # What has no GPUs stays as it was.
    others = [uid for uid in case.given.pods if uid not in case.ledger.allocations]
    assert sorted(set(found.victims.pods) - holders) == sorted(others)
    assert len(set(found.victims.pods)) == len(found.victims.pods)
    assert 0 <= found.victims.violations <= len(found.victims.pods)


@given(cases())
def test_if_any_set_of_less_important_pods_makes_room_one_is_found(case: Case) -> None:
    found = case.decide()
    way = next(case.ways(), None)
    if way is None:
        assert found.ruling is Ruling.DROPPED
    elif way == set():
        assert found.ruling is (Ruling.AS_GIVEN if case.given.pods else Ruling.DROPPED)
    elif simple(case.shape):
        assert found.ruling is Ruling.CHOSEN
    else:
        event("wants several GPUs beside others")


def simple(shape: RequestShape) -> bool:
    """Which others it needs beside it, if any, is settled by one of them."""
    wants = shape.affinity is not None and shape.affinity.same is not None and not shape.affinity.first
    return not wants or (len(shape.containers) == 1 and shape.containers[0].gpu_count == 1)


@given(cases())
def test_the_order_in_which_pods_are_listed_changes_nothing(case: Case) -> None:
    assert replace(case, bound=list(reversed(case.bound))).decide() == case.decide()
