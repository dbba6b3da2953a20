"""The few verbs of the Kubernetes API that this project uses, as a protocol over plain dictionaries.

On pods that is Events, by which this system speaks to their authors, and eviction.
`gpushare.kube.client` speaks it to a server, `testing.fakes.kube` in memory.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import Any, Final, Generic, Protocol, TypedDict, TypeVar, Unpack

import orjson

from gpushare.errors import GpuShareError
from gpushare.identity import PodRef

JsonObject = dict[str, Any]
Patch = JsonObject | Sequence[JsonObject]  # in JSON patch, a list of operations
Params = Mapping[str, str]
Precondition = Callable[[], bool]
T = TypeVar("T")
_BRIEF: Final = 200
_MESSAGE_LIMIT: Final = 1024  # bytes that the API server accepts
_EVICTION_S: Final = 5.0
_VERSIONS: Final = ("policy/v1", "policy/v1beta1")  # the first from Kubernetes 1.22 on, which answers 400 before


class PatchKind(Enum):
    MERGE = "application/merge-patch+json"
    STRATEGIC = "application/strategic-merge-patch+json"
    JSON = "application/json-patch+json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What an endpoint said in plain text, whatever the status."""

    status: int
    text: str
    at: datetime | None = None  # by the clock of the API server

    @property
    def is_good(self) -> bool:
        return 200 <= self.status < 300

    @property
    def brief(self) -> str:
        return " ".join(self.text[:_BRIEF].split()) or f"HTTP {self.status}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Page(Generic[T]):
    items: list[T]
    version: str  # the resourceVersion of the collection at which the list was made
    more: str = ""  # token for the parameter `continue`; empty on the last page


class WriteOptions(TypedDict, total=False):
    """A `precondition` is asked when everything that may block is over: the token is read and the connection stands.

    If it does not hold, nothing is sent, and the call raises NotSentError.
    """

    params: Params | None
    timeout_s: float  # 5 by default
    precondition: Precondition | None


class KubeApi(Protocol):
    """REST verbs on paths such as `/api/v1/nodes`. Every call has a deadline in seconds and raises a KubeError."""

    def get(self, path: str, params: Params | None = None, *, timeout_s: float = 5.0) -> JsonObject: ...

    def read_object(self, path: str, *, keep: Callable[[JsonObject], T], timeout_s: float = 5.0) -> T:
        """Read one object that a tenant may have made large, reduced at once. Large ones are parsed one at a time."""

    def list_page(
        self, path: str, params: Params | None = None, *, keep: Callable[[JsonObject], T], timeout_s: float = 300.0
    ) -> Page[T]:
        """Read a list, or as much of it as the parameter `limit` says, of which never more than one object is parsed.

        `keep` reduces each object as soon as it was read; it may raise. The deadline is for the whole answer.
        """

    def create(self, path: str, body: JsonObject, **options: Unpack[WriteOptions]) -> JsonObject: ...

    def replace(self, path: str, body: JsonObject, *, timeout_s: float = 5.0) -> JsonObject:
        """PUT an object; its resourceVersion guards against lost updates (ConflictError)."""

    def patch(
        self, path: str, body: Patch, *, kind: PatchKind = PatchKind.MERGE, **options: Unpack[WriteOptions]
    ) -> JsonObject: ...

    def delete(self, path: str, body: JsonObject | None = None, **options: Unpack[WriteOptions]) -> JsonObject: ...

    def watch(self, path: str, params: Params, *, timeout_s: float) -> Iterator[JsonObject]:
        """Events `{"type": ..., "object": ...}` of a collection, until the server ends the stream after `timeout_s`.

        It returns when the server has accepted the watch; the iterator waits for events. The client gives up a little
        later than the server ends it.
        """

    def ask(self, path: str, *, timeout_s: float = 5.0) -> Reply:
        """GET text: what the server says of itself, or what a Service's endpoint says (`proxy_path`).

        It raises where the API server itself says no or cannot reach the endpoint; an endpoint's own no is a Reply.
        """


class KubeError(GpuShareError):
    """The API server refused a request or could not be reached. `status` is 0 if there was no answer."""

    status = 0


class UnreachableError(KubeError):
    """No answer: connection refused, reset or timed out. Whether the request took effect is unknown."""


class NotSentError(KubeError):
    """Its precondition no longer held when it was to be sent: it took no effect and will take none."""


class BadRequestError(KubeError):  # The object or the request is malformed (400, 422).
    status = 400


class UnauthorizedError(KubeError):  # The credentials are missing or expired (401).
    status = 401


class ForbiddenError(KubeError):  # RBAC or an admission webhook said no (403).
    status = 403


class NotFoundError(KubeError):  # There is no such object (404).
    status = 404


class ConflictError(KubeError):  # Somebody else was first (409).
    status = 409


class GoneError(KubeError):  # The resourceVersion is too old; list again (410).
    status = 410
    more = ""  # token with which a list may go on at the newest version, if its own has expired


class TooManyRequestsError(KubeError):  # The server asks to come back later (429).
    status = 429


class ServerFaultError(KubeError):  # The server failed (5xx). Whether the request took effect is unknown.
    status = 500


TRANSIENT: Final = (UnreachableError, TooManyRequestsError, ServerFaultError)
"""The same request may succeed a moment later."""

_KINDS: Final = (UnauthorizedError, ForbiddenError, NotFoundError, ConflictError, GoneError, TooManyRequestsError)
_BY_STATUS: Final[Mapping[int, type[KubeError]]] = {kind.status: kind for kind in _KINDS}


def error_of(status: int, message: str) -> KubeError:
    default = ServerFaultError if status >= 500 else BadRequestError
    return _BY_STATUS.get(status, default)(message)


def error_in(code: int, body: bytes) -> KubeError:
    """The error for an answer; only the message of a `kind: Status` is kept, so that no data reaches a log."""
    status = status_in(body)
    problem = error_of(code, f"HTTP {code}" if status is None else str(status.get("message", ""))[:1024])
    metadata = status.get("metadata") if status else None
    if isinstance(problem, GoneError) and isinstance(metadata, dict):
        problem.more = str(metadata.get("continue") or "")
    return problem


def status_in(body: bytes) -> JsonObject | None:
    """The API server's own `kind: Status`, if an answer is one."""
    if not body.startswith(b"{"):
        return None
    try:
        value: JsonObject = orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
    return value if value.get("kind") == "Status" else None


def pod_path(namespace: str, name: str, subresource: str = "") -> str:
    return f"/api/v1/namespaces/{namespace}/pods/{name}" + (f"/{subresource}" if subresource else "")


def node_path(name: str, subresource: str = "") -> str:
    return f"/api/v1/nodes/{name}" + (f"/{subresource}" if subresource else "")


def proxy_path(namespace: str, service: str, path: str) -> str:
    """An endpoint behind the API server's proxy: of a Service by name and port, as in `https:gpushare-webhook:443`."""
    return f"/api/v1/namespaces/{namespace}/services/{service}/proxy/{path}"


class EventType(Enum):
    NORMAL = "Normal"
    WARNING = "Warning"


def event(pod: PodRef, kind: EventType, reason: str, message: str, *, component: str, now: datetime) -> JsonObject:
    """A core/v1 Event on a pod: a CamelCase reason for programs, and a message for its author."""
    stamp = now.strftime("%Y-%m-%dT%H:%M:%SZ")
    digest = hashlib.sha256(f"{pod.uid} {reason} {message} {now.isoformat()}".encode()).hexdigest()[:16]
    encoded = message.encode()
    if len(encoded) > _MESSAGE_LIMIT:
        message = encoded[: _MESSAGE_LIMIT - 4].decode(errors="ignore") + " ..."
    prefix = pod.name[:230].rstrip("-.")  # each part of a name ends in a letter or digit
    about = {"apiVersion": "v1", "kind": "Pod", "name": pod.name, "namespace": pod.namespace, "uid": pod.uid}
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{prefix}.{digest}", "namespace": pod.namespace},
        "involvedObject": about,
        "type": kind.value,
        "reason": reason,
        "message": message,
        "source": {"component": component},
        "reportingComponent": component,
        "reportingInstance": component,
        "firstTimestamp": stamp,
        "lastTimestamp": stamp,
        "count": 1,
    }


def post_event(api: KubeApi, body: JsonObject, *, timeout_s: float = 3.0) -> None:
    """Create an Event. May raise a KubeError, which callers log: an event is never worth failing for."""
    api.create(f"/api/v1/namespaces/{body['metadata']['namespace']}/events", body, timeout_s=timeout_s)


def evict(api: KubeApi, pod: PodRef) -> None:
    """Have exactly this pod deleted. Asking again after a lost reply does no harm.

    Raises NotFoundError if it is gone, ConflictError if one of its name with another UID is there,
    TooManyRequestsError if a PodDisruptionBudget protects it for now, and KubeErrors for anything else.
    """
    path = pod_path(pod.namespace, pod.name, "eviction")
    body = {
        "kind": "Eviction",
        "metadata": {"name": pod.name, "namespace": pod.namespace},
        "deleteOptions": {"preconditions": {"uid": pod.uid}},
    }
    newest, oldest = _VERSIONS
    try:
        api.create(path, {"apiVersion": newest, **body}, timeout_s=_EVICTION_S)
    except BadRequestError as error:
        try:
            api.create(path, {"apiVersion": oldest, **body}, timeout_s=_EVICTION_S)
        except BadRequestError as other:
            raise BadRequestError(f"{error}; in version {oldest}: {other}") from other
