"""`gpushare dashboard`: reads the cluster with the user's rights, and serves a page to the user's own browser.

The only importer of http.server and webbrowser.
"""

import argparse
import contextlib
import html
import secrets
import socket
import tempfile
import threading
import webbrowser
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources
from pathlib import Path
from typing import Any, Final

from gpushare import names
from gpushare.errors import GpuShareError, SettingsError
from gpushare.kube import api as kube
from gpushare.kube.api import KubeApi
from gpushare.runtime import logs
from gpushare.runtime.clock import Clock
from gpushare_cli import arguments, reading
from gpushare_cli.arguments import Call, Command, told_to_end
from gpushare_cli.console import OK, Streams
from gpushare_cli.dashboard import site as sites
from gpushare_cli.dashboard import watching
from gpushare_cli.dashboard.picture import Live
from gpushare_cli.dashboard.site import Response, Site
from gpushare_cli.reading import Settings

PORT: Final = 8127
LOOPBACK: Final = "127.0.0.1"
_MEDIA: Final = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
_LOOK_S: Final = 0.5
_PATIENCE_S: Final = 20.0  # for which a browser may take to say something, and to read `_PIECE`
_PIECE: Final = 65536  # bytes
_CONNECTIONS: Final = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class Scoped:  # the arguments of `add_scope`, and which cluster
    namespace: Sequence[str] = ()
    installation: str = names.NAMESPACE
    context: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options(Scoped):
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
    what = "show it to anyone who reaches the loopback address; for pods, which only kubectl port-forward reaches"
    parser.add_argument("--no-key", action="store_true", help=what)
    add_scope(parser)
    arguments.add_cluster(parser)


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > 65535:
        raise SettingsError(f"port {text!r}: write a number from 0 to 65535")
    return int(text)


def add_scope(parser: argparse.ArgumentParser) -> None:
    what = "only its pods, may be repeated; by default all, or where you may not read all, the kubeconfig's"
    parser.add_argument("-n", "--namespace", action="append", default=[], metavar="NAME", help=what)
    arguments.add_installation(parser, "the device plugins, which tell what is used")


def run(live: Live, streams: Streams, options: Options, clock: Clock, ended: Callable[[], bool]) -> int:
    """Serve a picture, which has not begun, until it is told to end. The exit code."""
    stop = threading.Event()
    key = "" if options.no_key else secrets.token_urlsafe(24)
    with contextlib.ExitStack() as opened:
        opened.callback(stop.set)
        try:
            port = opened.enter_context(serving(options.port, Site(assets=assets(), key=key, page=live.page)))
        except OSError as error:
            return streams.error(f"port {options.port} cannot be used: {error.strerror}; give --port 0 for any other")
        live.start(stop)
        address = f"http://{LOOPBACK}:{port}/{f'#key={key}' if key else ''}"
        for note in filter(None, (live.scope.words, *live.notes)):
            streams.note(note)
        streams.out.write(f"{address}\n")
        streams.out.flush()
        streams.progress("Open this address on this machine; Ctrl-C ends it.")
        if options.browser and not opened.enter_context(showing(address)):
            streams.note("no browser was found on this machine")
        told = ""
        while not ended():
            problem = live.watched.problem
            if problem != told:
                streams.note(problem or "the cluster can be read again")
                told = problem
            clock.wait(stop, _LOOK_S)
    return OK


def of_call(call: Call, options: Scoped) -> Live:
    """What may be read is asked first, as every command asks: there, Ctrl-C ends the process at once."""
    logs.configure(level="error", text=True)  # the picture itself says what is old
    return of_cluster(call.api(), options, call.namespace, call.clock)


def of_cluster(api: KubeApi, options: Scoped, own: Callable[[], str], clock: Clock) -> Live:
    """The picture of a cluster, of which nothing is read yet but what may be read. KubeError if it cannot be."""
    scope = watching.scope(api, options.namespace, own)
    settings, notes, config = Settings(), tuple[str, ...](), None
    with contextlib.suppress(kube.ForbiddenError, kube.NotFoundError):
        config = api.get(reading.namespaced(options.installation, "configmaps", names.CONFIG))
    try:
        settings = reading.settings_of(config)
    except GpuShareError as error:
        notes = (f"ConfigMap {names.CONFIG}: {error}; its settings are not applied",)
    server, installation = options.context, options.installation
    return Live(api, clock, scope, settings, server=server, installation=installation, notes=notes)


def assets() -> Mapping[str, Response]:
    files = resources.files("gpushare_cli.dashboard").joinpath("page").iterdir()
    found = [(file, media) for file in files if (media := _MEDIA.get(file.name.rpartition(".")[2]))]
    return {
        "/" if file.name == "index.html" else f"/{file.name}": Response(media=media, body=file.read_bytes())
        for file, media in found
    }


@contextlib.contextmanager
def serving(port: int, site: Site) -> Iterator[int]:
    """Serve until the end of the block, on this port or for 0 on one that is free. OSError if the port is taken."""
    server = _Server((LOOPBACK, port), _Handler)
    server.site = site
    server.connections = set()
    thread = threading.Thread(target=server.serve_forever, args=(0.1,), name="http", daemon=True)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        for connection in tuple(server.connections):  # that browsers keep for what they ask next
            server.shutdown_request(connection)
        with contextlib.suppress(OSError):
            server.socket.shutdown(socket.SHUT_RDWR)
        server.server_close()
        thread.join()


class _Server(ThreadingHTTPServer):  # with a thread for each connection, as long as there are not too many
    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 32
    site: Site
    connections: set[Any]

    def process_request(self, request: Any, client_address: Any) -> None:
        if len(self.connections) < _CONNECTIONS:
            self.connections.add(request)
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def shutdown_request(self, request: Any) -> None:
        self.connections.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that has left is no error."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = _PATIENCE_S
    server: _Server

    def log_message(self, *_: object) -> None:
        """Nothing of what browsers ask."""

    def version_string(self) -> str:
        return "gpushare"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("do_"):  # of any method: the site says which are allowed
            return self._serve
        raise AttributeError(name)

    def send_error(self, code: int, *_: object) -> None:
        """For what is no HTTP; as plain text, with nothing of the request in it."""
        self.close_connection = True
        self._send(Response(status=HTTPStatus(code), body=b"bad request\n"))

    def _serve(self) -> None:
        headers = {key.lower(): value for key, value in self.headers.items()}
        if headers.get("content-length", "0") != "0" or "transfer-encoding" in headers:
            self.close_connection = True  # bodies are not read
        self._send(self.server.site.respond(self.command, self.path, headers))

    def _send(self, response: Response) -> None:
        self.send_response(response.status)
        own = {"Content-Type": response.media, "Content-Length": str(len(response.body))}
        for name, value in {**sites.HEADERS, **own, **response.headers}.items():
            self.send_header(name, value)
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            for piece in pieces(response.body):
                self.wfile.write(piece)


def pieces(body: bytes) -> Iterator[memoryview]:
    """Each has the whole time for sending, so a slow network gets a large picture too."""
    view = memoryview(body)
    return (view[start : start + _PIECE] for start in range(0, len(body), _PIECE))


@contextlib.contextmanager
def showing(address: str) -> Iterator[bool]:
    """Open an address, and whether there is a browser.

    A browser's arguments are there for all users of the machine to read (`ps`), so it gets a file that leads to the
    address and that only its own user may read. A browser for terminals runs until its user leaves it.
    """
    with tempfile.TemporaryDirectory(prefix="gpushare-dashboard-", ignore_cleanup_errors=True) as folder:
        file = Path(folder) / "open.html"
        target = html.escape(address)
        file.write_text(
            f'<!doctype html><title>gpushare</title><meta http-equiv="refresh" content="0; url={target}">'
            f'<a href="{target}">gpushare dashboard</a>\n',
            encoding="utf-8",
        )
        try:
            browser = webbrowser.get()
        except webbrowser.Error:
            yield False
        else:
            threading.Thread(target=browser.open, args=(file.as_uri(),), name="browser", daemon=True).start()
            yield True


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
