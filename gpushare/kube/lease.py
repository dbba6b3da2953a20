"""Leader election by a Lease: at most one leader, and one that lost its lease knows it before anybody else leads.

A candidate never compares its clock with another's: it takes over when the Lease has not changed for the lease's
length by its own monotonic clock. A leader counts from the moment before its last successful renewal was sent and
stops leading after `renew_s`, which is less than `lease_s`; the difference covers requests that are still in flight.
"""

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from gpushare.kube import api as kube
from gpushare.kube.api import JsonObject, KubeApi
from gpushare.runtime import logs
from gpushare.runtime.clock import Clock

_LOG: Final = logging.getLogger(__name__)


@dataclass(kw_only=True)
class Elector:
    """One candidate."""

    api: KubeApi
    clock: Clock
    namespace: str
    name: str
    identity: str
    """Unique to this process, such as pod name and a random part."""
    lease_s: float = 15.0
    """Others may take over after this long without a renewal."""
    renew_s: float = 10.0
    """The leader gives up after this long without a successful renewal."""
    retry_s: float = 2.0
    """Between tries to get or renew the lease."""
    _leading_until: float = field(init=False, default=float("-inf"))
    _seen: tuple[str, str] = field(init=False, default=("", ""))
    _seen_at: float = field(init=False, default=float("-inf"))

    def __post_init__(self) -> None:
        if not 0 < self.retry_s < self.renew_s < self.lease_s:
            raise ValueError(f"retry {self.retry_s} s < renew {self.renew_s} s < lease {self.lease_s} s must hold")

    def leading(self) -> bool:
        """Whether this process leads at this very moment."""
        return self.clock.monotonic() < self._leading_until

    def run(self, stop: threading.Event, on_lead: Callable[[], None]) -> None:
        """Compete; lead; return when the lead is lost or `stop` is set.

        Args:
            stop: ends the election and releases the lease, so that the next leader need not wait.
            on_lead: called once, in this thread, right after the lead was won; must return quickly.
        """
        while not self._try():
            if self.clock.wait(stop, self.retry_s):
                return
        logs.event(_LOG, "leading", identity=self.identity, lease=self.name)
        on_lead()
        while not self.clock.wait(stop, self.retry_s):
            self._try()
            if not self.leading():
                logs.event(_LOG, "lead lost", level=logging.ERROR, identity=self.identity, lease=self.name)
                return
        self._release()

    def _path(self) -> str:
        return f"/apis/coordination.k8s.io/v1/namespaces/{self.namespace}/leases"

    def _try(self) -> bool:
        """Get or renew the lease. Whether this process leads."""
        sent = self.clock.monotonic()
        try:
            if self._acquire(sent):
                self._leading_until = sent + self.renew_s
        except kube.ConflictError:
            pass  # another candidate was first; look again at the next try
        except kube.KubeError as error:
            logs.event(_LOG, "lease", level=logging.WARNING, error=str(error), leading=self.leading())
        return self.leading()

    def _acquire(self, now: float) -> bool:
        timeout_s = min(self.retry_s, 5.0)
        try:
            lease = self.api.get(f"{self._path()}/{self.name}", timeout_s=timeout_s)
        except kube.NotFoundError:
            self.api.create(self._path(), self._body({}, None), timeout_s=timeout_s)
            return True
        spec: dict[str, Any] = lease.get("spec") or {}
        holder = spec.get("holderIdentity") or ""
        seen = (holder, str(spec.get("renewTime") or ""))
        if seen != self._seen:
            self._seen, self._seen_at = seen, now
        if holder not in {"", self.identity} and now - self._seen_at < max(
            self.lease_s, float(spec.get("leaseDurationSeconds") or 0)
        ):
            self._leading_until = float("-inf")
            return False
        if holder == self.identity and self._leading_until == float("-inf") and now - self._seen_at < self.lease_s:
            # An earlier lead of this identity ended; wait it out like anybody's.
            return False
        self.api.replace(f"{self._path()}/{self.name}", self._body(spec, lease["metadata"]), timeout_s=timeout_s)
        return True

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
                "leaseDurationSeconds": int(self.lease_s),
                "acquireTime": spec.get("acquireTime", now) if ours else now,
                "renewTime": now,
                "leaseTransitions": transitions if ours or metadata is None else transitions + 1,
            },
        }

    def _release(self) -> None:
        """Give the lease back. Called when nothing that this leader sent is in flight any more."""
        self._leading_until = float("-inf")
        try:
            lease = self.api.get(f"{self._path()}/{self.name}", timeout_s=self.retry_s)
            if (lease.get("spec") or {}).get("holderIdentity") == self.identity:
                body = self._body(lease["spec"], lease["metadata"], release=True)
                self.api.replace(f"{self._path()}/{self.name}", body, timeout_s=self.retry_s)
                logs.event(_LOG, "lease released", identity=self.identity, lease=self.name)
        except kube.KubeError as error:
            logs.event(_LOG, "lease not released", level=logging.WARNING, error=str(error))
