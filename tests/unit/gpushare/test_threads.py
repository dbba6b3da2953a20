"""Threads do things at the same time, wait for the next one, and leave in the end."""

import threading
from queue import SimpleQueue

from gpushare.runtime.threads import Threads


class Works:
    """Things to do that end when the test says so."""

    def __init__(self) -> None:
        self.by: SimpleQueue[threading.Thread] = SimpleQueue()
        self.may_end = threading.Semaphore(0)
        self.threads = Threads[str](self._work)

    def _work(self, _: str) -> None:
        self.by.put(threading.current_thread())
        self.may_end.acquire()

    def settle(self, count: int) -> None:
        """Until so many threads wait."""
        while self.threads.waiting != count:
            threading.Event().wait(0.001)


def test_a_thread_does_one_thing_after_the_other() -> None:
    works = Works()
    works.threads.give("a")
    works.may_end.release()
    first = works.by.get()
    works.settle(1)
    works.threads.give("b")
    works.may_end.release()
    assert works.by.get() is first
    works.settle(1)
    works.threads.end()
    first.join()


def test_what_is_given_never_waits_for_another() -> None:
    works = Works()
    for name in "abc":
        works.threads.give(name)
    found = {works.by.get() for _ in range(3)}
    assert len(found) == 3
    works.threads.end()
    works.may_end.release(3)
    for thread in found:
        thread.join()


def test_only_so_many_threads_wait() -> None:
    works = Works()
    works.threads.most = 1
    for name in "ab":
        works.threads.give(name)
    found = [works.by.get() for _ in range(2)]
    works.may_end.release(2)
    while all(thread.is_alive() for thread in found):  # one has nothing to wait for
        threading.Event().wait(0.001)
    works.settle(1)
    works.threads.end()
    for thread in found:
        thread.join()
