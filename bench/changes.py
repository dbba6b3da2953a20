"""Pods that come to nodes and go while something is measured."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

A_SECOND = 20
TEXT = f"{A_SECOND} pods a second bound and deleted"


@contextlib.contextmanager
def going_on(numbers: Iterator[int], create: Callable[[int], str], delete: Callable[[str], object]) -> Iterator[None]:
    """One pod after another, each from its number on to its deletion; `create` says its name.

    What fails there is raised in the end: a cluster in which nothing changed must not be taken for one that did.
    """
    stop = threading.Event()

    def run() -> None:
        while not stop.is_set():
            name = create(next(numbers))
            stop.wait(1 / A_SECOND)
            delete(name)

    with ThreadPoolExecutor(max_workers=1) as pool:
        changing = pool.submit(run)
        try:
            yield
        finally:
            stop.set()
            changing.result()
