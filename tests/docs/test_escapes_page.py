"""The table of escapes is long enough, and says of each attempt that succeeds what stops it."""

import pytest

from release.pages import escapes
from release.pages.escapes import OUTCOMES, SECTIONS, WAYS
from testing.tenant import escape_table
from testing.tenant.attempts import Attempt, Ends
from testing.tenant.escape_table import Place
from testing.tenant.escapes import BASELINE

ATTEMPTS = list(escape_table.all_attempts("node-1"))


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.value)
def test_at_least_sixty_attempts_run_on_nodes_of_each_way(way: object) -> None:
    places = [Place(f"node-{number}", way) for number, way in enumerate(WAYS)]
    run = {attempt.what for place, attempt in escape_table.on_each(places) if place.way is way and tried(attempt)}
    assert len(run) >= 60


def tried(attempt: Attempt) -> bool:
    """Whether it gets as far as a node."""
    return attempt.ends in escape_table.RUNNING


def test_every_row_says_what_stops_it_and_none_comes_twice() -> None:
    rows = escapes.rows()
    assert [row.what for row in rows if not row.by] == []
    assert len({row.what for row in rows}) == len(rows)
    assert {outcome for row in rows for outcome in row.outcomes} <= {*OUTCOMES.values(), "unchanged"}
    assert "|" not in "".join(row.what + row.by for section in SECTIONS.values() for row in section)


@pytest.mark.parametrize("attempt", ATTEMPTS, ids=lambda each: each.name)
def test_what_escapes_is_nothing_that_pod_security_admits(attempt: Attempt) -> None:
    assert len({each.name for each in ATTEMPTS}) == len(ATTEMPTS)
    if Ends.ESCAPES in {attempt.ends, attempt.old_ends, *attempt.on.values()}:
        assert not attempt.is_baseline
        assert BASELINE in attempt.by
        assert attempt.prints
