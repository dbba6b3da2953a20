"""The table of escapes says of each attempt that succeeds what stops it."""

from release.pages import escapes
from release.pages.escapes import OUTCOMES, SECTIONS
from testing.tenant import escape_table
from testing.tenant.attempts import Ends
from testing.tenant.escapes import BASELINE


def test_every_row_says_what_stops_it_and_none_comes_twice() -> None:
    rows = escapes.rows()
    assert [row.what for row in rows if not row.by] == []
    assert len({row.what for row in rows}) == len(rows)
    assert {outcome for row in rows for outcome in row.outcomes} <= {*OUTCOMES.values(), "unchanged"}
    assert "|" not in "".join(row.what + row.by for section in SECTIONS.values() for row in section)


def test_what_escapes_is_nothing_that_pod_security_admits() -> None:
    every = escape_table.all_attempts("node-1")
    escaping = [each for each in every if Ends.ESCAPES in {each.ends, each.old_ends, *each.on.values()}]
    assert escaping
    assert [each.name for each in escaping if each.is_baseline or BASELINE not in each.by or not each.prints] == []
