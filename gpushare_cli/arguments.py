"""What describes a command and what one call of it gets, and the arguments that several commands have.

An argument's type is its parser, whose SettingsError ends the command with its own message.
"""

import argparse
import contextlib
import dataclasses
import re
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, TextIO, TypeVar

import gpushare
from gpushare import names
from gpushare.errors import SettingsError
from gpushare.kube import client, credentials
from gpushare.kube.api import KubeApi
from gpushare.runtime.clock import Clock
from gpushare.runtime.options import environment
from gpushare.runtime.process import Signals
from gpushare.units import MemoryUnit
from gpushare_cli.console import OK, NoClusterError, Streams

T = TypeVar("T")
Example = tuple[str, str]  # what for, and what to type
_NAMESPACE: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_EXAMPLES: Final = "Examples:"
_ARGUMENT: Final = "argument"
MOST: Final = 1_000_000
# How a shell completes names of files: `shtab.FILE`, also where that library is not installed.
FILES: Final = {"bash": "_shtab_compgen_files", "zsh": "_files", "fish": "(__fish_complete_path (commandline -ct))"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One call of a command. The cluster is looked for when it is asked for, as some commands need none."""

    parser: argparse.ArgumentParser
    arguments: argparse.Namespace
    streams: Streams
    clock: Clock

    def options(self, kind: type[T]) -> T:
        """The arguments as a dataclass, whose fields have the names under which argparse keeps them."""
        fields = dataclasses.fields(kind)  # type: ignore[arg-type] # a dataclass
        return kind(**{each.name: getattr(self.arguments, each.name) for each in fields if each.name in self.arguments})

    @property
    def stdin(self) -> TextIO:
        return sys.stdin

    def api(self) -> KubeApi:
        return self._of_cluster(client.connect)

    def api_of(self) -> Callable[[str], KubeApi]:
        """For the users of tokens, by nothing but these."""
        return self._of_cluster(client.connect_as)

    def namespace(self) -> str:
        return self._of_cluster(credentials.namespace)

    def context_name(self) -> str:
        return self._of_cluster(credentials.context_name)

    def _of_cluster(self, read: Callable[[str, str], T]) -> T:
        try:
            return read(_kubeconfig(self.arguments.kubeconfig), self.arguments.context)
        except SettingsError as error:
            raise NoClusterError(str(error)) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    name: str
    what: str  # a few words for the list of all
    description: str
    exit_codes: str  # what stands behind "Exit codes: 0"
    examples: Sequence[Example]
    options: type  # a dataclass, whose fields say which arguments it has
    of_cluster: bool = True  # whether it also has those that tell which cluster
    run: Callable[[Call], int]

    def describe(self, parser: argparse.ArgumentParser) -> None:
        for field in (*dataclasses.fields(self.options), *(dataclasses.fields(_Cluster) if self.of_cluster else ())):
            if _ARGUMENT in field.metadata:
                _add(parser, field)
        describe(parser, self.description, self.examples, self.exit_codes)
        parser.set_defaults(run=self.run)


def describe(parser: argparse.ArgumentParser, description: str, examples: Sequence[Example], exit_codes: str) -> None:
    lines = "\n".join(f"  # {what}\n  {command}" for what, command in examples)
    parser.formatter_class = _Formatter
    parser.description = description
    parser.epilog = f"{_EXAMPLES}\n{lines}\n\nExit codes: 0 {exit_codes}"


class _Formatter(argparse.RawDescriptionHelpFormatter):
    """Folds prose, and leaves examples as they are."""

    def add_text(self, text: str | None) -> None:
        width = max(shutil.get_terminal_size().columns - 2, 11)
        parts = (text or "").split("\n\n")
        super().add_text(
            "\n\n".join(part if part.startswith(_EXAMPLES) else textwrap.fill(part, width) for part in parts) or None
        )


def _kubeconfig(flag: str) -> str:
    """As kubectl: the flag, else $KUBECONFIG, else ~/.kube/config, else (empty) the cluster that this pod runs in."""
    path = flag or environment("KUBECONFIG") or ""
    default = Path("~/.kube/config").expanduser()
    if not path and default.is_file():
        path = str(default)
    if not path and not environment("KUBERNETES_SERVICE_HOST"):
        raise SettingsError(f"no cluster: neither --kubeconfig nor KUBECONFIG is given, and there is no {default}")
    return path


@contextlib.contextmanager
def told_to_end() -> Iterator[Callable[[], bool]]:
    signals = Signals()
    before = signals.install()
    try:
        yield lambda: signals.number != 0
    finally:
        signals.restore(before)


def add_version(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--version", action="version", version=f"{parser.prog} {gpushare.__version__}")


def argument(*flags: str, **how: Any) -> Any:
    """A field of a command's options, and how argparse takes it; without flags by its place, where it must be given."""
    default = how.pop("default", "" if flags and not how.get("required") else dataclasses.MISSING)
    return dataclasses.field(default=default, metadata={_ARGUMENT: (flags, how)})


def switch(*flags: str, what: str) -> Any:
    return argument(*flags, default=False, action="store_true", help=what)


def whole(flag: str, least: int = 1, most: int = MOST) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not text.isdecimal() or len(text) > len(str(MOST)) or not least <= int(text) <= most:
            raise SettingsError(f"{flag} {text}: write a whole number from {least} to {most}")
        return int(text)

    return parse


def number(flag: str, what: str, *, default: int | None = None, metavar: str = "N", **limits: int) -> Any:
    return argument(flag, type=whole(flag, **limits), default=default, metavar=metavar, help=what)


def timeout(what: str, default: int) -> Any:
    return number("--timeout", f"{what} (default: %(default)s)", default=default, metavar="SECONDS")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cluster:
    kubeconfig: str = argument("--kubeconfig", metavar="FILE", help="by default $KUBECONFIG or ~/.kube/config")
    context: str = argument("--context", metavar="NAME", help="of the kubeconfig; by default the current one")


def _add(parser: argparse.ArgumentParser, field: "dataclasses.Field[Any]") -> None:
    flags, how = field.metadata[_ARGUMENT]
    if field.default is not dataclasses.MISSING:
        how = {"default": field.default, **how}
    added = parser.add_argument(*flags, dest=field.name, **how) if flags else parser.add_argument(field.name, **how)
    if str(how.get("metavar")).startswith("FILE"):
        added.complete = FILES  # type: ignore[attr-defined] # where shtab looks for it


def installed() -> Any:
    what = "of the installation (default: %(default)s)"
    return argument("-n", "--namespace", type=_namespace, default=names.NAMESPACE, metavar="NAME", help=what)


def _namespace(text: str) -> str:
    if not _NAMESPACE.fullmatch(text):
        raise SettingsError(f"namespace {text!r}: write lower-case letters, digits and '-', such as {names.NAMESPACE}")
    return text


def installation(what: str) -> Any:
    what = f"namespace of {what} (default: %(default)s)"
    return argument("--installation", default=names.NAMESPACE, metavar="NAME", help=what)


def output() -> Any:
    what = "json or yaml for programs, in MiB"
    return argument("-o", "--output", choices=("table", "json", "yaml"), default="table", help=what)


def choice(flag: str, default: StrEnum, what: str) -> Any:
    kind = type(default)
    values = [each.value for each in kind]

    def parse(text: str) -> StrEnum:
        if text not in values:
            raise argparse.ArgumentTypeError(f"invalid choice: {text!r} (choose from {', '.join(values)})")
        return kind(text)

    return argument(flag, type=parse, choices=values, default=default, metavar="|".join(values), help=what)


def namespace() -> Any:
    return argument("-n", "--namespace", metavar="NAME", help="by default the kubeconfig's")


def memory_unit(default: str) -> Any:
    what = f"what one {names.GPU_MEM} is: GiB, MiB, or 256MiB; by default {default}"
    return argument("--memory-unit", type=MemoryUnit.parse, default=None, metavar="UNIT", help=what)


SHELLS: Final = ("bash", "zsh", "fish")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Completion:
    shell: str = argument(choices=SHELLS, metavar="|".join(SHELLS), help="for which shell")


def _complete(call: Call) -> int:
    try:
        import shtab  # late: the commands are also in images that lack it
    except ModuleNotFoundError as error:
        raise SettingsError("completion needs the library shtab; run: pip install 'gpushare[cli]'") from error
    call.streams.out.write(f"{shtab.complete(call.parser, call.arguments.shell)}\n")
    return OK


COMPLETION: Final = Command(
    name="completion",
    what="a script for completion in a shell",
    description="Print a script that completes the commands and flags of gpushare in a shell.",
    exit_codes="done; 2 wrong arguments.",
    examples=(
        ("For this bash", "source <(gpushare completion bash)"),
        ("For every bash to come", "gpushare completion bash > ~/.local/share/bash-completion/completions/gpushare"),
        ("For zsh, in a directory of its fpath", "gpushare completion zsh > ~/.zfunc/_gpushare"),
        ("For fish", "gpushare completion fish > ~/.config/fish/completions/gpushare.fish"),
    ),
    options=_Completion,
    of_cluster=False,
    run=_complete,
)
