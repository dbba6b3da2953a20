"""Preemption against all sets of pods that could be evicted from a small node."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from hypothesis import event, given
from hypothesis import strategies as st

from controller import preemption
from controller.preemption import Decision, Preemptor, Ruling, Victims
from gpushare.cluster.budgets import Budget
from gpushare.cluster.pod_records import Bound
from gpushare.identity import ContainerName, PodUid
from gpushare.model.ledger import Grant, NodeLedger, Placed
from gpushare.model.request import LabelSelector, PodRequest, RequestShape
from gpushare.placement.place import place
from testing.builders import make_allocation, make_inventory, make_ref
from tests.property.strategies import shapes

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
    inventory = make_inventory(*[10] * gpus)
    return tuple(
        Grant(
            container=ContainerName(f"c{i}"),
            gpus=tuple(inventory.gpus[n].uuid for n in on),
            memory_mib=draw(st.integers(1, 6)) * 1024,
            compute_percent=draw(st.sampled_from([0, 0, 30, 70])),
            whole=draw(st.sampled_from([False] * 5 + [True])),
        )
        for i, on in enumerate(
            draw(
                st.lists(
                    st.lists(st.integers(0, gpus - 1), min_size=1, max_size=2, unique=True), min_size=1, max_size=2
                )
            )
        )
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
    selector = st.sampled_from([None, LabelSelector((), "")])
    budgets = draw(
        st.lists(
            st.builds(
                Budget, namespace=st.just("default"), name=st.just("b"), selector=selector, allowed=st.integers(0, 2)
            ),
            max_size=2,
        )
    )
    return Case(
        shape=draw(shapes(max_containers=1, max_gib=8) | shapes(max_containers=2, max_gib=6)),
        ledger=NodeLedger.of(make_inventory(*sizes), held),
        bound=bound,
        given=Victims(pods=tuple(asked), violations=draw(st.integers(0, 2))),
        budgets=budgets,
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
