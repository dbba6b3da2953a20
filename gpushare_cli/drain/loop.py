"""Evicts the pods of a GPU until none is left, as politely as the API server demands."""

import threading
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Final

from gpushare.cluster import drain
from gpushare.cluster.drain import Permissions, Row, Step
from gpushare.errors import GpuShareError
from gpushare.identity import PodUid
from gpushare.kube import api as kube
from gpushare.kube import pods as kube_pods
from gpushare.kube.api import KubeApi
from gpushare.model.gpu import Gpu
from gpushare.runtime.clock import Clock
from gpushare_cli import reading
from gpushare_cli.console import Streams
from gpushare_cli.drain import card as cards
from gpushare_cli.drain.card import Card

ROUND_S: Final = 2.0
SETTLE_S: Final = 10.0
"""After the cordon, a pod whose binding was on its way may still come."""
_FAILURES: Final = 3
"""After which an eviction is not tried again that the server refuses for good, such as for a missing right."""


class UncordonedError(GpuShareError):
    """New pods may come while the drain goes on, which would evict them for ever; says so."""


@dataclass(slots=True, kw_only=True)
class Drainer:
    """One drain. Used by one thread."""

    api: KubeApi
    clock: Clock
    streams: Streams
    card: Card
    gpus: tuple[Gpu, ...]
    """What the card's name stood for when the drain began."""
    permissions: Permissions
    timeout_s: float
    asked: dict[PodUid, Row] = field(default_factory=dict)
    """Pods that were asked to leave."""
    left: tuple[Row, ...] = ()
    """Who was there when it looked last."""
    _told: dict[PodUid, str] = field(default_factory=dict)
    _failures: Counter[PodUid] = field(default_factory=Counter)

    def run(self) -> tuple[Row, ...]:
        """Evict until the GPU is empty, nothing more can be done, or time is up; who is left.

        Raises:
            KubeError: the cluster cannot be read any more.
            UncordonedError: others let new pods in.
        """
        began = self.clock.monotonic()
        while True:
            try:
                self.left = left = self._round()
            except kube.TRANSIENT as error:
                if self.clock.monotonic() - began >= self.timeout_s:
                    raise
                self.streams.progress(f"{self.card}: cannot be read now ({error}); trying again")
            else:
                passed = self.clock.monotonic() - began
                busy = any(row.step is not Step.STAY for row in left)
                if passed >= self.timeout_s or (not busy and passed >= min(SETTLE_S, self.timeout_s)):
                    return left
            self.clock.wait(threading.Event(), ROUND_S)

    def _round(self) -> tuple[Row, ...]:
        """Ask every pod that may leave to do so; who is there now."""
        known, _ = reading.budgets(self.api)
        occupied = cards.read(self.api, self.card, self.permissions, self.gpus)
        if not occupied.cordoned:
            raise UncordonedError(f"{self.card} was uncordoned by others meanwhile; nothing more is evicted")
        there = {one.bound.ref.uid for one in occupied.occupants}
        for uid, row in self.asked.items():
            if uid not in there:
                self._tell(row, "gone")
        return tuple(self._asked(row) for row in drain.plan(occupied.occupants, known))

    def _asked(self, row: Row) -> Row:
        if row.step is Step.LEAVING and row.pod.uid not in self.asked:
            self.asked[row.pod.uid] = row
            self._tell(row, f"leaves: {row.why}")
        elif row.step is Step.STAY:
            self._tell(row, f"stays: {row.why}")
        if row.step in {Step.STAY, Step.LEAVING}:
            return row
        if self._failures[row.pod.uid] >= _FAILURES:
            return replace(row, step=Step.STAY, why=self._told[row.pod.uid])
        return self._evicted(row)

    def _evicted(self, row: Row) -> Row:
        """What became of asking the API server."""

        def waits(why: str) -> Row:
            return replace(row, step=Step.WAIT, why=why)

        try:
            kube_pods.request_eviction(self.api, row.pod)
        except kube.TooManyRequestsError as error:
            self._tell(row, f"waits: {row.why or error}")
            return waits(row.why or str(error))
        except kube.TRANSIENT as error:
            self._tell(row, f"cannot be evicted now: {error}")
            return waits(f"cannot be evicted now: {error}")
        except (kube.NotFoundError, kube.ConflictError):  # it ended by itself a moment ago
            self.asked[row.pod.uid] = row
            return replace(row, step=Step.LEAVING, why="it has ended")
        except kube.KubeError as error:
            self._failures[row.pod.uid] += 1
            self._tell(row, f"cannot be evicted: {error}")
            return waits(f"cannot be evicted: {error}")
        self.asked[row.pod.uid] = row
        self._tell(row, "evicted")
        return replace(row, step=Step.LEAVING, why="its containers are ending")

    def _tell(self, row: Row, text: str) -> None:
        """Once for each change."""
        if self._told.get(row.pod.uid) != text:
            self._told[row.pod.uid] = text
            self.streams.progress(f"{row.pod}: {text}")
