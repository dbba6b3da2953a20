"""`gpushare dashboard`: reads the cluster with the user's rights, and serves a page to the user's own browser."""

import argparse
import contextlib
import secrets
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from gpushare import names
from gpushare.errors import GpuShareError, SettingsError
from gpushare.kube import api as kube
from gpushare.kube.api import KubeApi
from gpushare.runtime import logs
from gpushare.runtime.clock import Clock
from gpushare_cli import arguments, reading
from gpushare_cli.arguments import Call, Command, told_to_end
from gpushare_cli.console import OK, Streams
from gpushare_cli.dashboard import browser, server, watching
from gpushare_cli.dashboard.live import Live
from gpushare_cli.dashboard.routes import Site
from gpushare_cli.dashboard.server import Served
from gpushare_cli.reading import Settings

PORT: Final = 8127


@dataclass(frozen=True, slots=True, kw_only=True)
class Scoped:
    """The arguments of `add_scope`, and which cluster."""

    namespace: Sequence[str] = ()
    installation: str = names.NAMESPACE
    context: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options(Scoped):
    """The arguments."""

    port: int = PORT
    browser: bool = False
    no_key: bool = False


def add(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Serve a page that shows the GPUs, who holds them, and what waits, to this machine's own browser. It reads the"
        " cluster with your rights, changes nothing, and needs nothing in the cluster."
    )
    what = "of the loopback address, 0 for any that is free (default: %(default)s)"
    parser.add_argument("--port", type=_port, default=PORT, metavar="NUMBER", help=what)
    parser.add_argument("--browser", action="store_true", help="also open the page")
    parser.add_argument(
        "--no-key",
        action="store_true",
        help="show it to anyone who reaches the loopback address; for pods, which only kubectl port-forward reaches",
    )
    add_scope(parser)
    arguments.add_cluster(parser)


def add_scope(parser: argparse.ArgumentParser) -> None:
    """What of the cluster is read."""
    what = "only its pods, may be repeated; by default all, or where you may not read all, the kubeconfig's"
    parser.add_argument("-n", "--namespace", action="append", default=[], metavar="NAME", help=what)
    arguments.add_installation(parser, "the device plugins, which tell what is used")


def run(live: Live, streams: Streams, options: Options, clock: Clock, ended: Callable[[], bool]) -> int:
    """Serve until it is told to end. The exit code.

    Args:
        live: the picture, which has not begun.
        streams: where the address is printed.
        options: the arguments.
        clock: of this machine.
        ended: whether it was told to end.
    """
    stop = threading.Event()
    key, name = "" if options.no_key else secrets.token_urlsafe(24), secrets.token_urlsafe(6)
    site = Site(assets=server.assets(), key=key, run=name)
    with contextlib.ExitStack() as opened:
        try:
            served = Served(site=site, feed=live.feed, stop=stop)
            running = opened.enter_context(server.serving(options.port, served))
        except OSError as error:
            return streams.error(f"port {options.port} cannot be used: {error.strerror}; give --port 0 for any other")
        live.start(stop)
        address = f"http://{server.LOOPBACK}:{running.server_address[1]}/{f'#key={key}' if key else ''}"
        for note in filter(None, (live.scope.words, *live.notes)):
            streams.note(note)
        streams.out.write(f"{address}\n")
        streams.out.flush()
        streams.progress("Open this address on this machine; Ctrl-C ends it.")
        if options.browser and not opened.enter_context(browser.showing(address)):
            streams.note("no browser was found on this machine")
        _follow(live, streams, clock, stop, ended)
    return OK


def _follow(live: Live, streams: Streams, clock: Clock, stop: threading.Event, ended: Callable[[], bool]) -> None:
    """Tell when the cluster cannot be read, and when it can be again, until the end."""
    told = ""
    while not ended():
        problem = live.problem
        if problem != told:
            streams.note(problem or "the cluster can be read again")
            told = problem
        clock.wait(stop, _LOOK_S)


def of_call(call: Call, options: Scoped) -> Live:
    """What may be read is asked first, as every command asks: there, Ctrl-C ends the process at once.

    From here on faults are told and warnings are not: the picture says what is old.
    """
    logs.configure(level="error", text=True)
    return picture(call.api(), options, call.namespace, call.clock)


def picture(api: KubeApi, options: Scoped, own: Callable[[], str], clock: Clock) -> Live:
    """The picture of a cluster, of which nothing is read yet but what may be read.

    Raises:
        KubeError: the cluster cannot be read.
    """
    scope = watching.scope(api, options.namespace, own)
    installed, notes = _settings(api, options.installation)
    return Live(
        api=api,
        clock=clock,
        scope=scope,
        settings=installed,
        server=options.context,
        installation=options.installation,
        notes=notes,
    )


_LOOK_S: Final = 0.5
"""How late a signal may be noticed."""


def _settings(api: KubeApi, installation: str) -> tuple[Settings, tuple[str, ...]]:
    """Of the installation, and what keeps them from being known."""
    try:
        found = api.get(f"/api/v1/namespaces/{installation}/configmaps/{names.CONFIG}")
    except (kube.ForbiddenError, kube.NotFoundError):
        return Settings(), ()
    try:
        return reading.settings_of(found), ()
    except GpuShareError as error:
        return Settings(), (f"ConfigMap {names.CONFIG}: {error}; its settings are not applied",)


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > 65535:
        raise SettingsError(f"port {text!r}: write a number from 0 to 65535")
    return int(text)


def _run(call: Call) -> int:
    options = replace(call.options(Options), context=call.context_name())
    live = of_call(call, options)
    with told_to_end() as ended:
        return run(live, call.streams, options, call.clock, ended)


COMMAND: Final = Command(
    name="dashboard",
    what="a page with all GPUs, live",
    exit_codes="ended by Ctrl-C or a signal; 1 the cluster cannot be read; 2 wrong arguments.",
    examples=(
        ("Print an address for the browser on this machine", "gpushare dashboard"),
        (
            "Pods of two namespaces, on any free port, and open the browser",
            "gpushare dashboard -n ml -n web --port 0 --browser",
        ),
    ),
    add=add,
    run=_run,
)
