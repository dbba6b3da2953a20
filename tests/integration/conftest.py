import threading
import time
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def no_thread_outlives_its_test() -> Iterator[None]:
    """One that goes on writes into the log and takes the processor of the tests after it; pytest ends the wait."""
    before = set(threading.enumerate())
    yield
    while set(threading.enumerate()) - before:  # one that is being started cannot be joined
        time.sleep(0.01)
