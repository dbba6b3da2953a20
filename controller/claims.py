"""GPUs that ResourceClaims share, as kube-scheduler allocates them: for its ranking of nodes, and to say why pods wait.

Nothing is reserved here, and no pod is kept from a node: kube-scheduler allocates, and the node has the last word.
"""

import logging
from dataclasses import dataclass, field
from typing import Final

from controller.cluster_table import ClusterTable
from controller.index import Index
from controller.state import ClusterState
from gpushare.cluster import claim_records
from gpushare.cluster.claim_records import ClaimRecord
from gpushare.errors import WireError
from gpushare.identity import PodUid
from gpushare.kube.api import JsonObject
from gpushare.model.request import RequestShape
from gpushare.runtime import logs

_LOG: Final = logging.getLogger(__name__)
NO_NODES: Final = "no node shares GPUs by ResourceClaims: an administrator has to annotate one with gpushare.dev/mode"


@dataclass(frozen=True, slots=True, kw_only=True)
class Claims:
    """A cluster of its own, in which pods hold and ask for what their claims do."""

    state: ClusterState
    table: ClusterTable

    def shape(self, pod: PodUid) -> RequestShape | None:
        """What a pod's claims ask for; None if they are allocated, or not known."""
        pending = self.state.index.pending(pod)
        return pending.request.shape if pending is not None and pending.request is not None else None


@dataclass(frozen=True, slots=True)
class ClaimSink:
    """Sink of the watch of ResourceClaims. A pod is known by all of its claims."""

    index: Index
    _of_pods: dict[PodUid, dict[str, ClaimRecord]] = field(default_factory=dict)

    def read(self, claim: JsonObject) -> ClaimRecord | None:
        try:
            return claim_records.read(claim)
        except WireError as error:
            logs.event(_LOG, "object left out", level=logging.ERROR, kind="ResourceClaim", error=str(error))
            return None

    def replace(self, claims: list[ClaimRecord]) -> None:
        self._of_pods.clear()
        for claim in claims:
            self._of_pods.setdefault(claim.pod.uid, {})[claim.uid] = claim
        found = (claim_records.of_pod(there.values()) for there in self._of_pods.values())
        self.index.replace_pods([pod for pod in found if pod is not None])

    def upsert(self, claim: ClaimRecord) -> None:
        self._of_pods.setdefault(claim.pod.uid, {})[claim.uid] = claim
        self._changed(claim.pod.uid)

    def remove(self, claim: ClaimRecord) -> None:
        self._of_pods.get(claim.pod.uid, {}).pop(claim.uid, None)
        self._changed(claim.pod.uid)

    def _changed(self, uid: PodUid) -> None:
        if not self._of_pods[uid]:
            del self._of_pods[uid]
        pod = claim_records.of_pod(self._of_pods.get(uid, {}).values())
        if pod is not None:
            self.index.set_pod(pod)
        elif known := self.index.pods.get(uid):
            self.index.forget_pod(known)
