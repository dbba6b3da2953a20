"""`gpushare dashboard`: reads the cluster with the user's rights, and serves a page to the user's own browser.

The picture has what its user may read of the cluster, so others must not see it (with `--sign-in`, all may see of it
what they may read themselves, by tokens of their own instead of the key): neither other users of the machine,
who reach its loopback address too (hence the key), nor pages of other sites in the same browser (hence the names of
hosts, against DNS rebinding, and the origin). The files of the page tell nothing, and need no key. The key is no
cookie, which a browser sends to all ports of a host, behind which other users of the machine may listen; it comes in
a header, which another site's page could send after a preflight only, and that is refused. Nothing can be changed.
"""

import contextlib
import functools
import hmac
import html
import ipaddress
import re
import secrets
import socket
import tempfile
import threading
import webbrowser
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from http import HTTPStatus
from importlib import resources
from pathlib import Path
from typing import Final

from gpushare import names
from gpushare.errors import GpuShareError, SettingsError
from gpushare.kube import api as kube
from gpushare.kube.api import KubeApi
from gpushare.runtime import http, intake, logs, pages
from gpushare.runtime.clock import Clock, SystemClock
from gpushare.runtime.pages import Request, Response
from gpushare.runtime.tls import Contexts
from gpushare_cli import arguments, demo, reading, usage
from gpushare_cli.arguments import Call, Command, argument, switch, told_to_end
from gpushare_cli.console import OK, Streams
from gpushare_cli.dashboard import access
from gpushare_cli.dashboard.access import Reviews, Scope
from gpushare_cli.dashboard.picture import Live, ScopedPictures
from gpushare_cli.dashboard.watching import Watched
from gpushare_cli.reading import Settings

PORT: Final = 8127
LOOPBACK: Final = "127.0.0.1"
PICTURE: Final = "/picture"
HEALTH: Final = "/healthz"
KEY: Final = "Gpushare-Key"  # the header
_MISDIRECTED: Final = "served to this machine only: open http://127.0.0.1 or http://localhost"
_UNKNOWN: Final = "not a name of the dashboard; give it by --host, in the chart by dashboard.hosts"
HEADERS: Final[Mapping[str, str]] = {  # of every response
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; base-uri 'none';"
        " form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
    ),
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Cache-Control": "no-store",
}
_MEDIA: Final = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
_HOST: Final = re.compile(r"(?P<name>\[[0-9a-fA-F:.]+\]|[A-Za-z0-9.-]+)(?::[0-9]{1,5})?")
_LONGEST: Final = 4096
_LOOK_S: Final = 0.5
_KEPT_S: Final = 20.0  # connections, for what a browser asks next
_SEND_S: Final = 120.0  # a large picture over a slow network; the page has as much patience
_THREADS: Final = 16
_CONNECTIONS: Final = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class Scoped:
    namespace: Sequence[str] | None = argument(
        "-n",
        "--namespace",
        action="append",
        default=None,
        metavar="NAME",
        help="only its pods, may be repeated; by default all, or where you may not read all, the kubeconfig's",
    )
    installation: str = arguments.installation("the device plugins, which tell what is used")
    demo: bool = switch("--demo", what="show a made-up cluster with simulated GPUs, instead of yours: none is needed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Options(Scoped):
    port: int = arguments.number(
        "--port",
        "to listen on, 0 for any that is free (default: %(default)s)",
        default=PORT,
        metavar="NUMBER",
        least=0,
        most=65535,
    )
    browser: bool = switch("--browser", what="also open the page")
    no_key: bool = switch(
        "--no-key",
        what="show it to anyone who reaches the loopback address; for pods, which only kubectl port-forward reaches",
    )
    sign_in: bool = switch(
        "--sign-in",
        what="show everyone what they may list themselves: each request needs a token of the cluster, which the page"
        " asks for or a proxy adds (Authorization: Bearer); what is read by your own rights must be everything",
    )
    cert_dir: str = argument(
        "--cert-dir",
        metavar="DIRECTORY",
        help="with --sign-in: serve over TLS at every address, by tls.crt and tls.key there, which may be replaced",
    )
    host: Sequence[str] | None = argument(
        "--host",
        action="append",
        default=None,
        metavar="NAME",
        help="with --sign-in: answer requests for this name of the dashboard too, may be repeated",
    )


def run(
    live: Live,
    streams: Streams,
    options: Options,
    clock: Clock,
    ended: Callable[[], bool],
    api_of: Callable[[str], KubeApi] | None = None,
) -> int:
    """Serve a picture, which has not begun, until it is told to end. The exit code.

    Args: api_of: by a user's token, if users have to sign in.
    """
    stop = threading.Event()
    key = "" if options.no_key or api_of else secrets.token_urlsafe(24)
    site, contexts = Site(assets=assets(), picture=keyed(key, live.page)), None
    if api_of is not None:
        pictures = ScopedPictures(live)
        pictures.start(stop)
        signed = signed_in(Reviews(api_of, live.namespaces, clock), pictures)
        hosts = frozenset(map(str.lower, options.host or ()))
        site = replace(site, picture=signed, hosts=hosts, misdirected=_UNKNOWN)
    if options.cert_dir:
        folder = Path(options.cert_dir)
        contexts = Contexts(files=lambda: (folder / "tls.crt", folder / "tls.key"))
        if problem := contexts.problem():
            return streams.error(problem)
    with contextlib.ExitStack() as opened:
        opened.callback(stop.set)
        try:
            port = opened.enter_context(serving(options.port, site, contexts))
        except SettingsError as error:
            return streams.error(f"{error}; give --port 0 for any other")
        live.start(stop)
        address = f"http{'s' if contexts else ''}://{LOOPBACK}:{port}/{f'#key={key}' if key else ''}"
        streams.note(live.scope.words, *live.notes)
        streams.out.write(f"{address}\n")
        streams.out.flush()
        where = "It listens on every address" if contexts else "Open this address on this machine"
        streams.progress(f"{where}; Ctrl-C ends it.")
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
    """What may be read is asked first, as every command asks: there, Ctrl-C ends the process at once.

    SettingsError if arguments name a cluster that a demonstration does not read.
    """
    logs.configure(level="error", text=True)  # the picture itself says what is old
    if not options.demo:
        return of_cluster(call.api(), options, call.namespace, call.clock, call.context_name())
    for flag, default in (("kubeconfig", ""), ("context", ""), ("installation", names.NAMESPACE)):
        if getattr(call.arguments, flag) != default:
            raise SettingsError(f"--{flag} has no meaning with --demo, which reads no cluster; leave one of them out")
    live = of_cluster(demo.begun(call.clock), options, call.namespace, call.clock, "a demonstration")
    live.notes = (demo.NOTE, *live.notes)
    return live


def of_cluster(api: KubeApi, options: Scoped, own: Callable[[], str], clock: Clock, server: str = "") -> Live:
    """The picture of a cluster, of which nothing is read yet but what may be read. KubeError if it cannot be."""
    scope = access.scope(api, options.namespace or (), own)
    settings, notes, config = Settings(), tuple[str, ...](), None
    with contextlib.suppress(kube.ForbiddenError, kube.NotFoundError):
        config = api.get(reading.namespaced(options.installation, "configmaps", names.CONFIG))
    try:
        settings = reading.settings_of(config)
    except GpuShareError as error:
        notes = (f"ConfigMap {names.CONFIG}: {error}; its settings are not applied",)
    use = functools.partial(usage.read, api, namespace=options.installation)
    return Live(Watched(api, scope, clock), scope, use, clock, settings, server=server, notes=notes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    assets: Mapping[str, Response]  # files of the page by path; the page itself is `/`
    picture: Callable[[Request], tuple[str, bytes]]
    """Of the moment, for who asks so: its entity tag and lines of JSON. Raises KubeError: there is none for him."""
    hosts: frozenset[str] = frozenset()  # names that are answered beside those of the loopback address
    misdirected: str = _MISDIRECTED  # what is said of other names

    def respond(self, request: Request) -> Response:
        response = self._respond(request)
        return replace(response, headers={**HEADERS, **response.headers})

    def _respond(self, request: Request) -> Response:
        path = request.path
        if len(path) > _LONGEST or not path.startswith("/"):
            return _no(HTTPStatus.BAD_REQUEST, "not a path")
        if path != HEALTH and not is_local(request.header("Host"), self.hosts):
            return _no(HTTPStatus.MISDIRECTED_REQUEST, self.misdirected)
        if request.method not in {"GET", "HEAD"}:
            return _no(HTTPStatus.METHOD_NOT_ALLOWED, "nothing can be changed here", {"Allow": "GET, HEAD"})
        if path != "/" and request.header("Sec-Fetch-Site", "same-origin") not in {"same-origin", "none"}:
            return _no(HTTPStatus.FORBIDDEN, "asked for by another site")
        if path != PICTURE:
            return self.assets.get(path) or _no(HTTPStatus.NOT_FOUND, "there is no such page")
        return self._picture(request)

    def _picture(self, request: Request) -> Response:
        try:
            tag, body = self.picture(request)
        except kube.UnauthorizedError as error:
            return _no(HTTPStatus.UNAUTHORIZED, str(error), {"WWW-Authenticate": "Bearer"})
        except kube.ForbiddenError as error:
            return _no(HTTPStatus.FORBIDDEN, str(error))
        except kube.KubeError as error:
            return _no(HTTPStatus.SERVICE_UNAVAILABLE, str(error))
        if request.header("If-None-Match") == tag:
            return Response(HTTPStatus.NOT_MODIFIED, b"", pages.TEXT, headers={"ETag": tag})
        return Response(HTTPStatus.OK, body, "application/x-ndjson", headers={"ETag": tag})


def keyed(key: str, page: Callable[[], tuple[str, bytes]]) -> Callable[[Request], tuple[str, bytes]]:
    """One picture for all who have the key, or for anyone if it is empty."""

    def picture(request: Request) -> tuple[str, bytes]:
        if key and not hmac.compare_digest(request.header(KEY).encode(), key.encode()):
            raise kube.ForbiddenError("Refused. Open the address that gpushare dashboard has printed: it has a key.")
        return page()

    return picture


def signed_in(reviews: Reviews, pictures: ScopedPictures) -> Callable[[Request], tuple[str, bytes]]:
    return lambda request: pictures.page(reviews.scope(request.header("Authorization")))


def is_local(host: str, names_too: Collection[str] = ()) -> bool:
    """Whether a Host header names this machine's loopback address. A name that an attacker owns may lead to it too."""
    match = _HOST.fullmatch(host)
    if match is None:
        return False
    name = match["name"].lower()
    with contextlib.suppress(ValueError):
        return name in {"localhost", *names_too} or ipaddress.ip_address(name.strip("[]")).is_loopback
    return False


def _no(status: HTTPStatus, why: str, headers: Mapping[str, str] | None = None) -> Response:
    return Response(status, f"{why}\n".encode(), pages.TEXT, headers=headers or {})


def assets() -> Mapping[str, Response]:
    return {HEALTH: pages.verdict("")} | {
        "/" if file.name == "index.html" else f"/{file.name}": Response(HTTPStatus.OK, file.read_bytes(), media)
        for file in resources.files("gpushare_cli.dashboard").joinpath("page").iterdir()
        if (media := _MEDIA.get(file.name.rpartition(".")[2]))
    }


@contextlib.contextmanager
def serving(port: int, site: Site, tls: Contexts | None = None) -> Iterator[int]:
    """Serve until the end of the block, on this port or for 0 on one that is free. SettingsError if it is taken.

    Without TLS only on the loopback address.
    """
    every = "::" if socket.has_dualstack_ipv6() else "0.0.0.0"  # noqa: S104 - a pod's only interface
    listener = http.listen(every if tls else LOOPBACK, port, f"port {port} cannot be used")
    server = http.HttpServer(
        application=pages.wsgi(site.respond),
        listener=listener,
        clock=SystemClock(),
        threads=_THREADS,
        waiting=frozenset({PICTURE}),
        waiting_threads=_THREADS,
        tls=tls.current if tls else None,
        most=intake.SMALL,  # bodies are read, and nothing is done with them
        budget=intake.ByteBudget(0),
        keep_alive_s=_KEPT_S,
        connections=_CONNECTIONS,
        send_s=_SEND_S,
    )
    told = threading.Event()
    thread = threading.Thread(target=server.serve, args=(told.is_set, lambda: None), name="http", daemon=True)
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        told.set()
        thread.join()
        server.finish(lambda: None, grace_s=0.0)


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
    options = call.options(Options)
    if options.sign_in and (options.demo or options.namespace):
        raise SettingsError("--sign-in shows to users of a cluster what each may list: leave --demo and -n out")
    if (options.cert_dir or options.host) and not options.sign_in:
        raise SettingsError("--cert-dir and --host: they need --sign-in")
    live = of_call(call, options)
    if options.sign_in and live.scope != Scope():
        raise SettingsError("--sign-in: it must be allowed to list nodes and the pods of all namespaces")
    with told_to_end() as ended:
        return run(live, call.streams, options, call.clock, ended, call.api_of() if options.sign_in else None)


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
    description="Serve a page that shows the GPUs, who holds them, and what waits, to this machine's own browser, or"
    " with --sign-in to users of the cluster. It reads the cluster with your rights, and changes nothing.",
    options=Options,
    run=_run,
)
