"""What the free part of a GPU is worth."""

from gpushare.placement.outlook import SLOTS, WHOLE, prices, slots

NINE_TENTHS, TWO_THIRDS, HALF, THIRD = SLOTS * 9 // 10, SLOTS * 2 // 3, SLOTS // 2, SLOTS // 3


def test_halves_cost_half_a_gpu() -> None:
    value = prices((HALF,))
    assert (value[SLOTS], value[HALF]) == (WHOLE, WHOLE // 2)


def test_a_remainder_that_no_usual_share_fills_is_worth_nothing() -> None:
    value = prices((NINE_TENTHS, HALF))
    assert value[SLOTS - NINE_TENTHS - 1] < WHOLE // 8
    assert value[NINE_TENTHS] == WHOLE


def test_shares_that_fill_a_gpu_together_cost_a_gpu_together() -> None:
    value = prices((TWO_THIRDS, THIRD))
    assert value[TWO_THIRDS] + value[THIRD] == WHOLE


def test_a_share_that_is_frequent_is_priced_before_one_that_is_rare() -> None:
    """Of what fits together on a GPU the one can have the other's part."""
    tall, flat = SLOTS * 6 // 10, SLOTS * 4 // 10
    assert prices((tall, flat))[flat] < prices((flat, tall))[flat]


def test_with_no_demand_at_all_every_part_is_worth_what_it_is() -> None:
    value = prices(())
    assert [value[part] for part in (0, 7, HALF, SLOTS)] == [0, WHOLE // SLOTS * 7, WHOLE // 2, WHOLE]
    assert prices((0, SLOTS)) == prices((1, HALF)) == value


def test_what_fits_together_on_a_gpu_does_in_slots() -> None:
    total = 81_559
    assert 3 * slots(total // 3, total) <= SLOTS
    assert slots(total, total) == SLOTS
    assert slots(5, 0) == 0
