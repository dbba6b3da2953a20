"""What several commands have on their command lines."""

import argparse
from typing import Final

import gpushare
from gpushare import names
from gpushare.errors import SettingsError
from gpushare.units import MemoryUnit

_OUTPUT: Final = "json for programs, in MiB"


def add_version(parser: argparse.ArgumentParser) -> None:
    """`--version`."""
    parser.add_argument("--version", action="version", version=f"{parser.prog} {gpushare.__version__}")


def add_output(parser: argparse.ArgumentParser) -> None:
    """`-o`."""
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table", help=_OUTPUT)


def add_cluster(parser: argparse.ArgumentParser) -> None:
    """Which cluster to look at."""
    parser.add_argument("--kubeconfig", default="", metavar="FILE", help="by default $KUBECONFIG or ~/.kube/config")
    parser.add_argument("--context", default="", metavar="NAME", help="of the kubeconfig; by default the current one")


def add_memory_unit(parser: argparse.ArgumentParser, default: str) -> None:
    """`--memory-unit`.

    Args:
        parser: of the command.
        default: what is taken without it, in words.
    """
    what = f"what one {names.GPU_MEM} is: GiB, MiB, or 256MiB; by default {default}"
    parser.add_argument("--memory-unit", type=_unit, metavar="UNIT", help=what)


def _unit(text: str) -> MemoryUnit:
    try:
        return MemoryUnit.parse(text)
    except SettingsError as error:  # argparse shows the reason of this error only
        raise argparse.ArgumentTypeError(str(error)) from error
