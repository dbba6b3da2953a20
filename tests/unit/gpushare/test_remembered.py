"""What placement remembers of rows and GPUs that look alike is bounded, and never wrong."""

import numpy as np
import pytest

from gpushare.identity import NodeName
from gpushare.model.capacity import Ask, FreeGpu, FreeHost, NodeCapacity
from gpushare.model.ledger import NodeLedger
from gpushare.model.request import Need, Policy
from gpushare.model.selector import MigChoice
from gpushare.placement import policies as scoring
from gpushare.placement.columns import Kinds, Known, Nodes, how_many
from gpushare.placement.outlook import NOTHING_KNOWN
from gpushare.placement.table import LOOK, Table
from testing.builders import make_inventory


def test_rows_are_looked_up_and_it_begins_again_when_it_is_full() -> None:
    asked: list[list[int]] = []

    def find(at: list[int]) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
        asked.append(at)
        return np.array([[10 * each] for each in at], np.int64)

    known = Known[int](3)
    assert known.of([1, 2], find).tolist() == [[0], [10]]
    assert known.of([2, 1], find).tolist() == [[10], [0]]
    assert asked == [[0, 1]]
    full = known.nbytes
    assert known.of([3, 4], find).tolist() == [[0], [10]]
    assert known.nbytes == full
    assert known.of([1], find).tolist() == [[0]]
    assert asked == [[0, 1], [0, 1], [0]]


def test_costs_of_gpus_are_the_same_when_they_were_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    found = scoring.POLICIES[Policy.BINPACK](NOTHING_KNOWN)
    asked = [(FreeGpu(total_mib=100 * number, free_mib=50 * number), Need(10, 0)) for number in (1, 2, 3)]
    before = found.of_gpus(asked)
    monkeypatch.setattr(scoring, "_MOST_KNOWN", 2)
    assert found.of_gpus([*asked, (FreeGpu(total_mib=9, free_mib=9), Need(1, 0))])[:3] == before
    assert len(found._known) == 4


def test_only_rows_that_differ_for_pods_have_numbers_of_their_own() -> None:
    table, ledgers = Table(), [NodeLedger.of(make_inventory(size, node="a"), ()) for size in (2, 3)]
    for name in ("a", "b"):
        table.set(NodeName(name), ledgers[0], None, None)
    numbers = table.facts[LOOK, [table.rows[NodeName(name)] for name in ("a", "b")]]
    assert numbers[0] == numbers[1] > 0
    table.set(NodeName("b"), ledgers[1], None, None)
    assert table.facts[LOOK, table.rows[NodeName("b")]] != numbers[0]
    for number in range(1000):
        table.set(NodeName("a"), ledgers[0], FreeHost(number, number), None)
    assert len(table._looks) < 1000


def test_room_in_pods_of_instances_is_that_of_one_instance_for_each() -> None:
    """A pod for two GPUs has no instances, whatever it says of them."""
    node = NodeCapacity("A100", (FreeGpu(total_mib=10, free_mib=10, mig=True),) * 2, FreeHost(1000, 1000))
    asks = [Ask(gpus=count, memory_mib=5, mig=MigChoice.ONLY) for count in (1, 2)]
    by_gpus, _ = how_many(Kinds(asks), Nodes.of([node]))
    assert (by_gpus[0][0] > 0, by_gpus[0][1]) == (True, 0)
