from collections.abc import Iterator
from pathlib import Path

import pytest

from testing.webhook import Server, running


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with running(tmp_path) as made:
        yield made
