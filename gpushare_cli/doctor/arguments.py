"""The command line of `gpushare doctor`."""

import argparse
import re
from typing import Final

from gpushare import names
from gpushare.errors import SettingsError
from gpushare_cli import arguments as common
from gpushare_cli.doctor.command import Options

EXIT_CODES: Final = (
    "Exit codes: 0 no errors, perhaps warnings; 1 the cluster cannot be read; 2 wrong arguments; 3 errors were found."
)
_NAMESPACE: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


def add(parser: argparse.ArgumentParser) -> None:
    """Describe the arguments."""
    parser.description = "Say what is wrong with an installation of gpushare, and how to fix it. Changes nothing."
    parser.add_argument(
        "-n", "--namespace", default=names.NAMESPACE, metavar="NAME", help="of the installation (default: %(default)s)"
    )
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table", help="json for programs")
    common.add_cluster(parser)


def options(arguments: argparse.Namespace) -> Options:
    """What the arguments ask for.

    Raises:
        SettingsError: there can be no such namespace.
    """
    namespace = arguments.namespace
    if not _NAMESPACE.fullmatch(namespace):
        raise SettingsError(
            f"namespace {namespace!r}: write lower-case letters, digits and '-', such as {names.NAMESPACE}"
        )
    return Options(namespace=namespace, as_json=arguments.output == "json")
