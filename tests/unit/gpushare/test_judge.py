"""What a judge remembers of nodes changes nothing of what it says, and is bounded."""

from dataclasses import replace

import pytest

from gpushare.cluster.verdicts import ShapeCache
from gpushare.identity import NodeName
from gpushare.model.allocation import RefusalReason, Refused
from gpushare.model.ledger import NodeLedger
from gpushare.model.request import RequestShape
from gpushare.model.selector import Choice, GpuSelector
from gpushare.placement import judge, room
from gpushare.placement.judge import Judge
from gpushare.placement.place import place
from gpushare.placement.room import Room
from gpushare.units import GIB
from testing.builders import make_allocation, make_grant, make_inventory, make_ledger, make_shape


def of(name: str, *sizes: int) -> Room:
    ledger = make_ledger(sizes)
    found = room.of_ledger(replace(ledger, inventory=make_inventory(*sizes, node=name)))
    assert isinstance(found, Room)
    return found


def test_nodes_that_are_alike_are_refused_in_the_same_words_with_their_own_names() -> None:
    shape = replace(make_shape(3), gpus=GpuSelector(models=Choice(wanted=("A100",))))
    mine = Judge(shape, GIB)
    said = [mine.fits(of(name, 15)) for name in ("node-a", "node-b")]

    assert said[0] == place(shape, make_ledger([15]))
    assert isinstance(said[0], Refused)
    assert said[1] == replace(said[0], message=said[0].message.replace("node-a", "node-b"))


def test_what_is_known_of_gpus_is_forgotten_when_it_is_much(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judge, "_MOST", 2)
    mine = Judge(make_shape(8), GIB)

    assert [mine.fits(of("node", size)) is True for size in (9, 7, 8, 6, 9)] == [True, False, True, False, True]
    assert len(mine._worth) <= 2


def test_where_only_compute_is_missing_that_is_said() -> None:
    holder = make_allocation("holder", make_grant(0, gib=1, compute_percent=80))
    ledger = NodeLedger.of(make_inventory(15), [holder])
    found = room.of_ledger(ledger)
    assert isinstance(found, Room)
    [container] = make_shape(3).containers
    shape = RequestShape(containers=(replace(container, compute_percent=30),))

    said = Judge(shape, GIB).fits(found)

    assert isinstance(said, Refused)
    assert said.reason is RefusalReason.INSUFFICIENT_GPU_COMPUTE
    assert said == place(shape, ledger)
    assert found.fits(replace(container, memory_mib=1, compute_percent=30)) is False


def test_a_percentage_is_left_to_placement_where_gpus_differ() -> None:
    [container] = make_shape(3).containers
    half = replace(container, memory_mib=0, memory_percent=50)

    assert of("node", 16, 16).fits(half) is True
    assert of("node", 16, 32).fits(half) is None


def test_nodes_with_too_few_gpus_are_left_to_placement() -> None:
    assert Judge(make_shape((3, 2)), GIB).fits(of("node", 15)) is None


def test_answers_that_were_forgotten_meanwhile_weigh_nothing() -> None:
    class Kept:
        def __init__(self, _: RequestShape) -> None:
            self.by_node = dict.fromkeys(map(NodeName, map(str, range(100))), 0)

    cache = ShapeCache(Kept)
    cache.weigh(make_shape(1))

    assert make_shape(1) not in cache
    assert cache._total == 0
