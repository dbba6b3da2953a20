"""Carries out a plan: one eviction after another, each only if the rest of the plan still holds."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from gpushare.cluster import pod_records
from gpushare.cluster.defrag import Move, Plan
from gpushare.identity import PodUid
from gpushare.kube import api as kube
from gpushare.kube import pods as kube_pods
from gpushare.kube.api import JsonObject, KubeApi
from gpushare.wire import pods as pods_wire
from gpushare_cli import reading
from gpushare_cli.defrag import question as questions
from gpushare_cli.defrag.hold import Hold
from gpushare_cli.defrag.patience import Patience, StoppedError
from gpushare_cli.defrag.question import Question

BUDGET_S: Final = 5.0
"""Between two tries to evict a pod, before each of which the whole cluster is read."""


@dataclass(slots=True, kw_only=True)
class Defragmentation:
    """One plan. Used by one thread."""

    api: KubeApi
    patience: Patience
    hold: Hold
    question: Question
    plan: Plan
    owners: dict[str, str]
    """UID of each pod of the plan -> that of the controller that recreates it."""
    moved: dict[PodUid, str] = field(default_factory=dict)
    """Pods that were evicted -> the node where the successor is; empty while it has none."""
    _unsure: set[PodUid] = field(default_factory=set)
    """Pods whose eviction was asked for, perhaps without an answer."""

    def run(self) -> str:
        """Make room. The node on which the pod is in the end; empty if it is still to be created.

        Raises:
            KubeError: the cluster cannot be changed.
            NotAllowedError: the user may not change it.
            StoppedError: it does not go on.
        """
        try:
            self.hold.take()
            for i, move in enumerate(self.plan.moves):
                if not self._move(move, [each.pod.uid for each in self.plan.moves[i:]]):
                    break
        finally:
            self.hold.give_back()
        if not self.question.exists:
            return ""
        name = self.question.name
        node = self.patience.until(f"{name} has room, and the scheduler has not placed it", self._placed)
        self.patience.streams.progress(f"{name}: is on {node}")
        return node

    def _is_needed(self, left: Sequence[PodUid]) -> bool:
        """Whether these pods are still to be evicted for the one that needs room.

        Raises:
            StoppedError: they are, and it would not help.
        """
        if self._placed():
            return False
        if not self.hold.stands():
            raise StoppedError(f"others have cordoned or uncordoned GPUs of {self.plan.node} meanwhile")
        rest = questions.rest(self.api, self.question, self.plan, left)
        if rest is None:
            raise StoppedError("the cluster has changed, and the rest of the plan would not help any more")
        if not rest.moves:
            self.patience.streams.progress(f"{self.question.name}: there is room now without further evictions")
        return bool(rest.moves)

    def _placed(self) -> str:
        """The node that the pod is on meanwhile; empty while it needs room."""
        if not self.question.exists:
            return ""
        ref = pods_wire.ref(self.question.pod)
        try:
            found = self.api.get(kube.pod_path(ref.namespace, ref.name))
        except kube.NotFoundError:
            found = None
        if found is None or pods_wire.ref(found).uid != ref.uid or found["metadata"].get("deletionTimestamp"):
            raise StoppedError(f"{ref} is gone, and needs no room any more")
        return str(pods_wire.node_of(found) or "")

    def _move(self, move: Move, left: Sequence[PodUid]) -> bool:
        """Evict a pod and wait for its successor. False if nothing more needs to be evicted."""
        before: set[str] = set()
        (needed,) = self.patience.until(
            f"{move.pod} cannot be evicted", lambda: (self._evicted(move, left, before),), every_s=BUDGET_S
        )
        if not needed:
            return False
        self.moved[move.pod.uid] = ""
        self.patience.streams.progress(f"{move.pod}: evicted")
        what = f"the successor of {move.pod} has no place"
        successor = self.patience.until(what, lambda: self._successor(move, before))
        self.moved[move.pod.uid] = node = str(pods_wire.node_of(successor))
        self.patience.streams.progress(f"{move.pod}: its successor {pods_wire.ref(successor).name} is on {node}")
        return True

    def _evicted(self, move: Move, left: Sequence[PodUid], before: set[str]) -> bool:
        """Ask for an eviction if it is still needed: a budget may have kept it waiting since it was.

        Args:
            move: what is asked for.
            left: all pods that are still to move.
            before: is filled with the pods of the same controller that are there before.
        """
        if move.pod.uid not in self._unsure:
            if not self._is_needed(left):
                return False
            before.clear()
            before.update(str(pods_wire.ref(pod).uid) for pod in self._siblings(move))
        self._unsure.add(move.pod.uid)
        try:
            kube_pods.request_eviction(self.api, move.pod)
        except kube.TooManyRequestsError:
            self._unsure.discard(move.pod.uid)
            raise
        except kube.TRANSIENT:
            raise
        except (kube.NotFoundError, kube.ConflictError):  # it has gone by itself
            return True
        except kube.KubeError as error:
            raise StoppedError(f"{move.pod} cannot be evicted: {error}") from error
        return True

    def _successor(self, move: Move, before: set[str]) -> JsonObject | None:
        """The pod that was made instead, once it is on a node and the former one is gone."""
        there = self._siblings(move)
        if any(pods_wire.ref(pod).uid == move.pod.uid for pod in there):
            return None
        return next((pod for pod in there if pods_wire.ref(pod).uid not in before and pods_wire.node_of(pod)), None)

    def _siblings(self, move: Move) -> list[JsonObject]:
        """Pods of the same controller."""
        owner = self.owners[move.pod.uid]
        found = reading.listed(self.api, f"/api/v1/namespaces/{move.pod.namespace}/pods", {})
        return [pod for pod in found if (pod_records.controller_of(pod) or {}).get("uid") == owner]
