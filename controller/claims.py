"""GPUs that ResourceClaims share, as kube-scheduler allocates them: for its ranking of nodes, and to say why pods wait.

Nothing is reserved here, and no pod is kept from a node: kube-scheduler allocates, and the node has the last word.
"""

import logging
from dataclasses import dataclass, field, replace
from typing import Final

from controller.cluster_table import ClusterTable
from controller.index import Index, Snapshot
from controller.state import ClusterState
from gpushare.cluster import claim_records
from gpushare.cluster.claim_records import ClaimRecord
from gpushare.errors import WireError
from gpushare.identity import PodRef, PodUid
from gpushare.kube.api import JsonObject
from gpushare.model.request import RequestShape
from gpushare.runtime import logs
from gpushare.runtime.clock import Clock
from gpushare.wire import pods as pods_wire

_LOG: Final = logging.getLogger(__name__)
_LATE_S: Final = 60.0  # a claim is seen by then, if there is one
NO_NODES: Final = "no node shares GPUs by ResourceClaims: an administrator has to annotate one with gpushare.dev/mode"


@dataclass(frozen=True, slots=True, kw_only=True)
class Claims:
    """A cluster of its own, in which pods hold and ask for what their claims do."""

    state: ClusterState
    table: ClusterTable
    clock: Clock
    _given_up: dict[PodRef, float] = field(default_factory=dict)  # when each was last seen so

    def shape(self, pod: PodRef) -> RequestShape | None:
        """What a pod's claims ask for; None if they are allocated, or not known."""
        pending = self.state.index.pending(pod.uid)
        known = pending is not None and pending.ref.namespace == pod.namespace
        return pending.request.shape if known and pending and pending.request else None

    def note(self, pod: JsonObject) -> None:
        """A pod was seen. Raises WireError."""
        if pods_wire.has_claims(pod):
            self._given_up.pop(ref := pods_wire.ref(pod), None)
            if pods_wire.is_unschedulable(pod):
                self._given_up[ref] = self.clock.monotonic()

    def snapshot(self) -> Snapshot:
        """As it is now, of pods that wait those for which claims were made, and whether kube-scheduler gave up."""
        found = self.state.index.snapshot()
        waiting = {pod.ref: pod for pod in found.pending if pod.unschedulable}
        now = self.clock.monotonic()
        for ref, seen in list(self._given_up.items()):
            if ref not in waiting and now - seen >= _LATE_S:
                self._given_up.pop(ref, None)
        pods = [replace(pod, unschedulable=ref in self._given_up) for ref, pod in waiting.items()]
        return replace(found, pods=pods)


@dataclass(frozen=True, slots=True)
class ClaimSink:
    """Sink of the watch of ResourceClaims. A pod is known by all of its claims."""

    index: Index
    _known: dict[str, ClaimRecord] = field(default_factory=dict)  # by their UIDs
    _of_pods: dict[PodUid, dict[str, ClaimRecord]] = field(default_factory=dict)

    def read(self, claim: JsonObject) -> ClaimRecord | None:
        try:
            if found := claim_records.read(claim):
                return found
        except WireError as error:
            logs.event(_LOG, "object left out", level=logging.ERROR, kind="ResourceClaim", error=str(error))
        known = self._known.get(str(claim["metadata"].get("uid")))
        return known and replace(known, asks=(), node=None, grants=())  # what it held or asked for is over

    def replace(self, claims: list[ClaimRecord]) -> None:
        self._known.clear()
        self._of_pods.clear()
        for claim in claims:
            self._put(claim.uid, claim)
        found = (claim_records.of_pod(there.values()) for there in self._of_pods.values())
        self.index.replace_pods([pod for pod in found if pod is not None])

    def upsert(self, claim: ClaimRecord) -> None:
        self._changed(self._put(claim.uid, claim))

    def remove(self, claim: ClaimRecord) -> None:
        self._changed(self._put(claim.uid, None))

    def _put(self, uid: str, claim: ClaimRecord | None) -> set[PodUid]:
        """The pods whose claims change by it: authors may give a claim another owner."""
        pods = {each.pod.uid for each in (self._known.pop(uid, None), claim) if each is not None}
        for pod in pods:
            self._of_pods.setdefault(pod, {}).pop(uid, None)
        if claim is not None:
            self._known[uid] = self._of_pods[claim.pod.uid][uid] = claim
        return pods

    def _changed(self, pods: set[PodUid]) -> None:
        for uid in pods:
            if not (there := self._of_pods[uid]):
                del self._of_pods[uid]
            if (pod := claim_records.of_pod(there.values())) is not None:
                self.index.set_pod(pod)
            elif known := self.index.pods.get(uid):
                self.index.forget_pod(known)
