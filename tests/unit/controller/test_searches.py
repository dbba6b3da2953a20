"""What was found for a pod is kept, and nothing by which it was found."""

import gc
import weakref

import pytest

from controller.searches import Searches
from gpushare.cluster import node_ledger
from gpushare.model.ledger import NodeLedger
from gpushare.model.request import Policy
from gpushare.placement.outlook import Outlook
from gpushare.placement.policies import Rankings
from testing.builders import make_inventory, make_shape


def test_rankings_of_the_past_are_not_kept() -> None:
    """Each remembers tens of MiB of what it has counted, and pods make a new one every few seconds."""
    searches, rankings = Searches(), Rankings(Policy.DENSE)
    searches.verdict(make_shape(3), NodeLedger.of(make_inventory(16)), rankings)
    made = weakref.ref(rankings.of(None))
    del rankings
    gc.collect()
    assert made() is None


def test_a_verdict_holds_for_one_ledger_and_one_outlook(monkeypatch: pytest.MonkeyPatch) -> None:
    found, searches, ledger = list[int](), Searches(), NodeLedger.of(make_inventory(16))
    search = node_ledger.verdict

    def counted(*args: object) -> object:
        found.append(1)
        return search(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(node_ledger, "verdict", counted)
    for epoch, of in [(1, ledger), (1, ledger), (2, ledger), (2, NodeLedger.of(make_inventory(16)))]:
        searches.verdict(make_shape(3), of, Rankings(Policy.DENSE, Outlook(epoch=epoch)))
    assert len(found) == 3
