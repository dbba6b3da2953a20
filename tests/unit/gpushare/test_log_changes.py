"""What is found out again and again is logged when it changes."""

import logging

import pytest

from gpushare.runtime import logs


def test_the_same_is_told_once_until_it_is_well_or_gone(caplog: pytest.LogCaptureFixture) -> None:
    changes = logs.Changes(logging.getLogger("test"))
    for about, problem in (("a", 1), ("a", 1), ("b", 1), ("a", 2), ("a", 2)):
        changes.say("broken", about, level=logging.WARNING, problem=problem)
    assert len(caplog.records) == 3
    changes.clear("a")
    changes.say("broken", "a", level=logging.WARNING, problem=2)
    changes.say("broken", "b", level=logging.WARNING, problem=1)
    assert len(caplog.records) == 4
    changes.keep({"a"})
    changes.say("broken", "b", level=logging.WARNING, problem=1)
    assert len(caplog.records) == 5
