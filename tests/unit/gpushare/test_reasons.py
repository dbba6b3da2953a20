"""What many nodes say about one pod, in one sentence."""

import pytest

from gpushare.model.ledger import RefusalReason, Refused
from gpushare.placement.explain import largest_free, together
from testing.builders import make_ledger


@pytest.mark.parametrize(
    ("messages", "nodes", "which", "expected"),
    [
        (["a has no healthy GPU"], 1, "", "a has no healthy GPU"),
        (["needs X; free on a: 1", "needs X; free on b: 2"], 2, "", "needs X; free on a: 1; free on b: 2"),
        (["needs X; free on a: 1", "b has no GPU"], 2, "", "needs X; free on a: 1; b has no GPU"),
        (["needs X", "needs X; free on b: 2"], 2, "", "needs X; free on b: 2"),
        (["needs X; on a: 1"], 2, "", "needs X; on a: 1; and 1 more node"),
        (["x", "y"], 9, " with GPUs", "x; y; and 7 more nodes with GPUs"),
    ],
)
def test_what_all_begin_with_is_said_once(messages: list[str], nodes: int, which: str, expected: str) -> None:
    assert together(messages, nodes, which) == expected


def test_a_node_comes_as_close_as_its_freest_gpu() -> None:
    assert largest_free(make_ledger([3, 7])) == 7 * 1024
    assert largest_free(Refused(RefusalReason.NO_INVENTORY, "x", permanent=True)) == 0
    assert largest_free(None) == 0


def test_programs_can_rely_on_the_words_of_reasons() -> None:
    words = "NoInventory NoHealthyGpu UnitMismatch InsufficientGpuMemory InsufficientGpuCompute NoUntouchedGpu"
    more = "NoMatchingGpu TooFewGpus OtherHandOver SearchTooLong"
    assert [reason.value for reason in RefusalReason] == [*words.split(), *more.split()]
