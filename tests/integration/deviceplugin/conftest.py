"""Short directories, because a unix socket's path has room for 107 bytes."""

import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from testing.fakes.kubelet import FakeKubelet, FakePodResources


@pytest.fixture
def directory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="gs") as path:
        yield Path(path)


@pytest.fixture
def kubelet(directory: Path) -> Iterator[FakeKubelet]:
    fake = FakeKubelet(directory)
    fake.start()
    yield fake
    fake.stop()


@pytest.fixture
def pod_resources() -> Iterator[FakePodResources]:
    with tempfile.TemporaryDirectory(prefix="gs") as path:
        fake = FakePodResources(Path(path) / "kubelet.sock")
        yield fake
        fake.stop()


@pytest.fixture(autouse=True)
def no_thread_outlives_its_test() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    for thread in set(threading.enumerate()) - before:
        thread.join()
        assert not thread.is_alive(), f"thread {thread.name} is left"
