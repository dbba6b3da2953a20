"""What may be read of the cluster: by the user of a command, and by those who ask its page for a picture.

Those are known by their tokens alone, not by a header that names or impersonates somebody. With the token, API servers
are asked what its user may list. So they check it themselves, wherever it is from, and the dashboard needs no right to.
"""

import contextlib
import hashlib
import re
import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, Final

from gpushare.errors import WireError
from gpushare.kube import api as kube
from gpushare.kube.api import KubeApi
from gpushare.runtime.clock import Clock
from gpushare.wire import fields
from gpushare_cli import reading

_TIMEOUT_S: Final = 30.0
_BEARER: Final = re.compile(r"Bearer ([A-Za-z0-9._~+/-]+=*)", re.IGNORECASE)
"""API servers take what has another form for an anonymous request, and may let that in."""
_REVIEWS: Final = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
_FRESH_S: Final = 60.0  # from the first question on
_EARLY_S: Final = 15.0  # before the end: one request asks again, and others have the former answer meanwhile
_FAILED_S: Final = 5.0
_TOKENS: Final = 1000  # that are remembered, and as many that were refused
_BEGUN: Final = 64  # reviews that go on at the next try
_AT_ONCE: Final = 4  # reviews of known tokens, and as many of others; the other threads are for users who wait for none
_REVIEW_S: Final = 20.0  # of one try; proxies wait for 30 or 60
_NAMESPACES: Final = 500
"""About which it is asked, each by itself, where the pods of all may not be listed: a SelfSubjectRulesReview is for one
namespace as well, and incomplete where a webhook authorizes."""
Answers = dict[tuple[str, str], bool]  # whether a resource of a namespace, empty for all, may be listed


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    nodes: bool = True
    namespaces: tuple[str, ...] | None = None  # whose pods; None for all
    events: tuple[str, ...] | None = None  # of whose pods; None for all pods that are shown

    @property
    def complete(self) -> bool:
        return self.nodes and self.namespaces is None

    @property
    def words(self) -> str:
        left_out = []
        if self.namespaces is not None:
            whose = f"only pods of {', '.join(self.namespaces)} are" if self.namespaces else "no pod is"
            left_out.append(f"{whose} shown; others may hold the rest of a GPU")
        if not self.nodes:
            left_out.append("nodes may not be read: only GPUs that these pods hold are shown")
        return "; ".join(left_out)

    def shows(self, namespace: str) -> bool:
        return self.namespaces is None or namespace in self.namespaces

    def shows_events(self, namespace: str) -> bool:
        return self.shows(namespace) and (self.events is None or namespace in self.events)


def scope(api: KubeApi, namespaces: Sequence[str], own: Callable[[], str]) -> Scope:
    """What the user may read of these namespaces, or of all; of his own where he names none and may not read all.

    Raises KubeError: the cluster cannot be read; ForbiddenError if not even the pods of one namespace may be.
    """
    wanted = tuple(namespaces)
    if not wanted and not _may_list(api, "/api/v1/pods"):
        wanted = (own(),)
    for namespace in wanted:
        _probe(api, path_of(namespace, "pods"))
    return Scope(nodes=_may_list(api, "/api/v1/nodes"), namespaces=wanted or None)


class Reviews:
    """What the API server lets users list, asked once a minute. Safe for threads."""

    def __init__(self, api_of: Callable[[str], KubeApi], namespaces: Callable[[], Sequence[str]], clock: Clock) -> None:
        """Args: api_of: by a token; namespaces: about which it is asked, where the pods of all may not be listed."""
        self._api_of, self._namespaces, self._clock = api_of, namespaces, clock
        self._lock = threading.Lock()
        self._scopes: dict[bytes, tuple[float, Scope]] = {}
        self._refusals: dict[bytes, tuple[float, kube.KubeError]] = {}
        self._begun: dict[bytes, tuple[float, Answers]] = {}
        self._asking: set[bytes] = set()

    def scope(self, authorization: str) -> Scope:
        """Of a request with this header. Raises KubeError: it may see nothing, or what it may see is not known."""
        if (token := _BEARER.fullmatch(authorization)) is None:
            raise kube.UnauthorizedError("Sign in with a token of the cluster.")
        digest = hashlib.sha256(token[1].encode()).digest()
        with self._lock:
            before, is_asked = self._known(digest)
            if before is not None and not is_asked:
                return before
            self._asking.add(digest)
            now = self._clock.monotonic()
            until, answers = self._begun.pop(digest, (now, {}))
        if until <= now:
            until, answers = now + _FRESH_S, {}
        try:
            scope = self._review(self._api_of(token[1]), answers, min(until, now + _REVIEW_S))
            self._keep(self._scopes, digest, until, scope)
        except kube.KubeError as error:
            told = _told(error)
            lasts = isinstance(error, kube.ForbiddenError)
            self._keep(self._refusals, digest, until if lasts else self._clock.monotonic() + _FAILED_S, told)
            if answers and not lasts:
                self._keep(self._begun, digest, until, answers, _BEGUN)
            if before is not None and not isinstance(error, kube.ForbiddenError | kube.UnauthorizedError):
                return before
            with self._lock:
                self._scopes.pop(digest, None)
            raise type(told)(str(told)) from error  # what is kept must not hold frames, which have the token
        finally:
            with self._lock:
                self._asking.discard(digest)
        return scope

    def _known(self, digest: bytes) -> tuple[Scope | None, bool]:
        """What counts yet, and whether to ask. Raises KubeError: nothing counts, and it is not asked now."""
        now = self._clock.monotonic()
        until, scope = self._scopes.get(digest, (now, None))
        before = scope if now < until else None
        # Those who were known a minute ago do not wait behind tokens that anybody may make up.
        alike = [each for each in self._asking if (each in self._scopes) == (scope is not None)]
        may_ask = digest not in self._asking and len(alike) < _AT_ONCE
        refused_until, refusal = self._refusals.get(digest, (now, None))
        is_refused = refusal is not None and now < refused_until
        if before is None and refusal is not None and is_refused:
            raise type(refusal)(str(refusal))
        if before is None and not may_ask:
            raise kube.TooManyRequestsError("Others, or another page of yours, are signing in; try again.")
        return before, before is None or (may_ask and not is_refused and now >= until - _EARLY_S)

    def _keep(self, kept: dict[bytes, Any], digest: bytes, until: float, value: object, most: int = 0) -> None:
        with self._lock:
            now = self._clock.monotonic()
            for each in (self._scopes, self._refusals, self._begun):
                longer_s = _FRESH_S if each is self._scopes else 0.0  # as known
                for old in [old for old, (end, _) in each.items() if end + longer_s <= now]:
                    del each[old]
            kept.pop(digest, None)
            kept[digest] = until, value
            if len(kept) > (most or _TOKENS):
                del kept[next(iter(kept))]

    def _review(self, api: KubeApi, answers: Answers, until: float) -> Scope:
        def may_list(resource: str, namespace: str = "") -> bool:
            if (resource, namespace) not in answers:
                answers[resource, namespace] = ask(resource, namespace)
            return answers[resource, namespace]

        def ask(resource: str, namespace: str) -> bool:
            if self._clock.monotonic() >= until:
                raise kube.UnreachableError("the API server answers too slowly; try again")
            attributes = {"verb": "list", "resource": resource, "namespace": namespace}
            body = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview"}
            answer = api.create(_REVIEWS, {**body, "spec": {"resourceAttributes": attributes}})
            try:
                return fields.mapping(answer, "status", "review").get("allowed") is True
            except WireError as error:
                raise kube.ServerFaultError(f"POST {_REVIEWS}: {error}") from error

        def listable(resource: str, among: Collection[str]) -> tuple[str, ...] | None:
            return None if may_list(resource) else tuple(each for each in among if may_list(resource, each))

        nodes, candidates = may_list("nodes"), self._namespaces()[:_NAMESPACES]
        pods = listable("pods", candidates)
        events = listable("events", candidates if pods is None else pods)
        if not nodes and not (pods is None or pods):
            raise kube.ForbiddenError("You may list neither nodes nor the pods of a namespace that has pods with GPUs.")
        return Scope(nodes=nodes, namespaces=pods, events=None if events == pods else events)


def _told(error: kube.KubeError) -> kube.KubeError:
    if isinstance(error, kube.UnauthorizedError):
        return kube.UnauthorizedError("The API server does not accept this token; it may have expired.")
    known = isinstance(error, kube.ForbiddenError)
    return type(error)(str(error) if known else f"It is not known what you may list: {error}")


def path_of(namespace: str, resource: str) -> str:
    return reading.namespaced(namespace, resource) if namespace else f"/api/v1/{resource}"


def _may_list(api: KubeApi, path: str) -> bool:
    with contextlib.suppress(kube.ForbiddenError):
        _probe(api, path)
        return True
    return False


def _probe(api: KubeApi, path: str) -> None:
    api.list_page(path, {"limit": "1"}, keep=lambda _: None, timeout_s=_TIMEOUT_S)
