"""Leader election by a Lease: at most one leader, and one that lost its lease knows it before anybody else leads.

A candidate never compares its clock with another's: it takes over when the Lease has not changed for the lease's
length by its own clock, which goes on in suspend. A leader counts from the moment before its last successful renewal
was sent and stops leading after `renew_s`, which is less than `lease_s`; the difference covers requests that are still
in flight. A request may take half of `renew_s`, so that one that is lost can be repeated before the lead ends.
"""

import logging
import math
from dataclasses import dataclass, field
from typing import Any, Final

from gpushare.kube import api as kube
from gpushare.kube.api import JsonObject, KubeApi
from gpushare.runtime import logs
from gpushare.runtime.clock import Clock

_LOG: Final = logging.getLogger(__name__)
_DELETED: Final = "deleted"  # in the place of the last renewal


@dataclass(kw_only=True)
class Elector:
    """One candidate, for one term: who lost the lead competes again as another candidate."""

    api: KubeApi
    clock: Clock
    namespace: str
    name: str
    identity: str  # unique to this term, such as the pod's name and a random part
    lease_s: float = 15.0  # others may take over after this long without a renewal
    renew_s: float = 10.0  # the leader gives up after this long without a successful renewal
    leading_until: float = field(init=False, default=float("-inf"))  # on `clock`; grows with every renewal
    answered_at: float = field(init=False, default=float("-inf"))  # on `clock`: when the Lease was last read or written
    _lease: JsonObject | None = field(init=False, default=None)  # as this candidate wrote it last
    _seen: tuple[str, str] = field(init=False, default=("", ""))
    _seen_at: float = field(init=False, default=float("-inf"))

    def __post_init__(self) -> None:
        if not 0 < self.renew_s < self.lease_s:
            raise ValueError(f"renew {self.renew_s} s < lease {self.lease_s} s must hold")

    def leading(self) -> bool:
        return self.clock.monotonic() < self.leading_until

    def attempt(self) -> bool:
        """Get or renew the lease. Whether this candidate leads. What the server or the network does is no error."""
        sent = self.clock.monotonic()
        try:
            if self._renew() or self._acquire():
                self.leading_until = sent + self.renew_s
            self.answered_at = self.clock.monotonic()
        except kube.ConflictError:
            # Another candidate was first; the next attempt reads what it wrote.
            self.answered_at = self.clock.monotonic()
        except kube.KubeError as error:
            logs.event(_LOG, "lease", level=logging.WARNING, error=str(error), leading=self.leading())
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            problem = f"malformed Lease ({type(error).__name__}: {error}); is there a proxy in between?"
            logs.event(_LOG, "lease", level=logging.WARNING, error=problem, leading=self.leading())
        return self.leading()

    def release(self) -> None:
        """Give the lease back. Call when nothing that this leader sent can still take effect."""
        self.leading_until = float("-inf")
        try:
            lease = self.api.get(f"{self._path()}/{self.name}", timeout_s=self._timeout_s())
            if (lease.get("spec") or {}).get("holderIdentity") == self.identity:
                self._replace(lease, release=True)
                logs.event(_LOG, "lease released", identity=self.identity, lease=self.name)
        except kube.KubeError as error:
            logs.event(_LOG, "lease not released", level=logging.WARNING, error=str(error))

    def _path(self) -> str:
        return f"/apis/coordination.k8s.io/v1/namespaces/{self.namespace}/leases"

    def _timeout_s(self) -> float:
        """Of one request: a slow server has time to answer, a lost request can be repeated before the lead ends."""
        left = self.leading_until - self.clock.monotonic()
        return min(self.renew_s / 2, left) if left > 0 else self.renew_s / 2

    def _renew(self) -> bool:
        """A leader renews by one request, which fails if anybody wrote the Lease meanwhile."""
        if self._lease is None or not self.leading():
            return False
        try:
            self._replace(self._lease)
        except kube.ConflictError:
            self._lease = None
            return False  # perhaps by an earlier request of this candidate, whose answer was lost
        return True

    def _acquire(self) -> bool:
        try:
            lease = self.api.get(f"{self._path()}/{self.name}", timeout_s=self._timeout_s())
        except kube.NotFoundError:
            if self._seen[0]:  # somebody has deleted it, and the leader may not know
                now, gone = self.clock.monotonic(), (self._seen[0], _DELETED)
                if self._seen != gone:
                    self._seen, self._seen_at = gone, now
                if now - self._seen_at < self.lease_s:
                    return False
            body = self._body({}, None)
            self._lease = self.api.create(self._path(), body, timeout_s=self._timeout_s())
            return True
        now = self.clock.monotonic()  # after the answer: it shows no renewal that was sent later than this
        spec: dict[str, Any] = lease.get("spec") or {}
        holder = spec.get("holderIdentity") or ""
        seen = (holder, str(spec.get("renewTime") or ""))
        if seen != self._seen:
            self._seen, self._seen_at = seen, now
        if holder not in {"", self.identity} and now - self._seen_at < max(
            self.lease_s, float(spec.get("leaseDurationSeconds") or 0)
        ):
            self.leading_until = float("-inf")
            return False
        if holder == self.identity and not self.leading() and now - self._seen_at < self.lease_s:
            # The answer to the request that got the lease was lost, or came too late; wait it out like anybody's.
            return False
        self._replace(lease)
        return True

    def _replace(self, lease: JsonObject, *, release: bool = False) -> None:
        body = self._body(lease.get("spec") or {}, lease["metadata"], release=release)
        self._lease = self.api.replace(f"{self._path()}/{self.name}", body, timeout_s=self._timeout_s())

    def _body(self, spec: JsonObject, metadata: JsonObject | None, *, release: bool = False) -> JsonObject:
        now = self.clock.now().strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        ours = spec.get("holderIdentity") == self.identity
        transitions = int(spec.get("leaseTransitions") or 0)
        return {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": metadata or {"name": self.name, "namespace": self.namespace},
            "spec": {
                "holderIdentity": "" if release else self.identity,
                "leaseDurationSeconds": math.ceil(self.lease_s),  # a candidate with a shorter lease waits as long
                "acquireTime": spec.get("acquireTime", now) if ours else now,
                "renewTime": now,
                "leaseTransitions": transitions if ours or metadata is None else transitions + 1,
            },
        }
