"""Short directories, because a unix socket's path has room for 107 bytes."""

import tempfile
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
