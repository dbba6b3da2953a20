"""Lines of coloured text, as a string or on a screen of their own. The only door to rich.

What tenants write is text here and nothing else: it is escaped before rich sees it, which knows fewer of a terminal's
commands, and no string is ever read as rich's markup.
"""

import io
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import IO, TYPE_CHECKING, Final

from gpushare.errors import SettingsError
from gpushare.runtime.options import environment
from gpushare_cli import console

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

WIDTH: Final = 80
_CUT: Final = {True: "…", False: ">"}
_ENDS: Final = re.compile("[\t\n]+")

Span = tuple[str, str]  # text, and its style in rich's words; empty for none
Line = Sequence[Span]


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

    text = Text.assemble(*((console.printable(_ENDS.sub(" ", words)), style) for words, style in line))
    text.rstrip()
    if text.cell_len > look.width:
        text.truncate(look.width - 1)
        text.rstrip()
        text.append(_CUT[look.unicode])
    return text
