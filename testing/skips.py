"""Lists a run's skips by reason; with CI=true a skip that nothing declares fails the run.

A pytest plugin. What is missing on one machine only is skipped with `pytest.skip`: CI has it, so there the skip is an
error. What CI cannot have either is declared beside the test, by `expected` or `older`.
"""

import os
from collections import Counter
from typing import Any, Final, NoReturn

import pytest

EXPECTED: Final = "expected: "
"""Begins the reason of a skip that is declared."""


def expected(reason: str) -> NoReturn:
    """Skip the test, in CI too."""
    __tracebackhide__ = True  # the report shows where this is called
    pytest.skip(EXPECTED + reason)


def older(found: Any, least: Any, reason: str) -> None:
    """Skip the test, in CI too, if a version is older than the first of which it holds."""
    __tracebackhide__ = True
    if found < least:
        expected(f"{found} is older than {least}: {reason}")


def pytest_configure(config: pytest.Config) -> None:
    """Collect where all reports arrive: workers of xdist send theirs."""
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Skips(in_ci=bool(os.environ.get("CI"))))


class Skips:
    """The skips of one run."""

    def __init__(self, *, in_ci: bool) -> None:
        self._in_ci = in_ci
        self._reasons: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.skipped and not hasattr(report, "wasxfail"):
            self._add(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.skipped:
            self._add(report)

    def _add(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        self._reasons[report.nodeid] = reason.removeprefix("Skipped: ")

    def _unexpected(self) -> list[str]:
        return [nodeid for nodeid, reason in self._reasons.items() if not reason.startswith(EXPECTED)]

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        if (
            self._in_ci
            and self._unexpected()
            and exitstatus in {pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED}
        ):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if not self._reasons:
            return
        terminalreporter.section("skips")
        for reason, count in sorted(Counter(self._reasons.values()).items()):
            terminalreporter.line(f"{count:5}  {reason}")
        if self._in_ci:
            for nodeid in sorted(self._unexpected()):
                terminalreporter.line(f"UNEXPECTED SKIP IN CI: {nodeid}", red=True)
