"""What a command writes: streams, exit codes, tables and coloured lines. The only door to rich.

What tenants write is text here, which a terminal shows and does not obey. It is escaped, also before rich sees it,
which knows fewer of a terminal's commands; no string is ever read as rich's markup.
"""

import io
import re
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import IO, TYPE_CHECKING, Any, Final, Protocol

from gpushare.errors import GpuShareError, SettingsError, UnknownGpuError, WireError
from gpushare.kube import api as kube
from gpushare.model.gpu import MAX_GPUS
from gpushare.runtime.options import environment
from gpushare_cli import yamls

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

OK: Final = 0
FAILED: Final = 1  # the cluster cannot be read, or it has nothing to show
USAGE: Final = 2
BAD: Final = 3  # the answer is a bad one: a pod fits nowhere, or errors were found

UNLIMITED: Final = sys.maxsize  # the width of what is no terminal
HIDDEN: Final = "\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069"
"""Inside a class of a regular expression: controls beyond ASCII, and characters that change the direction of text."""
_COMMANDS: Final = re.compile(f"[\x00-\x08\x0b-\x1f{HIDDEN}]")  # controls but tab and newline, and what is hidden
_GAP: Final = 2
_INDENT: Final = 4
_ENOUGH: Final = 40  # characters in which prose can still be read
_COMMAND: Final = re.compile(r"\b(kubectl|gpushare (explain|scheduler-config)) .*?(?=[;,]? \(|[;,] |$)")
_UNBROKEN: Final = "\N{NO-BREAK SPACE}"
WIDTH: Final = 80
_CUT: Final = {True: "…", False: ">"}
_ENDS: Final = re.compile("[\t\n]+")
_EXPLAINED: Final[Mapping[type[kube.KubeError], str]] = {  # what keeps a command from an answer
    kube.UnreachableError: "cannot reach the API server: {}",
    kube.UnauthorizedError: "the API server does not accept the credentials: {}; log in again",
    kube.ForbiddenError: "not allowed: {}; listing nodes and pods of all namespaces is needed",
}

Span = tuple[str, str]  # text, and its style in rich's words; empty for none
Line = Sequence[Span]


class NoClusterError(GpuShareError):
    """There is no usable kubeconfig."""


class NotAllowedError(GpuShareError):
    """The API server does not let this user do it; says which right is needed."""


class Writer(Protocol):
    def write(self, text: str, /) -> int: ...

    def flush(self) -> None: ...


class Printable:
    r"""Writes control characters as `\u001b`, which JSON reads as the same.

    Kubernetes checks no schedulerName, and no value of an annotation: a tenant could write to an administrator's
    terminal otherwise.
    """

    def __init__(self, stream: Writer) -> None:
        self._stream = stream

    def write(self, text: str, /) -> int:
        return self._stream.write(printable(text))

    def flush(self) -> None:
        self._stream.flush()


@dataclass(frozen=True, slots=True, kw_only=True)
class Streams:
    """Where a command writes: answers to `out`, everything else to `err`."""

    out: Writer
    err: Writer
    width: int = UNLIMITED

    def answer(self, output: str, value: Callable[[], Any], table: Callable[[], str]) -> None:
        if output == "table":
            self.out.write(table())
        else:
            self.out.write(yamls.dump_plain(value()) if output == "yaml" else yamls.dump_json(value()))

    def note(self, *texts: str) -> None:
        """A line for each; none for what is empty."""
        for text in filter(None, texts):
            self.progress(f"note: {text}")

    def progress(self, text: str) -> None:
        self.err.write(f"{one_line(text)}\n")
        self.err.flush()

    def error(self, text: object) -> int:
        """Say why there is no answer. The exit code."""
        self.err.write(f"error: {one_line(str(text))}\n")
        return FAILED


def answered(streams: Streams, command: Callable[[], int]) -> int:
    """Run a command; what keeps it from an answer becomes a message. The exit code."""
    try:
        return command()
    except SettingsError as error:
        streams.error(error)
        return USAGE
    except kube.KubeError as error:
        return streams.error(_EXPLAINED.get(type(error), "the API server answered: {}").format(error))
    except (NoClusterError, NotAllowedError, UnknownGpuError, WireError) as error:
        return streams.error(error)


def printable(text: str) -> str:
    return _COMMANDS.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def one_line(text: str) -> str:
    """The same text with blanks for the ends of its lines and for tabs, so that it looks like no other line or cell."""
    return " ".join(text.split())


def count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def gpu_columns(indices: Iterable[int]) -> Sequence[int]:
    """The indices that are columns: every GPU up to the highest, as a lost one leaves a gap, and the MIG instances."""
    found = set(indices)
    count = max((index + 1 for index in found if index < MAX_GPUS), default=0)
    return [*range(count), *sorted(index for index in found if index >= MAX_GPUS)]


def table(rows: Sequence[Sequence[str]], width: int) -> str:
    """Lines for all rows, which have equally many cells; the last one of each is prose, which is folded.

    Nothing is cut. What does not fit beside the other columns goes to an indented line of its own.
    """
    cells = [[one_line(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return "".join(f"{line.rstrip()}\n" for row in cells for line in _lines(row, widths, width))


def _lines(row: Sequence[str], widths: Sequence[int], width: int) -> list[str]:
    lines, start = [""], 0
    *columns, prose = row
    for cell, wide in zip(columns, widths, strict=False):
        if start and start + wide > width:
            lines.append("")
            start = _INDENT
        lines[-1] = lines[-1].ljust(start) + cell
        start += wide + _GAP
    if not prose:
        return lines
    if len(prose) > width - start and width - start < max(_ENOUGH, *map(len, prose.split())):
        lines.append("")
        start = _INDENT
    first, *rest = folded(prose, width - start)
    return [*lines[:-1], lines[-1].ljust(start) + first, *(" " * start + line for line in rest)]


def folded(prose: str, width: int) -> list[str]:
    """Lines of prose. A command stays on one, where it can be copied from."""
    whole = _COMMAND.sub(lambda found: found[0].replace(" ", _UNBROKEN), prose)
    lines = textwrap.wrap(whole, max(width, _ENOUGH), break_long_words=False, break_on_hyphens=False)
    return [line.replace(_UNBROKEN, " ") for line in lines]


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:  # what the reader's terminal can show
    colour: bool = False
    unicode: bool = False
    width: int = WIDTH

    @classmethod
    def of_output(cls, width: int) -> "Look":
        """What standard output can show: https://no-color.org, and no colours where it is no terminal."""
        utf8 = (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
        return cls(colour=obeys() and not environment("NO_COLOR"), unicode=utf8, width=width)


def obeys() -> bool:
    """Whether standard output is a terminal that takes commands."""
    return sys.stdout.isatty() and environment("TERM", "dumb") != "dumb"


def printed(lines: Iterable[Line], look: Look) -> str:
    out = io.StringIO()
    writer = _console(out, look)
    for line in lines:
        writer.print(_text(line, look), soft_wrap=True)
    return out.getvalue()


@contextmanager
def screen(out: IO[str], look: Look) -> Iterator[Callable[[Iterable[Line], int], None]]:
    """The terminal's other screen until the end; what it yields shows lines in so many columns."""
    writer = _console(out, look)
    from rich.live import Live
    from rich.text import Text

    live = Live(console=writer, screen=True, auto_refresh=False, redirect_stdout=False, redirect_stderr=False)

    def show(lines: Iterable[Line], width: int) -> None:
        texts = (_text(line, replace(look, width=width)) for line in lines)
        live.update(Text("\n", no_wrap=True).join(texts), refresh=True)

    with live:
        yield show


def _console(out: IO[str], look: Look) -> "Console":
    try:
        from rich.console import Console  # late: the commands are also in images that lack it
    except ModuleNotFoundError as error:
        raise SettingsError("bars need the library rich; run: pip install 'gpushare[cli]'") from error
    return Console(
        file=out,
        color_system="standard" if look.colour else None,
        no_color=not look.colour,
        force_terminal=True,
        legacy_windows=False,
    )


def _text(line: Line, look: Look) -> "Text":
    from rich.text import Text

    text = Text.assemble(*((printable(_ENDS.sub(" ", words)), style) for words, style in line))
    text.rstrip()
    if text.cell_len > look.width:
        text.truncate(look.width - 1)
        text.rstrip()
        text.append(_CUT[look.unicode])
    return text
