"""`gpushare top`: what the dashboard shows, in a terminal; once where the output is no terminal."""

import argparse
import shutil
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from gpushare.runtime.clock import Clock
from gpushare_cli import arguments, bars
from gpushare_cli.arguments import Call, Command, told_to_end
from gpushare_cli.bars import Look
from gpushare_cli.console import FAILED, OK, Streams, Writer
from gpushare_cli.dashboard import command
from gpushare_cli.dashboard.command import Scoped
from gpushare_cli.dashboard.feed import Picture
from gpushare_cli.dashboard.live import Live

_OPEN: Final = "\x1b[?1049h\x1b[?25l"
"""The terminal's other screen, without a cursor; what stood there before comes back in the end."""
_CLOSE: Final = "\x1b[?25h\x1b[?1049l"
_LOOK_S: Final = 0.5
"""How late a signal may be noticed."""
_ONCE_S: Final = 120.0
"""For which a program that wants it once waits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options(Scoped):
    """The arguments."""

    node: Sequence[str] = ()
    once: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Screen:
    """Where it is drawn."""

    out: Writer
    """Takes the terminal's commands; all text that is no command has been escaped before."""
    look: Look
    live: bool
    """It is a terminal."""
    size: Callable[[], tuple[int, int]]
    """Columns and lines that fit now."""


def add(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Show every GPU as a bar with its pods, and what waits, as it changes; once if the output is no terminal."
    )
    parser.add_argument("node", metavar="NODE", nargs="*", help="only these nodes, with their pods")
    parser.add_argument("--once", action="store_true", help="print it once")
    command.add_scope(parser)
    arguments.add_cluster(parser)


def run(
    live: Live,
    streams: Streams,
    options: Options,
    screen: Screen,
    clock: Clock,
    ended: Callable[[], bool],
) -> int:
    """Draw it until it is told to end, or once. The exit code.

    Args:
        live: the picture, which has not begun.
        streams: for notes.
        options: the arguments.
        screen: where it is drawn.
        clock: of this machine.
        ended: whether it was told to end.
    """
    stop = threading.Event()
    live.start(stop)
    try:
        if screen.live and not options.once:
            return _follow(live, options, screen, ended)
        return _once(live, streams, options, screen, clock, ended)
    finally:
        stop.set()


def _once(
    live: Live, streams: Streams, options: Options, screen: Screen, clock: Clock, ended: Callable[[], bool]
) -> int:
    until = clock.monotonic() + _ONCE_S
    while not (live.asked.wait(_LOOK_S) or ended() or clock.monotonic() >= until):
        pass
    picture = live.feed.picture
    if picture is None:
        why = live.problem or f"the API server has not answered all questions for {_ONCE_S:.0f} s"
        return FAILED if ended() else streams.error(why)
    for note in filter(None, (picture.overview.scope, *picture.overview.notes)):
        streams.note(note)
    if not picture.nodes:
        streams.err.write("no GPU of a shared node may be seen; is the device plugin running?\n")
        return FAILED
    for name in sorted({*options.node} - picture.nodes.keys()):
        streams.note(f"node {name} is not among those that share GPUs")
    screen.out.write("".join(lines(picture, options.node, screen.look)))
    return OK


def lines(picture: Picture, nodes: Sequence[str], look: Look) -> Iterator[str]:
    """All lines; with the pods of nodes that are named."""
    shown = [view for name, view in sorted(picture.nodes.items()) if not nodes or name in nodes]
    yield from bars.head(picture.overview, look)
    yield from bars.of_waiting(picture.waiting, picture.overview.totals.waiting, look)
    yield from bars.of_nodes(shown, look, with_pods=bool(nodes))
    yield bars.legend(look)


def fitted(found: Sequence[str], height: int, look: Look) -> list[str]:
    """As many lines as fit, and how many there are beside them."""
    if len(found) <= height:
        return list(found)
    left_out = len(found) - height + 1
    return [*found[: height - 1], look.line((f"{left_out} more lines: name a NODE, or gpushare top --once | less", ""))]


def _follow(live: Live, options: Options, screen: Screen, ended: Callable[[], bool]) -> int:
    screen.out.write(_OPEN)
    version = -1
    drawn: object = None
    try:
        while not ended():
            latest = live.feed.wait(version, _LOOK_S)
            about = screen.size(), "" if live.feed.picture else live.problem
            if (latest, about) == (version, drawn):
                continue
            version, drawn = latest, about
            (width, height), problem = about
            look = replace(screen.look, width=width)
            rows = [
                row.replace("\n", "\x1b[K")
                for row in fitted(_page(live.feed.picture, problem, options, look), height, look)
            ]
            screen.out.write("\x1b[H" + "\r\n".join(rows) + "\x1b[J")
            screen.out.flush()
    finally:
        screen.out.write(_CLOSE)
        screen.out.flush()
    return OK


def _page(picture: Picture | None, problem: str, options: Options, look: Look) -> list[str]:
    if picture is None:
        return [look.line((text, "")) for text in ("Reading the cluster ...", problem) if text]
    notes = filter(None, (picture.overview.scope, *picture.overview.notes))
    return [*lines(picture, options.node, look), *(look.line((note, "")) for note in notes)]


def _run(call: Call) -> int:
    options = call.options(Options)
    live = command.of_call(call, options)
    screen = Screen(
        out=sys.stdout, look=Look.of_output(call.streams.width), live=bars.obeys(), size=shutil.get_terminal_size
    )
    with told_to_end() as ended:
        return run(live, call.streams, options, screen, call.clock, ended)


COMMAND: Final = Command(
    name="top",
    what="all GPUs as bars in the terminal, live",
    exit_codes="done; 1 the cluster cannot be read or shares no GPU; 2 wrong arguments.",
    examples=(
        ("All GPUs, as they change, until Ctrl-C", "gpushare top"),
        ("Two nodes, once", "gpushare top --once node-a node-b"),
    ),
    add=add,
    run=_run,
)
