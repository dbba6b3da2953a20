"""Placement against a brute-force search on small nodes."""

import itertools
import random

from hypothesis import given
from hypothesis import strategies as st

from gpushare.model.allocation import Grant, footprint
from gpushare.model.ledger import NodeLedger
from gpushare.model.request import RequestShape
from gpushare.model.verdict import Placed, RefusalReason, Refused
from gpushare.placement.place import place
from tests.builders import make_ref
from tests.strategies import ledgers, shapes


def fits(grants: tuple[Grant, ...], ledger: NodeLedger) -> bool:
    free = {gpu.uuid: ledger.free_mib(gpu) for gpu in ledger.inventory.gpus}
    return all(mib <= free[gpu] for gpu, mib in footprint(grants).items())


def brute_force(shape: RequestShape, ledger: NodeLedger) -> bool:
    uuids = [gpu.uuid for gpu in ledger.inventory.gpus]
    choices = [itertools.combinations(uuids, wish.gpu_count) for wish in shape.containers]
    return any(
        fits(
            tuple(
                Grant(container=wish.container, kind=wish.kind, gpus=gpus, memory_mib=wish.memory_mib)
                for wish, gpus in zip(shape.containers, combination, strict=True)
            ),
            ledger,
        )
        for combination in itertools.product(*choices)
    )


@given(shapes(), ledgers())
def test_a_fit_is_found_exactly_when_there_is_one(shape: RequestShape, ledger: NodeLedger) -> None:
    verdict = place(shape, ledger)
    assert isinstance(verdict, Placed) == brute_force(shape, ledger), verdict


@given(shapes(), ledgers())
def test_what_is_placed_fits_and_is_what_was_asked(shape: RequestShape, ledger: NodeLedger) -> None:
    verdict = place(shape, ledger)
    if isinstance(verdict, Refused):
        assert verdict.reason is not RefusalReason.SEARCH_TOO_LONG
        return
    assert fits(verdict.grants, ledger)
    assert 0 <= verdict.score <= 10
    asked = [(w.container, w.kind, w.memory_mib, w.gpu_count) for w in shape.containers]
    assert [(g.container, g.kind, g.memory_mib, len(set(g.gpus))) for g in verdict.grants] == asked


@given(shapes(), ledgers())
def test_a_permanent_refusal_holds_for_the_empty_node_too(shape: RequestShape, ledger: NodeLedger) -> None:
    verdict = place(shape, ledger)
    if isinstance(verdict, Refused) and verdict.permanent:
        assert isinstance(place(shape, NodeLedger.of(ledger.inventory)), Refused)


@given(shapes(), ledgers(), st.randoms(use_true_random=False))
def test_the_order_in_which_pods_are_read_changes_nothing(
    shape: RequestShape, ledger: NodeLedger, rng: random.Random
) -> None:
    held = list(ledger.allocations.values())
    rng.shuffle(held)
    assert place(shape, NodeLedger.of(ledger.inventory, held)) == place(shape, ledger)


@given(shapes(), ledgers())
def test_placing_the_same_pod_again_gives_the_same_gpus(shape: RequestShape, ledger: NodeLedger) -> None:
    assert place(shape, ledger) == place(shape, ledger)
    assert make_ref().uid not in ledger.allocations
