"""What several commands have on their command lines. Values are read by argparse, so an argument's type is its parser.

A SettingsError of such a parser ends the command with its own message.
"""

import argparse
import dataclasses
import re
from enum import Enum
from typing import Final, TypeVar

import gpushare
from gpushare import names
from gpushare.errors import SettingsError
from gpushare.units import MemoryUnit

T = TypeVar("T")
_NAMESPACE: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


def typed(kind: type[T], arguments: argparse.Namespace) -> T:
    """The arguments as a dataclass, whose fields have the names under which argparse keeps them."""
    fields = dataclasses.fields(kind)  # type: ignore[arg-type] # a dataclass
    return kind(**{field.name: getattr(arguments, field.name) for field in fields})


def add_version(parser: argparse.ArgumentParser) -> None:
    """`--version`."""
    parser.add_argument("--version", action="version", version=f"{parser.prog} {gpushare.__version__}")


def add_installed(parser: argparse.ArgumentParser) -> None:
    """`-n` of commands that look at the installation itself."""
    what = "of the installation (default: %(default)s)"
    parser.add_argument("-n", "--namespace", type=_namespace, default=names.NAMESPACE, metavar="NAME", help=what)


def _namespace(text: str) -> str:
    if not _NAMESPACE.fullmatch(text):
        raise SettingsError(f"namespace {text!r}: write lower-case letters, digits and '-', such as {names.NAMESPACE}")
    return text


def add_output(parser: argparse.ArgumentParser) -> None:
    """`-o`."""
    what = "json or yaml for programs, in MiB"
    parser.add_argument("-o", "--output", choices=("table", "json", "yaml"), default="table", help=what)


def add_choice(parser: argparse.ArgumentParser, flag: str, default: Enum, what: str) -> None:
    """One of the values of an enumeration, which is that of the default."""
    kind = type(default)
    values = [str(each.value) for each in kind]

    def parse(text: str) -> Enum:
        if text not in values:
            raise argparse.ArgumentTypeError(f"invalid choice: {text!r} (choose from {', '.join(values)})")
        return kind(text)

    parser.add_argument(flag, type=parse, default=default, metavar="|".join(values), help=what)


def add_cluster(parser: argparse.ArgumentParser) -> None:
    """Which cluster to look at."""
    parser.add_argument("--kubeconfig", default="", metavar="FILE", help="by default $KUBECONFIG or ~/.kube/config")
    parser.add_argument("--context", default="", metavar="NAME", help="of the kubeconfig; by default the current one")


def add_namespaces(parser: argparse.ArgumentParser) -> None:
    """That of the pod, and that of the installation."""
    parser.add_argument("-n", "--namespace", default="", metavar="NAME", help="by default the kubeconfig's")
    parser.add_argument(
        "--installation",
        default=names.NAMESPACE,
        metavar="NAME",
        help="namespace of gpushare's own settings (default: %(default)s)",
    )


def add_memory_unit(parser: argparse.ArgumentParser, default: str) -> None:
    """`--memory-unit`, with the words for what is taken without it."""
    what = f"what one {names.GPU_MEM} is: GiB, MiB, or 256MiB; by default {default}"
    parser.add_argument("--memory-unit", type=MemoryUnit.parse, metavar="UNIT", help=what)
