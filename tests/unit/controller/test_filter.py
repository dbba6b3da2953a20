import pytest

from controller.extender import filter as filtering
from controller.rooms import Rooms
from gpushare.identity import NodeName
from gpushare.model.verdict import RefusalReason, Refused
from gpushare.placement.room import Room
from gpushare.units import GIB
from testing.builders import make_inventory

FULL = Refused(RefusalReason.INSUFFICIENT_GPU_MEMORY, "full")
NEVER = Refused(RefusalReason.TOO_FEW_GPUS, "never", permanent=True)
A, B, C, D = (NodeName(name) for name in "abcd")
ANSWERS: dict[NodeName, int | Refused] = {A: 7, B: FULL, C: NEVER}


def test_every_node_is_answered_for_in_one_place() -> None:
    result = filtering.decide([A, B, C, D], ANSWERS, frozenset())
    assert result.fits == [A]
    assert result.failed == {
        B: "full",
        D: "node d is unknown to the gpushare controller; it may have been added a moment ago",
    }
    assert result.unresolvable == {C: "never"}


def test_a_cost_of_zero_fits() -> None:
    assert filtering.decide([A], {A: 0}, frozenset()).fits == [A]


def test_a_node_where_memory_is_reserved_for_this_pod_fits() -> None:
    assert filtering.decide([A, B], ANSWERS, frozenset({B})).fits == [A, B]


@pytest.mark.parametrize("name", ['a"b', "a\\b", "ä", "a\n", ""])
def test_refusals_of_simple_pods_are_json_whatever_nodes_are_called(name: str) -> None:
    rooms, asked = Rooms(), [NodeName(name), NodeName(f"{name}-full"), A, B]
    for each in asked[:3]:
        rooms.set(each, Room(2048, 4096, f"; left on {each}", f"; never on {each}", (), make_inventory(4)))
    rooms.set(B, Refused(RefusalReason.NO_INVENTORY, 'no "inventory"', permanent=True))
    for gib, expected in ((3, "left"), (5, "never")):
        result = filtering.decide_simple(asked, gib * 1024, rooms, GIB)
        texts = {each: f"needs {gib} GiB on one GPU; {expected} on {each}" for each in asked[:3]}
        failed, unresolvable = (texts, {}) if gib == 3 else ({}, texts)
        assert (result.fits, result.failed, result.unresolvable) == ([], failed, {**unresolvable, B: 'no "inventory"'})
        assert (len(result.failed), len(result.unresolvable)) == (len(failed), len(unresolvable) + 1)
    assert filtering.decide_simple(asked, 1024, rooms, GIB).fits == asked[:3]


def test_only_asked_nodes_are_answered_for() -> None:
    assert filtering.decide([], ANSWERS, frozenset()).fits == []
