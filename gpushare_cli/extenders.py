"""How kube-scheduler is told of the controller: which of its paths to call for which pods. Pure."""

import base64
from collections.abc import Iterable
from typing import Any, Final
from urllib.parse import urlsplit

from gpushare import names
from gpushare.errors import SettingsError

CONTROLLER_PORT: Final = 12345
"""Port of the controller's Service, the same as Aliyun's extender has."""
DEFAULT_URL: Final = f"http://{names.CONTROLLER_SERVICE}.{names.NAMESPACE}.svc:{CONTROLLER_PORT}{names.EXTENDER_PREFIX}"

Entry = dict[str, Any]
"""As KubeSchedulerConfiguration spells it, but for `httpTimeout`, which is in seconds."""


def for_gpus(url: str, ca_pem: bytes, resources: Iterable[str], weight: int) -> Entry:
    """Filters, ranks and binds pods that ask for these resources.

    Raises:
        SettingsError: URL and CA do not go together.
    """
    return {
        "urlPrefix": _checked(url),
        "filterVerb": "filter",
        "prioritizeVerb": "prioritize",
        "preemptVerb": "preempt",
        "weight": weight,
        "bindVerb": "bind",
        **_tls(url, ca_pem),
        "nodeCacheCapable": True,
        # Not ignored: the sums that the scheduler counts by itself keep out most nodes, and make it preempt.
        "managedResources": [{"name": name, "ignoredByScheduler": False} for name in resources],
        "ignorable": False,
        "httpTimeout": names.EXTENDER_TIMEOUT_S,
    }


def for_others(url: str, ca_pem: bytes, weight: int) -> Entry:
    """Ranks nodes for pods without GPUs, and does nothing else: without an answer they are scheduled as ever.

    Raises:
        SettingsError: URL and CA do not go together.
    """
    return {
        "urlPrefix": _checked(url),
        "prioritizeVerb": names.OTHERS_VERB,
        "weight": weight,
        **_tls(url, ca_pem),
        "nodeCacheCapable": True,
        "ignorable": True,
        "httpTimeout": names.OTHERS_TIMEOUT_S,
    }


def _tls(url: str, ca_pem: bytes) -> Entry:
    if not url.startswith("https:"):
        if ca_pem:
            raise SettingsError(f"extender URL {url!r}: a CA is given, but the URL is not https")
        return {"enableHTTPS": False}
    if not ca_pem:
        # kube-scheduler would switch verification off without a word.
        raise SettingsError(f"extender URL {url!r}: https needs the CA of its certificate; give --extender-ca FILE")
    if b"-----BEGIN CERTIFICATE-----" not in ca_pem:
        raise SettingsError("extender CA: no PEM certificate in it")
    return {"enableHTTPS": True, "tlsConfig": {"caData": base64.b64encode(ca_pem).decode()}}


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
