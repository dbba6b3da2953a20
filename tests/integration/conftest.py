import threading
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def no_thread_outlives_its_test() -> Iterator[None]:
    """One that goes on writes into the log and takes the processor of the tests after it."""
    before = set(threading.enumerate())
    yield
    for thread in set(threading.enumerate()) - before:
        thread.join()
