"""Requests to the dashboard -> answers. Pure.

The stream has what its user may read of the cluster, so others must not see it: neither other users of the machine, who
reach its loopback address too (hence the key), nor pages of other sites in the same browser (hence the names of hosts,
against DNS rebinding, and the origin). The files of the page tell nothing, and need no key. The key is no cookie: a
browser sends those to all ports of a host, behind which other users of the machine may listen. Nothing here changes
anything.
"""

import hmac
import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Final
from urllib.parse import parse_qs

TEXT: Final = "text/plain; charset=utf-8"
HEADERS: Final[Mapping[str, str]] = {
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
"""Of every answer."""
STREAM: Final = "/stream"
_HOST: Final = re.compile(r"(?P<name>\[[0-9a-fA-F:.]+\]|[A-Za-z0-9.-]+)(?::[0-9]{1,5})?")
_VERSION: Final = re.compile(r"(?P<run>[A-Za-z0-9_-]+)\.(?P<version>[0-9]{1,15})")
_LONGEST: Final = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """As far as it decides anything."""

    method: str
    target: str
    headers: Mapping[str, str]
    """By name in lower case."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asset:
    """A file of the page."""

    media: str
    body: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What is sent."""

    status: HTTPStatus = HTTPStatus.OK
    media: str = TEXT
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """Changes are sent for as long as the browser reads."""

    since: int
    """The version that the browser has; 0 for none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """What is served, and to whom."""

    assets: Mapping[str, Asset]
    """By path; the page itself is `/`."""
    key: str
    """That the address has; empty if anyone who reaches the loopback address may look."""
    run: str
    """Of this process, so that versions of an earlier one are not taken for its own."""

    def answer(self, request: Request) -> Answer | Stream:
        """What a request gets."""
        if len(request.target) > _LONGEST or not request.target.startswith("/"):
            return _no(HTTPStatus.BAD_REQUEST, "not a path")
        if not is_local(request.headers.get("host", "")):
            return _no(
                HTTPStatus.MISDIRECTED_REQUEST, "served to this machine only: open http://127.0.0.1 or http://localhost"
            )
        if request.method not in {"GET", "HEAD"}:
            return _no(HTTPStatus.METHOD_NOT_ALLOWED, "nothing can be changed here", {"Allow": "GET, HEAD"})
        path, _, query = request.target.partition("?")
        if path != "/" and request.headers.get("sec-fetch-site", "same-origin") not in {"same-origin", "none"}:
            return _no(HTTPStatus.FORBIDDEN, "asked for by another site")
        if path == STREAM:
            if not self._knows(parse_qs(query).get("key", [""])[-1]):
                return _no(HTTPStatus.FORBIDDEN, "open the address that `gpushare dashboard` has printed: it has a key")
            return Stream(since=self._since(request.headers.get("last-event-id", "")))
        asset = self.assets.get(path)
        if asset is None:
            return _no(HTTPStatus.NOT_FOUND, "there is no such page")
        return Answer(media=asset.media, body=asset.body)

    def _knows(self, brought: str) -> bool:
        return not self.key or hmac.compare_digest(brought.encode(), self.key.encode())

    def _since(self, last: str) -> int:
        match = _VERSION.fullmatch(last)
        return int(match["version"]) if match and match["run"] == self.run else 0


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


def _no(status: HTTPStatus, why: str, headers: Mapping[str, str] | None = None) -> Answer:
    return Answer(status=status, body=f"{why}\n".encode(), headers=headers or {})
