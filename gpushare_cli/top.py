"""`gpushare top`: what the dashboard shows, in a terminal; once where the output is no terminal."""

import shutil
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from gpushare.runtime.clock import Clock
from gpushare_cli import bars, console
from gpushare_cli.arguments import Call, Command, argument, switch, told_to_end
from gpushare_cli.console import FAILED, OK, Line, Look, Streams
from gpushare_cli.dashboard import command
from gpushare_cli.dashboard.command import Scoped
from gpushare_cli.dashboard.picture import Live, Picture

_LOOK_S: Final = 0.5
_ONCE_S: Final = 120.0  # for which a program that wants it once waits


@dataclass(frozen=True, slots=True, kw_only=True)
class Options(Scoped):
    node: Sequence[str] = argument(metavar="NODE", nargs="*", default=(), help="only these nodes, with their pods")
    once: bool = switch("--once", what="print it once")


def follow(live: Live, nodes: Sequence[str], look: Look, clock: Clock, ended: Callable[[], bool]) -> int:
    stop, drawn = threading.Event(), None
    live.start(stop)
    try:
        with console.screen(sys.stdout, look) as show:
            while not ended():
                picture, (width, height) = live.look(), shutil.get_terminal_size()
                now = width, height, picture.version if picture else live.watched.problem
                if now != drawn:
                    told = _notes(picture) if picture else ("Reading the cluster ...", live.watched.problem)
                    page = [*([(text, "")] for text in told if text), *(lines(picture, nodes, look) if picture else ())]
                    show(fitted(page, height), width)
                    drawn = now
                clock.wait(stop, _LOOK_S)
    finally:
        stop.set()
    return OK


def once(
    live: Live, nodes: Sequence[str], look: Look, streams: Streams, clock: Clock, ended: Callable[[], bool]
) -> int:
    stop = threading.Event()
    live.start(stop)
    until = clock.monotonic() + _ONCE_S
    while not (live.asked.wait(_LOOK_S) or ended() or clock.monotonic() >= until):
        pass
    stop.set()
    picture = live.picture
    if picture is None:
        why = live.watched.problem or f"the API server has not answered all questions for {_ONCE_S:.0f} s"
        return FAILED if ended() else streams.error(why)
    streams.note(*_notes(picture))
    if not picture.nodes:
        streams.err.write("no GPU of a shared node may be seen; is the device plugin running?\n")
        return FAILED
    unknown = sorted({*nodes} - picture.nodes.keys())
    streams.note(*(f"node {name} is not among those that share GPUs" for name in unknown))
    # To the terminal itself, which takes its commands; all text that is no command is escaped before.
    sys.stdout.write(console.printed(lines(picture, nodes, look), look))
    return OK


def lines(picture: Picture, nodes: Sequence[str], look: Look) -> Iterator[Line]:
    shown = [view for name, view in sorted(picture.nodes.items()) if not nodes or name in nodes]
    yield from bars.head(picture.overview)
    yield from bars.of_waiting(picture.waiting, picture.overview.totals.waiting)
    one, other, *free = bars.MARKS[look.unicode]
    marks = one, other, *(free if picture.overview.complete else bars.UNSURE)
    yield from bars.of_nodes(shown, marks, with_pods=bool(nodes))
    yield bars.legend(marks)


def _notes(picture: Picture) -> Iterator[str]:
    return filter(None, (picture.overview.scope, *picture.overview.notes))


def fitted(found: Sequence[Line], height: int) -> Sequence[Line]:
    if len(found) <= height:
        return found
    left_out = len(found) - height + 1
    return [*found[: height - 1], [(f"{left_out} more lines: name a NODE, or gpushare top --once | less", "")]]


def _run(call: Call) -> int:
    options = call.options(Options)
    live, look = command.of_call(call, options), Look.of_output(call.streams.width)
    with told_to_end() as ended:
        if console.obeys() and not options.once:
            return follow(live, options.node, look, call.clock, ended)
        return once(live, options.node, look, call.streams, call.clock, ended)


COMMAND: Final = Command(
    name="top",
    what="all GPUs as bars in the terminal, live",
    exit_codes="done; 1 the cluster cannot be read or shares no GPU; 2 wrong arguments.",
    examples=(
        ("All GPUs, as they change, until Ctrl-C", "gpushare top"),
        ("Two nodes, once", "gpushare top --once node-a node-b"),
    ),
    description="Show every GPU as a bar with its pods, and what waits, as it changes; once if the output is no"
    " terminal.",
    options=Options,
    run=_run,
)
