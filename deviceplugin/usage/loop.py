"""Reads what is used, again and again (gather, join, show, judge); the latest for those who show it."""

import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from deviceplugin import cgroups
from deviceplugin.cgroups import Procfs
from deviceplugin.inventory import InventoryFeed
from deviceplugin.source import ProcessLists
from deviceplugin.usage import join
from deviceplugin.usage.join import Joined, Key, ListedSince, NodeUsage, Pods, Sample, UsageReading
from deviceplugin.usage.watchdog import Watchdog
from gpushare.identity import GpuUuid
from gpushare.model.gpu import NodeInventory
from gpushare.runtime.clock import Clock

_READ_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class Latest:
    joined: Joined
    peaks: Mapping[Key, int]
    over: int | None  # how many are above their grant for too long; None without a watchdog
    listed: ListedSince


@dataclass(kw_only=True)
class CurrentUsage:
    """Written by one thread, read by many: what is written is replaced as a whole."""

    feed: InventoryFeed
    holding: Callable[[NodeInventory], Pods]  # the pods that hold GPUs now
    clock: Clock
    stale_s: float  # after so long without a sample nothing is known of what is used
    reading: UsageReading = UsageReading.ON
    latest: Latest | None = field(init=False, default=None)

    def view(self) -> NodeUsage | None:
        posted, latest = self.feed.latest, self.latest
        if posted is None:
            return None
        pods = self.holding(posted.inventory)
        if latest is None:
            return replace(join.view(posted.inventory, pods, None, {}), reading=self.reading)
        found = join.view(posted.inventory, pods, latest.joined if self._is_fresh(latest) else None, latest.peaks)
        if not found.foreign:
            return replace(found, reading=UsageReading.SILENT)
        return replace(found, reading=self.reading, over=latest.over)

    def unseen(self) -> Collection[GpuUuid]:
        """GPUs whose processes are not known; none before the first sample."""
        latest = self.latest
        if latest is None:
            return ()
        return latest.listed.keys() - (latest.joined.foreign.keys() if self._is_fresh(latest) else ())

    def _is_fresh(self, latest: Latest) -> bool:
        return self.clock.monotonic() - latest.joined.at < self.stale_s


@dataclass(frozen=True, kw_only=True)
class UsageLoop:
    lists: ProcessLists
    table: Procfs
    current: CurrentUsage
    watchdog: Watchdog | None
    interval_s: float

    def run(self, stop: threading.Event) -> None:
        while not stop.is_set():
            self.look()
            self.current.clock.wait(stop, self.interval_s)

    def look(self) -> None:
        posted = self.current.feed.latest
        if posted is None:
            return
        latest = self.current.latest
        sample, listed = self._sample([gpu.uuid for gpu in posted.inventory.gpus], latest.listed if latest else {})
        pods = self.current.holding(posted.inventory)
        joined = join.join(sample, pods)
        peaks = join.peaks(latest.peaks if latest else {}, joined, pods)
        self.current.latest = latest = Latest(joined, peaks, latest.over if latest else None, listed)
        if self.watchdog is not None:  # it may wait for the API server
            self.current.latest = replace(latest, over=self.watchdog.look(joined))

    def _sample(self, gpus: Collection[GpuUuid], before: ListedSince) -> tuple[Sample, ListedSince]:
        clock = self.current.clock
        at = clock.monotonic()
        lists = self.lists.read(gpus)
        now = clock.monotonic()
        if now - at >= self.current.stale_s:  # no one may be judged by what was so long ago
            lists = dict.fromkeys(gpus)
        listed = join.listed(before, lists, at)
        processes = cgroups.trusted_processes(join.since(listed), self.table, clock, until=now + _READ_S)
        return Sample(at=at, lists=lists, processes=processes), listed
