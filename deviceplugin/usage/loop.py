"""Reads what is used, again and again: gather, join, show, judge."""

import threading
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Final, Protocol

from deviceplugin.inventory_feed import InventoryFeed
from deviceplugin.pods import PodCache
from deviceplugin.usage import holding, join, procfs
from deviceplugin.usage.current import CurrentUsage, Latest
from deviceplugin.usage.procfs import ProcessTable
from deviceplugin.usage.values import Listed, Lists, Sample
from deviceplugin.usage.watchdog import Watchdog
from gpushare.identity import GpuUuid
from gpushare.runtime.clock import Clock
from gpushare.units import ResourceConfig

_READ_S: Final = 2.0


class ProcessLists(Protocol):
    """Where process lists come from."""

    def read(self, gpus: Collection[GpuUuid]) -> Lists:
        """The processes on these GPUs."""
        ...


@dataclass(frozen=True, kw_only=True)
class UsageLoop:
    """One part of the plugin."""

    lists: ProcessLists
    table: ProcessTable
    feed: InventoryFeed
    cache: PodCache
    resource_config: ResourceConfig
    clock: Clock
    current: CurrentUsage
    watchdog: Watchdog | None
    interval_s: float

    def run(self, stop: threading.Event) -> None:
        """Look until `stop` is set."""
        while not stop.is_set():
            self.look()
            self.clock.wait(stop, self.interval_s)

    def look(self) -> None:
        """One sample; none while the GPUs are not known."""
        snapshot = self.feed.latest
        if snapshot is None:
            return
        latest = self.current.latest
        sample, listed = self._sample([gpu.uuid for gpu in snapshot.inventory.gpus], latest.listed if latest else {})
        pods = holding.holding(self.cache.all(), snapshot.inventory, self.resource_config)
        joined = join.join(sample, pods)
        peaks = join.peaks(latest.peaks if latest else {}, joined, pods)
        self.current.latest = latest = Latest(joined, peaks, latest.over if latest else None, listed)
        if self.watchdog is not None:  # it may wait for the API server
            self.current.latest = replace(latest, over=self.watchdog.look(joined))

    def _sample(self, gpus: Collection[GpuUuid], before: Listed) -> tuple[Sample, Listed]:
        at = self.clock.monotonic()
        lists = self.lists.read(gpus)
        now = self.clock.monotonic()
        if now - at >= self.current.stale_s:  # no one may be judged by what was so long ago
            lists = dict.fromkeys(gpus)
        listed = join.listed(before, lists, at)
        processes = procfs.known(join.since(listed), self.table, self.clock, until=now + _READ_S)
        return Sample(at=at, lists=lists, processes=processes), listed
