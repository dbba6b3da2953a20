"""A driver that hangs holds up neither a start nor the end of the process, and few threads."""

import threading
from contextlib import suppress

import pytest

from deviceplugin.nvml.binding import Deadline, SilentDriverError


def test_a_call_that_hangs_is_given_up_and_none_is_made_until_it_comes_back() -> None:
    within, go, calls = Deadline(0.01), threading.Event(), list[int]()

    def hang() -> bool:
        calls.append(1)
        return go.wait()

    for _ in range(3):
        with pytest.raises(SilentDriverError, match=r"has not answered in 0\.01 s; see the node's kernel log"):
            within(hang)
    threads = [thread for thread in threading.enumerate() if thread.name == "driver"]
    go.set()
    for thread in threads:
        thread.join()
    assert len(calls) == len(threads) == 1
    assert all(thread.daemon for thread in threads)
    assert answer(within) == 3


def test_one_call_is_made_after_the_other() -> None:
    within, begun, go, log = Deadline(60.0), threading.Event(), threading.Event(), list[str]()

    def first() -> None:
        begun.set()
        go.wait()
        log.append("first")

    def follow() -> None:
        go.set()
        within(lambda: log.append("second"))

    before = threading.Thread(target=within, args=(first,))
    after = threading.Thread(target=follow)
    before.start()
    begun.wait()
    after.start()
    for thread in (before, after):
        thread.join()
    assert log == ["first", "second"]


def answer(within: Deadline) -> int:
    """Of a call that comes back, however slow this machine is."""
    while True:
        with suppress(SilentDriverError):
            return within(lambda: 3)
