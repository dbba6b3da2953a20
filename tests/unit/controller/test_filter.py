"""Verdicts are kept for nodes that have not changed, and only for those; the words are those of `place`."""

from dataclasses import replace
from typing import Any

import pytest

from gpushare.cluster.pod_records import Bound
from gpushare.identity import NodeName
from gpushare.model.ledger import NodeLedger, Refused, Verdict
from gpushare.model.request import RequestShape
from gpushare.placement import table
from gpushare.placement.place import place
from gpushare.placement.policies import Policies
from testing.builders import make_inventory, make_shape
from testing.controller.world import NODES, World
from tests.unit.controller.conftest import Lets

A, B, C, D = (NodeName(f"node-{letter}") for letter in "abcd")


def other(number: int) -> RequestShape:
    """A pod that has to be placed to know whether it fits, of as many kinds as are needed."""
    shape = make_shape(3)
    return replace(shape, gpus=replace(shape.gpus, uuids=replace(shape.gpus.uuids, unwanted=(f"GPU-{number}",))))


def asking(**more: Any) -> RequestShape:
    """A pod with one container that asks for something else or more than memory of one GPU."""
    [request] = make_shape(3).containers
    return replace(make_shape(3), containers=(replace(request, **more),))


def large(least_mib: int) -> RequestShape:
    """Only large GPUs."""
    return replace(make_shape(3), gpus=replace(make_shape(3).gpus, min_memory_mib=least_mib))


def fits(world: World, shape: RequestShape, *names: NodeName) -> list[NodeName]:
    return list(world.table.filter(shape, names).fits)


@pytest.fixture
def judged(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the nodes that were placed on."""
    names: list[str] = []

    def counting(shape: RequestShape, ledger: NodeLedger, policies: Policies) -> Verdict:
        names.append(ledger.inventory.node)
        return place(shape, ledger, policies)

    monkeypatch.setattr("gpushare.cluster.node_ledger.place", counting)
    return names


def test_only_changed_nodes_are_judged_again(world: World, judged: list[str]) -> None:
    shape = other(10)
    assert fits(world, shape, B) == [B]
    assert judged == ["node-b"]
    for _ in range(2):
        assert fits(world, shape, B, A) == [B, A]
        assert judged == ["node-b", "node-a"]
    world.bind(world.add_pod(3))
    judged.clear()
    fits(world, shape, A, B)
    assert judged == ["node-a"]


def test_a_pod_that_is_seen_on_its_node_as_it_was_bound_changes_nothing(world: World, judged: list[str]) -> None:
    assert world.bind(world.add_pod(3)).error == ""
    fits(world, other(10), A)
    ledger, now = world.snapshot().ledgers[A], world.table._table.now
    judged.clear()
    world.see()
    assert [type(record) for record in world.state.index.snapshot().pods] == [Bound]
    assert world.snapshot().ledgers[A] is ledger
    assert fits(world, other(10), A) == [A]
    assert (judged, world.table._table.now) == ([], now)


@pytest.mark.parametrize(
    "shape",
    [
        *(asking(compute_percent=10), asking(gpu_count=2), asking(memory_mib=0, memory_percent=50)),
        *(asking(memory_mib=0, whole=True), large(9 * 1024)),
    ],
)
def test_one_container_needs_no_search(world: World, judged: list[str], shape: RequestShape) -> None:
    assert fits(world, shape, A, B) == [A, B]
    for _ in range(2):
        world.add_bound(8)
    judged.clear()
    found = world.table.filter(shape, [A, B])
    assert found.fits == [B]
    assert world.table.filter(shape, [A]).failed == found.failed
    assert judged == []
    verdict = world.table.verdicts(shape)[A]
    assert verdict == place(shape, world.ledger())
    assert isinstance(verdict, Refused)


def test_gpus_of_another_kind_are_told_without_a_search(world: World, judged: list[str]) -> None:
    found = world.table.filter(large(11 * 1024), [A, B])
    for name, words in found.unresolvable.items():
        assert words.startswith(f"needs a GPU with at least 11264 MiB in all; GPUs of {name}: 0: too small (")
    assert (len(found.unresolvable), judged) == (2, [])


def test_a_verdict_that_is_outdated_is_not_kept(world: World, during_a_search: Lets) -> None:
    def meanwhile() -> None:
        for _ in range(2):
            assert world.bind(world.add_pod(9)).error == ""
        fits(world, other(10), B)  # another request, which has seen the change

    during_a_search(meanwhile)
    assert fits(world, other(10), A) == [A]
    assert fits(world, other(10), A) == []


def test_a_refusal_says_what_is_free_now(world: World) -> None:
    for gib in (8, 8, 1):
        assert world.bind(world.add_pod(gib)).error == ""
        verdict = place(make_shape(9), world.ledger(A), world.state.policies)
        told = world.table.filter(make_shape(9), [A]).failed
        assert told == ({A: verdict.message} if isinstance(verdict, Refused) else {})
        assert gib > 1 or told[A].endswith("node-a: 1, 2 GiB")


def test_a_verdict_of_a_table_that_was_replaced_meanwhile_is_not_kept(
    world: World, monkeypatch: pytest.MonkeyPatch, during_a_search: Lets
) -> None:
    def meanwhile() -> None:
        world.api.vanish(f"{NODES}/{A}")
        world.see()
        with monkeypatch.context() as patch:
            patch.setattr(table.Table, "is_bloated", lambda _: True)
            assert fits(world, other(10), C) == [C]

    world.table.sharing()
    world.add_node(C, 10)
    world.see()
    during_a_search(meanwhile)
    assert fits(world, other(10), C) == [C], "its row is beyond the end of the new table"


def test_a_node_may_go_while_another_request_finds_its_words(world: World) -> None:
    class Words(dict[int, Any]):
        def pop(self, *args: Any) -> Any:
            world.table._left(
                asking(compute_percent=10), 0, NodeLedger.of(make_inventory(10)), never=True
            )  # of the other request
            return super().pop(*args)

    assert fits(world, make_shape(30), A, B) == []
    [(asked, words)] = world.table._words.items()
    world.table._words[asked] = Words(words)
    world.api.vanish(f"{NODES}/{A}")
    world.see()
    assert fits(world, make_shape(3), A, B) == [B]


def test_a_search_that_takes_long_is_continued_at_the_next_try(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(shape: RequestShape, ledger: NodeLedger, policies: Policies) -> Verdict:
        world.clock.at += 1
        return place(shape, ledger, policies)

    monkeypatch.setattr("gpushare.cluster.node_ledger.place", slow)
    for name in (C, D):
        world.add_node(name, 10)
    world.see()
    every = [A, B, C, D]
    assert world.table.filter(other(10), every).fits == every  # never refused for want of time
    first = world.table.filter(make_shape(3, 2), every)
    assert first.fits == [A, B]
    assert set(first.failed) == {C, D}
    assert first.failed[D].endswith("takes long and has not ended yet; it goes on at the next try")
    assert world.table.filter(make_shape(3, 2), every).fits == every


def test_the_chores_do_not_drive_the_schedulers_kinds_of_pods_out(world: World) -> None:
    fits(world, make_shape(1), A)
    before = dict(world.table._kept.values)
    for gib in range(1, 30):
        world.table.verdicts(make_shape(gib))
    assert dict(world.table._kept.values) == before
