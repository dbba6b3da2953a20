"""Entry points of `gpushare` and of the kubectl plug-in `kubectl inspect gpushare`.

Exit codes: 0 done; 1 the cluster or the input cannot be read, or no GPU is shared; 2 the command line cannot be
understood; 3, of explain, simulate and doctor, that the answer is a bad one.
"""

import argparse
import contextlib
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from gpushare.errors import SettingsError
from gpushare.kube import client
from gpushare.runtime import logs
from gpushare.runtime.clock import SystemClock
from gpushare.runtime.options import environment
from gpushare.runtime.process import Signals, as_interrupt
from gpushare_cli import arguments as common
from gpushare_cli import completion, console, examples, inspect_command, scheduler_command, scheduler_config, top
from gpushare_cli.bars import Look
from gpushare_cli.bundle import command as bundle
from gpushare_cli.console import NoClusterError, Printable, Streams
from gpushare_cli.dashboard import command as dashboard
from gpushare_cli.dashboard.live import Live
from gpushare_cli.defrag import command as defrag
from gpushare_cli.doctor import command as doctor
from gpushare_cli.drain import command as drain
from gpushare_cli.explain import command as explain
from gpushare_cli.simulate import command as simulate

T = TypeVar("T")
_EXIT_CODES: Final = "Exit codes: 0 done; 1 the cluster cannot be read or shares no GPU; 2 wrong arguments."
_EXIT_CODES_OF_ALL: Final = f"{_EXIT_CODES} Some commands have others: see their help."
_EXIT_CODES_OFFLINE: Final = "Exit codes: 0 done; 2 wrong arguments."


def main(argv: Sequence[str] | None = None) -> int:
    """`gpushare`: the exit code."""
    return _run(command_line(), argv)


def command_line() -> argparse.ArgumentParser:
    """All commands of `gpushare`."""
    parser = argparse.ArgumentParser(
        prog="gpushare",
        description="Look at shared GPUs, set up their scheduler, and take GPUs out of service.",
        epilog=examples.epilog(examples.FIRST, _EXIT_CODES_OF_ALL),
        formatter_class=examples.Formatter,
    )
    common.add_version(parser)
    sub = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name, what, exit_codes, add, handler in (
        ("inspect", "who holds how much of which GPU", _EXIT_CODES, inspect_command.add, _inspect),
        ("explain", "why a pod waits, or where it is", explain.EXIT_CODES, explain.add, _explain),
        ("simulate", "what would go where, without a cluster", simulate.EXIT_CODES, simulate.add, _simulate),
        (
            "scheduler-config",
            "configuration of kube-scheduler",
            _EXIT_CODES_OFFLINE,
            scheduler_command.add,
            _scheduler_config,
        ),
        ("doctor", "what is wrong with an installation", doctor.EXIT_CODES, doctor.add, _doctor),
        ("report", "a file for those who help with a problem", bundle.EXIT_CODES, bundle.add, _report),
        ("cordon", "keep new pods away from a GPU", drain.EXIT_CODES_CORDON, drain.add_cordon, _cordon),
        ("uncordon", "let new pods onto a GPU again", drain.EXIT_CODES_CORDON, drain.add_uncordon, _uncordon),
        ("drain", "take a GPU out of service", drain.EXIT_CODES, drain.add, _drain),
        ("defrag", "the few evictions that make room for a pod", defrag.EXIT_CODES, defrag.add, _defrag),
        ("completion", "a script for completion in a shell", completion.EXIT_CODES, completion.add, _completion),
        ("top", "all GPUs as bars in the terminal, live", top.EXIT_CODES, top.add, _top),
        ("dashboard", "a page with all GPUs, live", dashboard.EXIT_CODES, dashboard.add, _dashboard),
    ):
        below = examples.epilog(examples.EXAMPLES[name], exit_codes)
        command = sub.add_parser(name, help=what, epilog=below, formatter_class=examples.Formatter)
        add(command)
        command.set_defaults(handler=handler)
    return parser


def inspect_main(argv: Sequence[str] | None = None) -> int:
    """`kubectl inspect gpushare`: the exit code."""
    below = examples.epilog(examples.PLUGIN, _EXIT_CODES)
    parser = argparse.ArgumentParser(prog="kubectl inspect gpushare", epilog=below, formatter_class=examples.Formatter)
    common.add_version(parser)
    inspect_command.add(parser)
    parser.set_defaults(handler=_inspect)
    return _run(parser, argv)


def _run(parser: argparse.ArgumentParser, argv: Sequence[str] | None) -> int:
    width = shutil.get_terminal_size((console.UNLIMITED, 0)).columns
    streams = Streams(out=Printable(sys.stdout), err=Printable(sys.stderr), width=width)
    try:
        code = console.answered(streams, lambda: _parsed_and_run(parser, argv, streams))
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


def _parsed_and_run(parser: argparse.ArgumentParser, argv: Sequence[str] | None, streams: Streams) -> int:
    arguments = parser.parse_args(argv)
    code: int = arguments.handler(arguments, streams)
    return code


def _inspect(arguments: argparse.Namespace, streams: Streams) -> int:
    options = inspect_command.Options(
        node=arguments.node,
        details=arguments.details,
        limits=arguments.limits,
        output=arguments.output,
        bars=replace(_look(streams.width), colour=False) if arguments.bars else None,
        installation=arguments.installation,
    )
    return inspect_command.run(_of_cluster(client.connect, arguments), streams, options)


def _explain(arguments: argparse.Namespace, streams: Streams) -> int:
    options = common.typed(explain.Options, arguments)
    return explain.run(
        _of_cluster(client.connect, arguments), streams, options, partial(_of_cluster, client.namespace, arguments)
    )


def _simulate(arguments: argparse.Namespace, streams: Streams) -> int:
    return simulate.run(common.typed(simulate.Options, arguments), streams, sys.stdin)


def _scheduler_config(arguments: argparse.Namespace, streams: Streams) -> int:
    options = common.typed(scheduler_config.Options, arguments)
    return scheduler_command.run(streams, options=options, kind=arguments.kind)


def _doctor(arguments: argparse.Namespace, streams: Streams) -> int:
    options = common.typed(doctor.Options, arguments)
    return doctor.run(_of_cluster(client.connect, arguments), streams, options, SystemClock())


def _report(arguments: argparse.Namespace, streams: Streams) -> int:
    options = common.typed(bundle.Options, arguments)
    return bundle.run(_of_cluster(client.connect, arguments), streams, options, SystemClock())


def _cordon(arguments: argparse.Namespace, streams: Streams) -> int:
    return drain.cordon(_of_cluster(client.connect, arguments), streams, arguments.gpu)


def _uncordon(arguments: argparse.Namespace, streams: Streams) -> int:
    return drain.uncordon(_of_cluster(client.connect, arguments), streams, arguments.gpu)


def _drain(arguments: argparse.Namespace, streams: Streams) -> int:
    options = common.typed(drain.Options, arguments)
    with as_interrupt():  # it says then that the GPU stays cordoned
        return drain.run(_of_cluster(client.connect, arguments), streams, options, SystemClock())


def _defrag(arguments: argparse.Namespace, streams: Streams) -> int:
    options = common.typed(defrag.Options, arguments)
    namespace = partial(_of_cluster, client.namespace, arguments)
    with as_interrupt():  # cordons that it made for the time being are removed
        return defrag.run(_of_cluster(client.connect, arguments), streams, options, namespace, SystemClock(), sys.stdin)


def _completion(arguments: argparse.Namespace, streams: Streams) -> int:
    return completion.run(streams, command_line(), arguments.shell)


def _dashboard(arguments: argparse.Namespace, streams: Streams) -> int:
    options = replace(common.typed(dashboard.Options, arguments), context=_of_cluster(client.context_name, arguments))
    live = _picture(arguments, options)
    with _told_to_end() as ended:
        return dashboard.run(live, streams, options, SystemClock(), ended)


def _top(arguments: argparse.Namespace, streams: Streams) -> int:
    options = common.typed(top.Options, arguments)
    live = _picture(arguments, options)
    screen = top.Screen(
        out=sys.stdout,
        look=_look(streams.width),
        live=_obeys(),
        size=shutil.get_terminal_size,
    )
    with _told_to_end() as ended:
        return top.run(live, streams, options, screen, SystemClock(), ended)


def _picture(arguments: argparse.Namespace, options: dashboard.Scoped) -> Live:
    """What may be read is asked first, as every command asks: there, Ctrl-C ends the process at once.

    From here on faults are told and warnings are not: the picture says what is old.
    """
    logs.configure(level="error", text=True)
    own = partial(_of_cluster, client.namespace, arguments)
    return dashboard.picture(_of_cluster(client.connect, arguments), options, own, SystemClock())


def _look(width: int) -> Look:
    """What standard output can show: https://no-color.org, and no colours where it is no terminal."""
    utf8 = (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
    return Look(colour=_obeys() and not environment("NO_COLOR"), unicode=utf8, width=width)


def _obeys() -> bool:
    """Whether standard output is a terminal that takes commands."""
    return sys.stdout.isatty() and environment("TERM", "dumb") != "dumb"


@contextlib.contextmanager
def _told_to_end() -> Iterator[Callable[[], bool]]:
    """Whether SIGINT or SIGTERM came."""
    signals = Signals()
    before = signals.install()
    try:
        yield lambda: signals.number != 0
    finally:
        signals.restore(before)


def _of_cluster(read: Callable[[str, str], T], arguments: argparse.Namespace) -> T:
    """What a function makes of the kubeconfig and the context that are meant."""
    try:
        return read(_kubeconfig(arguments.kubeconfig), arguments.context)
    except SettingsError as error:
        raise NoClusterError(str(error)) from error


def _kubeconfig(flag: str) -> str:
    """As kubectl: the flag, else $KUBECONFIG, else ~/.kube/config, else (empty) the cluster that this pod runs in."""
    path = flag or environment("KUBECONFIG") or ""
    default = Path("~/.kube/config").expanduser()
    if not path and default.is_file():
        path = str(default)
    if not path and not environment("KUBERNETES_SERVICE_HOST"):
        raise SettingsError(f"no cluster: neither --kubeconfig nor KUBECONFIG is given, and there is no {default}")
    return path


if __name__ == "__main__":
    sys.exit(main())
