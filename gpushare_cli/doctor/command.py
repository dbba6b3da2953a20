"""`gpushare doctor`: reads the cluster, runs the checks, prints."""

import argparse
from dataclasses import dataclass
from typing import Final

from gpushare.kube.api import KubeApi
from gpushare.runtime.clock import Clock
from gpushare_cli import arguments
from gpushare_cli.arguments import Call, Command
from gpushare_cli.console import BAD, OK, Streams
from gpushare_cli.doctor import checks, gather, render
from gpushare_cli.doctor.finding import Severity


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The arguments."""

    namespace: str
    """Of the installation."""
    output: str = "table"


def add(parser: argparse.ArgumentParser) -> None:
    parser.description = "Say what is wrong with an installation of gpushare, and how to fix it. Changes nothing."
    arguments.add_installed(parser)
    arguments.add_output(parser)
    arguments.add_cluster(parser)


def run(api: KubeApi, streams: Streams, options: Options, clock: Clock) -> int:
    """Look at a cluster's installation and print what is wrong with it. The exit code.

    Raises:
        KubeError: the API server does not answer, or not to us.
        WireError: it is of a kind that no one knows.
    """
    diagnosis = checks.diagnose(gather.gather(api, gather.server(api, clock), options.namespace, streams.note))
    streams.answer(options.output, lambda: render.as_json(diagnosis), lambda: render.table(diagnosis, streams.width))
    return BAD if any(each.severity is Severity.ERROR for _, each in diagnosis.findings) else OK


def _run(call: Call) -> int:
    return run(call.api(), call.streams, call.options(Options), call.clock)


COMMAND: Final = Command(
    name="doctor",
    what="what is wrong with an installation",
    exit_codes="no errors, perhaps warnings; 1 the cluster cannot be read; 2 wrong arguments; 3 errors were found.",
    examples=(
        ("What is wrong, and how to fix it", "gpushare doctor"),
        ("Only what it found, for programs", "gpushare doctor -o json"),
    ),
    add=add,
    run=_run,
)
