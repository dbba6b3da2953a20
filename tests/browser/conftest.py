"""A browser, and dashboards of clusters in memory for it."""

import contextlib
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from gpushare.kube.api import KubeApi
from gpushare.runtime.clock import SystemClock
from gpushare_cli.dashboard import command
from gpushare_cli.dashboard.command import Options, Site
from gpushare_cli.dashboard.picture import Live
from testing.fakes.kube import FakeKube

PROGRAMS: Final = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
KEY: Final = "key-of-the-test"
PATIENCE_MS: Final = 100_000
"""No limit of this test's own: pytest ends one that hangs."""


@dataclass(frozen=True)
class Dashboard:
    """A page that is served."""

    live: Live
    port: int

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}/#key={KEY}"


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    program = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, PROGRAMS)), None)
    assert program, "no Chromium; on Debian: apt-get install chromium-headless-shell, elsewhere set CHROMIUM"
    arguments = ["--no-sandbox", "--disable-dev-shm-usage"]
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=program, args=arguments)
        yield started
        started.close()


@pytest.fixture
def page(browser: Browser, dashboard: Callable[..., Dashboard]) -> Iterator[Page]:
    """With nothing kept from another test. Whatever the page complains about is a failure.

    It closes before the dashboard that it asks again and again: a page without its server complains.
    """
    context = browser.new_context(
        viewport={"width": 1280, "height": 800}, locale="en-GB", timezone_id="UTC", color_scheme="light"
    )
    context.set_default_timeout(PATIENCE_MS)
    made = context.new_page()
    complaints: list[str] = []
    made.on("pageerror", lambda error: complaints.append(str(error)))
    made.on("console", lambda said: complaints.append(said.text) if said.type in {"error", "warning"} else None)
    made.complaints = complaints  # type: ignore[attr-defined] # tests that expect some take them
    yield made
    context.close()
    assert complaints == []


@contextlib.contextmanager
def serving(live: Live, port: int = 0, **site: Any) -> Iterator[Dashboard]:
    """Serve a picture."""
    given = {"picture": command.keyed(KEY, live.page), **site}
    with command.serving(port, Site(assets=command.assets(), **given)) as found:
        yield Dashboard(live, found)


@pytest.fixture
def dashboard() -> Iterator[Callable[..., Dashboard]]:
    """Begins to serve the dashboard of a cluster."""
    with contextlib.ExitStack() as opened:

        def begin(api: KubeApi, **options: Any) -> Dashboard:
            live = command.of_cluster(api, Options(**options), lambda: "research", SystemClock(), "demo")
            stop = threading.Event()
            opened.callback(stop.set)
            if isinstance(api, FakeKube):
                opened.callback(api.close)
            live.start(stop)
            return opened.enter_context(serving(live))

        yield begin


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """Where screenshots go: into the documents, if SCREENSHOTS names their directory."""
    found = Path(os.environ.get("SCREENSHOTS") or tmp_path)
    found.mkdir(parents=True, exist_ok=True)
    return found
