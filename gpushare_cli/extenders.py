"""How kube-scheduler is told of the controller: which of its paths to call for which pods. Pure."""

import base64
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

from gpushare import names
from gpushare.errors import SettingsError

CONTROLLER_PORT: Final = 12345
"""Port of the controller's Service, the same as Aliyun's extender has."""
DEFAULT_URL: Final = f"http://{names.CONTROLLER_SERVICE}.{names.NAMESPACE}.svc:{CONTROLLER_PORT}{names.EXTENDER_PREFIX}"

_PROXY: Final = "/proxy/"

Entry = dict[str, Any]
"""As KubeSchedulerConfiguration spells it, but for `httpTimeout`, which is in seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """How kube-scheduler reaches the controller."""

    url: str
    """Prefix of the paths."""
    ca_pem: bytes = b""
    """Of its certificate, for https."""
    client_cert: str = ""
    """Path of a certificate by which kube-scheduler is known there: the API server's proxy asks who it is."""
    client_key: str = ""


def for_gpus(server: Server, resources: Iterable[str], weight: int) -> Entry:
    """Filters, ranks and binds pods that ask for these resources.

    Raises:
        SettingsError: URL and certificates do not go together.
    """
    return {
        "urlPrefix": _checked(server.url),
        "filterVerb": "filter",
        "prioritizeVerb": "prioritize",
        "preemptVerb": "preempt",
        "weight": weight,
        "bindVerb": "bind",
        **_tls(server),
        "nodeCacheCapable": True,
        # Not ignored: the sums that the scheduler counts by itself keep out most nodes, and make it preempt.
        "managedResources": [{"name": name, "ignoredByScheduler": False} for name in resources],
        "ignorable": False,
        "httpTimeout": names.EXTENDER_TIMEOUT_S,
    }


def for_others(server: Server, weight: int) -> Entry:
    """Ranks nodes for pods without GPUs, and does nothing else: without an answer they are scheduled as ever.

    Raises:
        SettingsError: URL and certificates do not go together.
    """
    return {
        "urlPrefix": _checked(server.url),
        "prioritizeVerb": names.OTHERS_VERB,
        "weight": weight,
        **_tls(server),
        "nodeCacheCapable": True,
        "ignorable": True,
        "httpTimeout": names.OTHERS_TIMEOUT_S,
    }


def _tls(server: Server) -> Entry:
    url, client = server.url, bool(server.client_cert)
    if client != bool(server.client_key):
        raise SettingsError("extender client certificate: give --extender-client-cert and --extender-client-key")
    if not url.startswith("https:"):
        if server.ca_pem or client:
            what = "a CA" if server.ca_pem else "a client certificate"
            raise SettingsError(f"extender URL {url!r}: {what} is given, but the URL is not https")
        return {"enableHTTPS": False}
    if not server.ca_pem:
        # kube-scheduler would switch verification off without a word.
        raise SettingsError(f"extender URL {url!r}: https needs the CA of its certificate; give --extender-ca FILE")
    if b"-----BEGIN CERTIFICATE-----" not in server.ca_pem:
        raise SettingsError("extender CA: no PEM certificate in it")
    if _PROXY in url and not client:
        raise SettingsError(
            f"extender URL {url!r}: the API server's proxy must know kube-scheduler, which sends it no token; give"
            " --extender-client-cert PATH and --extender-client-key PATH"
        )
    files = {"certFile": server.client_cert, "keyFile": server.client_key} if client else {}
    return {"enableHTTPS": True, "tlsConfig": {"caData": base64.b64encode(server.ca_pem).decode(), **files}}


def _checked(url: str) -> str:
    problem = _url_problem(url)
    if problem:
        raise SettingsError(f"extender URL {url!r}: {problem}; write something like {DEFAULT_URL}")
    return url.rstrip("/")


def _url_problem(url: str) -> str:
    try:
        parts = urlsplit(url)
        host = parts.hostname
        _ = parts.port  # reading it checks it
    except ValueError as error:
        return str(error)
    if parts.scheme not in {"http", "https"}:
        return "must begin with http:// or https://"
    if not host:
        return "has no host"
    if parts.query or parts.fragment or parts.username:
        return "must have neither user, query nor fragment"
    return ""
