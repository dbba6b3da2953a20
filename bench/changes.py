"""Pods that come to nodes and go while something is measured."""

import contextlib
import itertools
import threading
from collections.abc import Callable, Iterator

A_SECOND = 20
TEXT = f"{A_SECOND} pods a second bound and deleted"


@contextlib.contextmanager
def going_on(first: int, create: Callable[[int], str], delete: Callable[[str], object]) -> Iterator[None]:
    """One pod after another, each from its number on to its deletion; `create` says its name."""
    stop = threading.Event()

    def run() -> None:
        for number in itertools.count(first):
            name = create(number)
            if stop.wait(1 / A_SECOND):
                return
            delete(name)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
