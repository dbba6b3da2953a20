"""When the picture has what is used: `gpushare top --once` prints no picture before that."""

import threading
from collections.abc import Iterator

import pytest

from gpushare.runtime.clock import SystemClock
from gpushare_cli import top
from gpushare_cli.dashboard import command
from gpushare_cli.dashboard.live import Live
from gpushare_cli.dashboard.state import Changes, State
from testing import clusters


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
