"""Entry points of `gpushare` and of the kubectl plug-in `kubectl inspect gpushare`.

Exit codes: 0 done; 1 the cluster or the input cannot be read, or no GPU is shared; 2 the command line cannot be
understood; 3, of explain, simulate and doctor, that the answer is a bad one.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final

from gpushare import names
from gpushare.errors import SettingsError
from gpushare.kube import client
from gpushare.kube.api import KubeApi
from gpushare.runtime.clock import SystemClock
from gpushare.runtime.options import environment
from gpushare_cli import arguments as common
from gpushare_cli import commands, schedconfig
from gpushare_cli.commands import Streams
from gpushare_cli.doctor import arguments as doctor_arguments
from gpushare_cli.doctor import command as doctor
from gpushare_cli.explain import arguments as explain_arguments
from gpushare_cli.explain import command as explain
from gpushare_cli.schedconfig import Kind, Options, ServerVersion
from gpushare_cli.simulate import arguments as simulate_arguments
from gpushare_cli.simulate import command as simulate
from gpushare_cli.terminal import Printable

_EXIT_CODES: Final = "Exit codes: 0 done; 1 the cluster cannot be read or shares no GPU; 2 wrong arguments."


def main(argv: Sequence[str] | None = None) -> int:
    """`gpushare`: the exit code."""
    return _run(command_line(), argv)


def command_line() -> argparse.ArgumentParser:
    """All commands of `gpushare`."""
    parser = argparse.ArgumentParser(
        prog="gpushare", description="Look at shared GPUs and set up their scheduler.", epilog=_EXIT_CODES
    )
    common.add_version(parser)
    commands_of = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    _add_inspect(commands_of.add_parser("inspect", help="who holds how much of which GPU", epilog=_EXIT_CODES))
    explanation = commands_of.add_parser(
        "explain", help="why a pod waits, or where it is", epilog=explain_arguments.EXIT_CODES
    )
    explain_arguments.add(explanation)
    explanation.set_defaults(handler=_explain)
    simulation = commands_of.add_parser(
        "simulate", help="what would go where, without a cluster", epilog=simulate_arguments.EXIT_CODES
    )
    simulate_arguments.add(simulation)
    simulation.set_defaults(handler=_simulate)
    _add_scheduler_config(
        commands_of.add_parser("scheduler-config", help="configuration of kube-scheduler", epilog=_EXIT_CODES)
    )
    examination = commands_of.add_parser(
        "doctor", help="what is wrong with an installation", epilog=doctor_arguments.EXIT_CODES
    )
    doctor_arguments.add(examination)
    examination.set_defaults(handler=_doctor)
    return parser


def inspect_main(argv: Sequence[str] | None = None) -> int:
    """`kubectl inspect gpushare`: the exit code."""
    parser = argparse.ArgumentParser(prog="kubectl inspect gpushare", epilog=_EXIT_CODES)
    common.add_version(parser)
    _add_inspect(parser)
    return _run(parser, argv)


def _add_inspect(parser: argparse.ArgumentParser) -> None:
    parser.description = "Print who holds how much memory of which GPU."
    parser.add_argument("node", metavar="NODE", nargs="?", help="only this node")
    parser.add_argument("-d", "--details", action="store_true", help="one line for each pod")
    common.add_output(parser)
    common.add_cluster(parser)
    parser.set_defaults(handler=_inspect)


def _add_scheduler_config(parser: argparse.ArgumentParser) -> None:
    parser.description = "Print the configuration with which kube-scheduler asks the controller about shared GPUs."
    parser.add_argument("--server-version", required=True, metavar="X.Y", help="of the cluster, such as v1.29.3+k3s1")
    parser.add_argument("--kind", choices=[kind.value for kind in Kind], default=Kind.CONFIGURATION.value)
    parser.add_argument("--extender-url", default=schedconfig.DEFAULT_URL, metavar="URL", help="default: %(default)s")
    parser.add_argument("--extender-ca", default="", metavar="FILE", help="PEM file; needed if the URL is https")
    parser.add_argument(
        "--scheduler-name",
        default=names.SCHEDULER,
        metavar="NAME",
        help="of a second scheduler; empty to change the cluster's own (default: %(default)s)",
    )
    parser.add_argument(
        "--lease-name", default=names.SCHEDULER, metavar="NAME", help="of a second scheduler (default: %(default)s)"
    )
    parser.add_argument(
        "--lease-namespace", default=names.NAMESPACE, metavar="NAME", help="of that lease (default: %(default)s)"
    )
    parser.add_argument(
        "--scheduler-kubeconfig",
        default="",
        metavar="PATH",
        help="file that kube-scheduler reads, such as /etc/kubernetes/scheduler.conf; none for a service account",
    )
    parser.add_argument(
        "--whole-gpus",
        action="store_true",
        help=f"{names.GPU} is gpushare's on every node of the cluster; not where another plugin has it",
    )
    parser.set_defaults(handler=_scheduler_config)


def _run(parser: argparse.ArgumentParser, argv: Sequence[str] | None) -> int:
    try:
        arguments = parser.parse_args(argv)
    except SystemExit as end:  # argparse has printed help or the mistake
        return end.code if isinstance(end.code, int) else commands.USAGE
    streams = Streams(out=Printable(sys.stdout), err=Printable(sys.stderr))
    try:
        code: int = arguments.handler(arguments, streams)
        streams.out.flush()
    except SettingsError as error:
        streams.err.write(f"error: {error}\n")
        return commands.USAGE
    except BrokenPipeError:  # the reader, such as `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for the interpreter's flush at its end
        return commands.OK
    except KeyboardInterrupt:
        return 130
    return code


def _inspect(arguments: argparse.Namespace, streams: Streams) -> int:
    return commands.inspect(
        partial(_connect, arguments.kubeconfig, arguments.context),
        streams,
        node=arguments.node,
        details=arguments.details,
        as_json=arguments.output == "json",
    )


def _explain(arguments: argparse.Namespace, streams: Streams) -> int:
    options = explain_arguments.options(arguments)
    where = (arguments.kubeconfig, arguments.context)
    return explain.run(partial(_connect, *where), streams, options, partial(_namespace, *where))


def _simulate(arguments: argparse.Namespace, streams: Streams) -> int:
    return simulate.run(simulate_arguments.options(arguments), streams, sys.stdin)


def _scheduler_config(arguments: argparse.Namespace, streams: Streams) -> int:
    options = Options(
        server=ServerVersion.parse(arguments.server_version),
        url=arguments.extender_url,
        scheduler_name=arguments.scheduler_name,
        lease_name=arguments.lease_name,
        lease_namespace=arguments.lease_namespace,
        kubeconfig=arguments.scheduler_kubeconfig,
        ca_pem=commands.read_ca(arguments.extender_ca),
        whole_gpus=arguments.whole_gpus,
    )
    return commands.scheduler_config(streams, options=options, kind=Kind(arguments.kind))


def _doctor(arguments: argparse.Namespace, streams: Streams) -> int:
    connect = partial(_connect, arguments.kubeconfig, arguments.context)
    return doctor.run(connect, streams, doctor_arguments.options(arguments), SystemClock())


def _connect(kubeconfig: str, context: str) -> KubeApi:
    return client.connect(_kubeconfig(kubeconfig), context)


def _namespace(kubeconfig: str, context: str) -> str:
    return client.namespace(_kubeconfig(kubeconfig), context)


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
