"""`gpushare doctor`: reads the cluster, runs the checks, prints."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from gpushare.errors import SettingsError
from gpushare.kube import api as kube
from gpushare.kube.api import KubeApi
from gpushare.runtime.clock import Clock
from gpushare_cli import commands
from gpushare_cli.commands import FAILED, OK, Streams
from gpushare_cli.doctor import checks, gather, render
from gpushare_cli.doctor.finding import Severity

FOUND: Final = 3
"""Exit code if errors were found."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The arguments."""

    namespace: str
    """Of the installation."""
    as_json: bool = False


def run(connect: Callable[[], KubeApi], streams: Streams, options: Options, clock: Clock) -> int:
    """Look at a cluster's installation and print what is wrong with it. The exit code."""
    try:
        api = connect()
        server = gather.server(api, clock)
    except SettingsError as error:  # no usable kubeconfig, or a server of an unknown kind
        streams.err.write(f"error: {error}\n")
        return FAILED
    except kube.KubeError as error:
        streams.err.write(f"error: {commands.told(error)}\n")
        return FAILED

    def say(text: str) -> None:
        streams.err.write(f"note: {text}\n")
        streams.err.flush()

    diagnosis = checks.diagnose(gather.gather(api, server, options.namespace, say))
    streams.out.write(render.as_json(diagnosis) if options.as_json else render.table(diagnosis))
    return FOUND if any(each.severity is Severity.ERROR for _, each in diagnosis.findings) else OK
