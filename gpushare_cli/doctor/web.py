"""Plain text from the API server: what it says itself, and what a Service's endpoint says through its proxy."""

from dataclasses import dataclass
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Final, Protocol

import orjson

from gpushare.kube import api as kube
from gpushare.kube.api import KubeApi
from gpushare.kube.client import RestClient

_MOST_TEXT: Final = 200
_NOT_REACHED: Final = "error trying to reach service"  # older API servers say it in plain text


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What the endpoint itself said, whatever the status."""

    status: int
    text: str
    at: datetime | None = None
    """By the clock of the API server."""

    @property
    def is_good(self) -> bool:
        """Whether it agreed."""
        return 200 <= self.status < 300

    @property
    def brief(self) -> str:
        """The beginning, on one line."""
        return " ".join(self.text[:_MOST_TEXT].split()) or f"HTTP {self.status}"


class DoctorApi(KubeApi, Protocol):
    """KubeApi, and text."""

    def ask(self, path: str, *, timeout_s: float = 5.0) -> Answer:
        """GET a path, such as one below a Service's `proxy`.

        Raises:
            KubeError: the API server says no, or cannot reach the endpoint.
        """
        ...


class DoctorClient(RestClient):
    """See DoctorApi."""

    def ask(self, path: str, *, timeout_s: float = 5.0) -> Answer:
        """See DoctorApi."""
        response = self._send("GET", path, None, None, timeout_s)
        refusal = _refusal(response.data)
        if refusal is not None:
            raise kube.error_of(response.status, refusal)
        text = response.data.decode("utf-8", "replace")
        if response.status >= 500 and text.lower().startswith(_NOT_REACHED):
            raise kube.error_of(response.status, text[:_MOST_TEXT])
        at = _moment(response.headers.get("Date"))
        return Answer(status=response.status, text=text, at=at)


def service_path(namespace: str, service: str, path: str) -> str:
    """Of the API server's proxy.

    Args:
        namespace: of the Service.
        service: name and port, with `https:` before it if it speaks TLS, as in `https:gpushare-webhook:443`.
        path: of the endpoint, without a leading slash.
    """
    return f"/api/v1/namespaces/{namespace}/services/{service}/proxy/{path}"


def _refusal(body: bytes) -> str | None:
    """The message if this is the API server's own `kind: Status` and not the endpoint's word."""
    if not body.startswith(b"{"):
        return None
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
    if value.get("kind") != "Status" or value.get("status") != "Failure":
        return None
    return str(value.get("message", ""))[:1024]


def _moment(header: str | None) -> datetime | None:
    try:
        return parsedate_to_datetime(header) if header else None
    except ValueError:
        return None
