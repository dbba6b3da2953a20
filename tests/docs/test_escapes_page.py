"""The table of escapes is long enough, and says of each attempt that succeeds what stops it."""

import pytest

from release.pages import escapes
from release.pages.escapes import OUTCOMES, SECTIONS
from testing.tenant import escape_table
from testing.tenant.attempts import Attempt, Ends
from testing.tenant.escapes import BASELINE

ATTEMPTS = list(escape_table.all_attempts("node-1"))


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
