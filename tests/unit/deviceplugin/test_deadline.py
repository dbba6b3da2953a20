"""A driver that hangs holds up neither a start nor the end of the process, and few threads."""

import threading

import pytest

from deviceplugin.limits.backend import LimitError
from deviceplugin.nvml.deadline import Deadline


def test_values_and_errors_come_back() -> None:
    within = Deadline(60.0)
    assert within(lambda: 3) == 3
    assert within(lambda: None) is None
    with pytest.raises(ZeroDivisionError):
        within(lambda: 1 / 0)
    assert [within(lambda: 3) for _ in range(10)] == [3] * 10


def test_calls_that_hang_are_given_up_and_no_more_than_a_few_are_made() -> None:
    within, go, calls = Deadline(0.01), threading.Event(), list[int]()

    def hang() -> bool:
        calls.append(1)
        return go.wait(60.0)

    for _ in range(4):
        with pytest.raises(LimitError, match=r"has not answered in 0\.01 s; see the node's kernel log"):
            within(hang)
    with pytest.raises(LimitError, match="has not answered 4 calls"):
        within(hang)
    threads = [thread for thread in threading.enumerate() if thread.name == "driver"]
    go.set()
    for thread in threads:
        thread.join()
    assert len(calls) == 4
    assert Deadline(60.0)(lambda: 3) == 3
    assert all(thread.daemon for thread in threads)
