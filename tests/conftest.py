"""What every test may rely on: nothing that an earlier one changed in this process."""

import logging
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, Phase, settings

from testing.nvml.stub import nvml_binding, nvml_library, nvml_stub

__all__ = ["nvml_binding", "nvml_library", "nvml_stub"]
"""Fixtures for all tests."""
pytest_plugins = ("testing.skips",)

# A busy machine is slow, and that is no fault of the code. A failure prints how to have it again.
settings.register_profile("any", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow])
# For `make mutants`: the same examples in every run, and nothing after the first that fails.
settings.register_profile(
    "mutants",
    parent=settings.get_profile("any"),
    derandomize=True,
    database=None,
    phases=[Phase.explicit, Phase.generate],
)
settings.load_profile("any")


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    """Programs that are run inside of a test configure the root logger."""
    root = logging.getLogger()
    level, handlers = root.level, list(root.handlers)
    yield
    root.setLevel(level)
    root.handlers = handlers
