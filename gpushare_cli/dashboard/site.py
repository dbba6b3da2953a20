"""Requests to the dashboard -> responses. Pure.

The picture has what its user may read of the cluster, so others must not see it: neither other users of the machine,
who reach its loopback address too (hence the key), nor pages of other sites in the same browser (hence the names of
hosts, against DNS rebinding, and the origin). The files of the page tell nothing, and need no key. The key is no
cookie, which a browser sends to all ports of a host, behind which other users of the machine may listen; it comes in
a header, which another site's page could send after a preflight only, and that is refused. Nothing can be changed.
"""

import hmac
import ipaddress
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Final

TEXT: Final = "text/plain; charset=utf-8"
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
PICTURE: Final = "/picture"
KEY: Final = "gpushare-key"  # the header, as all of them in lower case
_HOST: Final = re.compile(r"(?P<name>\[[0-9a-fA-F:.]+\]|[A-Za-z0-9.-]+)(?::[0-9]{1,5})?")
_LONGEST: Final = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Response:
    status: HTTPStatus = HTTPStatus.OK
    media: str = TEXT
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    assets: Mapping[str, Response]  # files of the page by path; the page itself is `/`
    key: str  # that the address has; empty if anyone who reaches the loopback address may look
    page: Callable[[], tuple[str, bytes]]  # the picture of the moment: its entity tag and lines of JSON

    def respond(self, method: str, target: str, headers: Mapping[str, str]) -> Response:
        """What a request gets, of which the names of headers are in lower case."""
        if len(target) > _LONGEST or not target.startswith("/"):
            return _no(HTTPStatus.BAD_REQUEST, "not a path")
        if not is_local(headers.get("host", "")):
            return _no(
                HTTPStatus.MISDIRECTED_REQUEST, "served to this machine only: open http://127.0.0.1 or http://localhost"
            )
        if method not in {"GET", "HEAD"}:
            return _no(HTTPStatus.METHOD_NOT_ALLOWED, "nothing can be changed here", {"Allow": "GET, HEAD"})
        path = target.partition("?")[0]
        if path != "/" and headers.get("sec-fetch-site", "same-origin") not in {"same-origin", "none"}:
            return _no(HTTPStatus.FORBIDDEN, "asked for by another site")
        if path != PICTURE:
            return self.assets.get(path) or _no(HTTPStatus.NOT_FOUND, "there is no such page")
        if self.key and not hmac.compare_digest(headers.get(KEY, "").encode(), self.key.encode()):
            return _no(HTTPStatus.FORBIDDEN, "open the address that `gpushare dashboard` has printed: it has a key")
        tag, body = self.page()
        if headers.get("if-none-match") == tag:
            return Response(status=HTTPStatus.NOT_MODIFIED, headers={"ETag": tag})
        return Response(media="application/x-ndjson", body=body, headers={"ETag": tag})


def is_local(host: str) -> bool:
    """Whether a Host header names this machine's loopback address. A name that an attacker owns may lead to it too."""
    match = _HOST.fullmatch(host)
    if match is None:
        return False
    name = match["name"].lower()
    try:
        return name == "localhost" or ipaddress.ip_address(name.strip("[]")).is_loopback
    except ValueError:
        return False


def _no(status: HTTPStatus, why: str, headers: Mapping[str, str] | None = None) -> Response:
    return Response(status=status, body=f"{why}\n".encode(), headers=headers or {})
