"""Entry points of `gpushare` and of the kubectl plug-in `kubectl inspect gpushare`.

Exit codes: 0 done; 1 the cluster or the input cannot be read, or no GPU is shared; 2 the command line cannot be
understood; 3, of explain, simulate and doctor, that the answer is a bad one.
"""

import argparse
import os
import shutil
import sys
from collections.abc import Sequence
from typing import Final

from gpushare.runtime.clock import SystemClock
from gpushare_cli import arguments, bundle, console, convert, inspect_command, scheduler_config, top
from gpushare_cli.arguments import Call, Command
from gpushare_cli.console import Printable, Streams
from gpushare_cli.dashboard import command as dashboard
from gpushare_cli.doctor import command as doctor
from gpushare_cli.evict import defrag, drain
from gpushare_cli.explain import command as explain
from gpushare_cli.simulate import command as simulate

COMMANDS: Final[Sequence[Command]] = (
    inspect_command.COMMAND,
    explain.COMMAND,
    simulate.COMMAND,
    scheduler_config.COMMAND,
    convert.COMMAND,
    doctor.COMMAND,
    bundle.COMMAND,
    drain.CORDON,
    drain.UNCORDON,
    drain.DRAIN,
    defrag.COMMAND,
    arguments.COMPLETION,
    top.COMMAND,
    dashboard.COMMAND,
)
FIRST: Final = (  # examples of `gpushare` itself
    ("Who holds how much of which GPU", "gpushare inspect"),
    ("Why a pod waits", "gpushare explain train"),
    ("What is wrong with the installation", "gpushare doctor"),
    ("All about one command", "gpushare drain --help"),
)


def main(argv: Sequence[str] | None = None) -> int:
    return _run(command_line(), (sys.argv[1:] if argv is None else argv) or ["--help"])


def inspect_main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="kubectl inspect gpushare")
    arguments.add_version(parser)
    inspect_command.PLUGIN.describe(parser)
    return _run(parser, argv)


def command_line() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="gpushare")
    what = "Look at shared GPUs, set up their scheduler, and take GPUs out of service."
    exit_codes = f"{inspect_command.COMMAND.exit_codes} Some commands have others: see their help."
    arguments.describe(parser, what, FIRST, exit_codes)
    arguments.add_version(parser)
    below = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in COMMANDS:
        command.describe(below.add_parser(command.name, help=command.what))
    return parser


def _run(parser: argparse.ArgumentParser, argv: Sequence[str] | None) -> int:
    width = shutil.get_terminal_size((console.UNLIMITED, 0)).columns
    streams = Streams(out=Printable(sys.stdout), err=Printable(sys.stderr), width=width)

    def run() -> int:
        typed = parser.parse_args(argv)
        code: int = typed.run(Call(parser=parser, arguments=typed, streams=streams, clock=SystemClock()))
        return code

    try:
        code = console.answered(streams, run)
        streams.out.flush()
    except SystemExit as end:  # argparse has printed help or the mistake
        return end.code if isinstance(end.code, int) else console.USAGE
    except BrokenPipeError:  # the reader, such as `head`, has seen enough
        _write_no_more()
        return console.OK
    except OSError as error:  # of files and sockets each command tells by itself
        _write_no_more()
        return streams.error(f"cannot write the answer: {error.strerror}")
    except KeyboardInterrupt:
        return 130
    return code


def _write_no_more() -> None:
    """For the interpreter's flush at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    sys.exit(main())
