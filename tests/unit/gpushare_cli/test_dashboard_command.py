"""What `gpushare dashboard` says in the terminal, and how it opens a browser."""

import io
import stat
import threading
import webbrowser
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast
from urllib.parse import unquote, urlsplit

import pytest

from gpushare.runtime.clock import SystemClock
from gpushare_cli import top
from gpushare_cli.commands import Streams
from gpushare_cli.dashboard import browser, command
from gpushare_cli.dashboard.live import Live
from gpushare_cli.dashboard.state import Changes, State
from testing import clusters

ADDRESS = "http://127.0.0.1:8127/#key=secret&x"


class Troubled:
    """A picture whose cluster cannot be read for a while."""

    def __init__(self, *problems: str) -> None:
        self._problems: Iterator[str] = iter(problems)
        self.ended = False

    @property
    def problem(self) -> str:
        found = next(self._problems, None)
        self.ended = found is None
        return found or ""


def test_that_the_cluster_cannot_be_read_is_told_once_and_so_is_the_end_of_that() -> None:
    live, err, stop = (
        Troubled("", "pods cannot be read", "pods cannot be read", "", ""),
        io.StringIO(),
        threading.Event(),
    )
    stop.set()  # so that nothing waits
    streams = Streams(out=err, err=err)
    command._follow(cast("Live", live), streams, SystemClock(), stop, lambda: live.ended)
    assert err.getvalue() == "note: pods cannot be read\nnote: the cluster can be read again\n"


def test_a_browser_gets_a_file_because_everyone_may_read_its_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    called = threading.Event()

    def open_it(uri: str) -> None:
        opened.append(uri)
        called.set()

    monkeypatch.setattr(webbrowser, "get", lambda: SimpleNamespace(open=open_it))
    with browser.showing(ADDRESS) as shown:
        assert shown
        called.wait()
        [uri] = opened
        assert "secret" not in uri
        file = Path(unquote(urlsplit(uri).path))
        assert 'content="0; url=http://127.0.0.1:8127/#key=secret&amp;x"' in file.read_text()
        assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert not file.parent.exists()


def test_a_machine_without_a_browser_is_no_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> None:
        raise webbrowser.Error("could not locate runnable browser")

    monkeypatch.setattr(webbrowser, "get", none)
    with browser.showing(ADDRESS) as shown:
        assert not shown


@pytest.fixture
def live() -> Iterator[Live]:
    """Has read the cluster, and does nothing by itself."""
    stop = threading.Event()
    found = command.picture(clusters.small(), top.Options(), lambda: "default", SystemClock())
    for each in found._reflectors.values():
        threading.Thread(target=each.run, args=(stop,), daemon=True).start()
    while not found.is_read:
        stop.wait(0.01)
    yield found
    stop.set()


def used(live: Live) -> int | None:
    assert live.feed.picture is not None
    return live.feed.picture.overview.totals.used_mib


def test_use_that_comes_while_a_picture_is_drawn_is_in_the_next_one(
    live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    live.refresh()
    take = State.take_changes

    def take_and_be_overtaken(state: State) -> Changes:
        changes = take(state)
        live.ask_use()
        return changes

    with monkeypatch.context() as overtaken:
        overtaken.setattr(State, "take_changes", take_and_be_overtaken)
        live.refresh()
    assert (live.asked.is_set(), used(live)) == (False, None)
    live.refresh()
    assert (live.asked.is_set(), used(live)) == (True, 11 * 1024)


def test_use_is_not_said_to_be_known_before_its_nodes_are_drawn_again(
    live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    live.refresh()
    mark = State.mark

    def draw_and_mark(state: State, names: list[str]) -> None:
        live.refresh()
        mark(state, names)

    with monkeypatch.context() as overtaking:
        overtaking.setattr(State, "mark", draw_and_mark)
        live.ask_use()
    assert (live.asked.is_set(), used(live)) == (False, None)
