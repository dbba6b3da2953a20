"""`gpushare completion`: what a shell needs to complete commands and flags. The only door to shtab."""

import argparse
from typing import Final

from gpushare.errors import SettingsError
from gpushare_cli.console import OK, Streams

SHELLS: Final = ("bash", "zsh", "fish")
EXIT_CODES: Final = "Exit codes: 0 done; 2 wrong arguments."
_FILES: Final = frozenset({"FILE", "FILE.svg"})


def add(parser: argparse.ArgumentParser) -> None:
    """Describe the arguments."""
    parser.description = "Print a script that completes the commands and flags of gpushare in a shell."
    parser.add_argument("shell", choices=SHELLS, metavar="|".join(SHELLS), help="for which shell")


def run(streams: Streams, parser: argparse.ArgumentParser, shell: str) -> int:
    """Print the script for a shell. The exit code.

    Args:
        streams: where to.
        parser: of all commands.
        shell: one of `SHELLS`.

    Raises:
        SettingsError: the library that writes it is not installed.
    """
    try:
        import shtab  # late: the commands are also in images that lack it
    except ModuleNotFoundError as error:
        raise SettingsError("completion needs the library shtab; run: pip install 'gpushare[cli]'") from error
    _complete(parser, shtab.FILE)
    streams.out.write(f"{shtab.complete(parser, shell)}\n")
    return OK


def _complete(parser: argparse.ArgumentParser, files: object) -> None:
    """Have values that are files completed as such, and those of which there are a few offered."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for each in action.choices.values():
                _complete(each, files)
        elif action.metavar in _FILES:
            action.complete = files  # type: ignore[attr-defined] # where shtab looks for it
        elif action.choices is None and isinstance(action.metavar, str) and "|" in action.metavar:
            action.choices = action.metavar.split("|")  # of `arguments.add_choice`
