"""What every test may rely on: nothing that an earlier one changed in this process."""

import faulthandler
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings

from testing.nvml.stub import nvml_binding, nvml_library, nvml_stub

__all__ = ["nvml_binding", "nvml_library", "nvml_stub"]
"""Fixtures for all tests."""
pytest_plugins = ("testing.skips",)

UNIT = Path(__file__).parent / "unit"

# A busy machine is slow, and that is no fault of the code. A failure prints how to have it again. With CI=true,
# Hypothesis itself makes every run's examples the same.
CI = settings(deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", CI)
settings.register_profile("quick", CI, max_examples=10)
settings.register_profile("release", CI, max_examples=1000)
# For `make mutants`: the same examples in every run, and nothing after the first that fails.
settings.register_profile(
    "mutants", CI, max_examples=200, derandomize=True, database=None, phases=[Phase.explicit, Phase.generate]
)
settings.load_profile("ci")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Measure coverage in unit tests only: they reach every branch, and the laws take twice the time with it."""
    for item in items:
        if not item.path.is_relative_to(UNIT):
            item.add_marker("no_cover")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown() -> Iterator[None]:
    """Of a test that has failed, pytest-timeout no longer ends a wait without end: its process ends instead."""
    faulthandler.dump_traceback_later(600, exit=True)
    yield
    faulthandler.cancel_dump_traceback_later()


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    """Programs that are run inside of a test configure the root logger."""
    root = logging.getLogger()
    level, handlers = root.level, list(root.handlers)
    yield
    root.setLevel(level)
    root.handlers = handlers
