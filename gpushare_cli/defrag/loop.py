"""Carries out a plan: one eviction after another, each only if the rest of the plan still holds."""

import contextlib
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, TypeVar

from gpushare.cluster import cordons, pod_records
from gpushare.cluster.defrag import Move, Plan
from gpushare.cluster.node_records import NodeRecord
from gpushare.errors import GpuShareError
from gpushare.identity import GpuUuid, PodUid
from gpushare.kube import api as kube
from gpushare.kube import eviction
from gpushare.kube.api import JsonObject, KubeApi
from gpushare.kube.eviction import Evicted
from gpushare.runtime.clock import Clock
from gpushare.wire import pods as pods_wire
from gpushare_cli import gather
from gpushare_cli.commands import Streams
from gpushare_cli.defrag import question as questions
from gpushare_cli.defrag.question import Question
from gpushare_cli.drain import card as cards
from gpushare_cli.drain.card import Card

T = TypeVar("T")
ROUND_S: Final = 2.0


class StoppedError(GpuShareError):
    """The rest of the plan was not carried out; says why."""


@dataclass(slots=True, kw_only=True)
class Defragmentation:
    """One plan. Used by one thread."""

    api: KubeApi
    clock: Clock
    streams: Streams
    question: Question
    plan: Plan
    owners: dict[str, str]
    """UID of each pod of the plan -> that of the controller that recreates it."""
    timeout_s: float
    moved: dict[PodUid, str] = field(default_factory=dict)
    """Pods that were evicted -> the node where the successor is."""

    def run(self) -> str:
        """Make room. The node on which the pod is in the end; empty if it is still to be created.

        Raises:
            KubeError: the cluster cannot be read or changed any more.
            StoppedError: it does not go on.
        """
        held: list[GpuUuid] = []
        try:
            self._hold(held)
            for i, move in enumerate(self.plan.moves):
                if node := self._placed():
                    return node
                left = [each.pod.uid for each in self.plan.moves[i:]]
                rest = questions.rest(self.api, self.question, self.plan, left)
                if rest is None:
                    raise StoppedError("the cluster has changed, and the rest of the plan would not help any more")
                if not rest.moves:
                    self.streams.progress(f"{self.question.name}: there is room now without further evictions")
                    break
                self._move(move)
        finally:
            self._release(held)
        return self._await_pod() if self.question.exists else ""

    def _hold(self, held: list[GpuUuid]) -> None:
        """Keep new pods away from the GPUs that are to be free."""
        for uuid in sorted(self.plan.kept_free):
            card = Card(node=self.plan.node, gpu=uuid)
            cards.cordon(self.api, card.node, partial(_closed, card, uuid, held))
            self.streams.progress(f"{card}: cordoned for the time being")

    def _release(self, held: Sequence[GpuUuid]) -> None:
        """Also when the rest was not carried out; what fails here must not hide why."""
        for uuid in held:
            card = Card(node=self.plan.node, gpu=uuid)
            with contextlib.suppress(OSError):  # of a terminal that is gone: the next GPU is opened all the same
                try:
                    self._await("the node cannot be written", partial(self._open, card))
                except GpuShareError as error:
                    self.streams.note(f"{card} stays cordoned: {error}; when it can be: gpushare uncordon {card}")
                else:
                    self.streams.progress(f"{card}: uncordoned")

    def _open(self, card: Card) -> bool:
        cards.cordon(self.api, card.node, lambda record: cordons.without(record.cordon, card.gpu))
        return True

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

    def _move(self, move: Move) -> None:
        before = {str(pods_wire.ref(pod).uid) for pod in self._siblings(move)}
        self._await(f"{move.pod} waits for its budget", lambda: self._evict(move))
        self.streams.progress(f"{move.pod}: evicted")
        successor = self._await(f"the successor of {move.pod} has no place", lambda: self._successor(move, before))
        self.moved[move.pod.uid] = node = str(pods_wire.node_of(successor))
        self.streams.progress(f"{move.pod}: its successor {pods_wire.ref(successor).name} is on {node}")

    def _evict(self, move: Move) -> bool:
        outcome, problem = eviction.evict(self.api, move.pod)
        if outcome is Evicted.FAILED:
            raise StoppedError(f"{move.pod} cannot be evicted: {problem}")
        return outcome is not Evicted.REFUSED

    def _successor(self, move: Move, before: set[str]) -> JsonObject | None:
        """The pod that was made instead, once it is on a node and the former one is gone."""
        there = self._siblings(move)
        if any(pods_wire.ref(pod).uid == move.pod.uid for pod in there):
            return None
        return next((pod for pod in there if pods_wire.ref(pod).uid not in before and pods_wire.node_of(pod)), None)

    def _siblings(self, move: Move) -> list[JsonObject]:
        """Pods of the same controller."""
        owner = self.owners[move.pod.uid]
        found = gather.listed(self.api, f"/api/v1/namespaces/{move.pod.namespace}/pods", {})
        return [pod for pod in found if (pod_records.controller_of(pod) or {}).get("uid") == owner]

    def _await_pod(self) -> str:
        ref = pods_wire.ref(self.question.pod)

        def node() -> str:
            return str(pods_wire.node_of(self.api.get(kube.pod_path(ref.namespace, ref.name))) or "")

        found = self._await(f"{ref} has room, and the scheduler has not placed it", node)
        self.streams.progress(f"{ref}: is on {found}")
        return found

    def _await(self, what: str, condition: Callable[[], T | None]) -> T:
        began = self.clock.monotonic()
        while True:
            problem = ""
            try:
                if value := condition():
                    return value
            except kube.TRANSIENT as error:
                problem = f" ({error})"
            if self.clock.monotonic() - began >= self.timeout_s:
                raise StoppedError(f"{what} after {self.timeout_s:.0f} s{problem}")
            self.clock.wait(threading.Event(), ROUND_S)


def _closed(card: Card, uuid: GpuUuid, held: list[GpuUuid], record: NodeRecord) -> str:
    """The cordon of a node with this GPU, which is then among those held: also if the answer to its write is lost.

    Raises:
        StoppedError: others have cordoned it, so it is theirs to open.
    """
    after = cards.keeping_away(card)(record)
    if uuid in held:
        held.remove(uuid)
    if after == record.cordon:
        raise StoppedError(f"{card} was cordoned by others meanwhile")
    held.append(uuid)
    return after
