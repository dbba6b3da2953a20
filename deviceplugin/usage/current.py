"""What is known of the use of GPUs at the moment: written by one thread, read by those who show it."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from deviceplugin.inventory_feed import InventoryFeed
from deviceplugin.pods import PodCache
from deviceplugin.usage import holding, join
from deviceplugin.usage.join import Joined
from deviceplugin.usage.values import Key, Listed, NodeUsage, Reading
from gpushare.identity import GpuUuid
from gpushare.runtime.clock import Clock
from gpushare.units import ResourceConfig


@dataclass(frozen=True, slots=True)
class Latest:
    """The last sample, and what was seen before."""

    joined: Joined
    peaks: Mapping[Key, int]
    over: int | None
    """How many are above their grant for too long; None without a watchdog."""
    listed: Listed


@dataclass(kw_only=True)
class CurrentUsage:
    """Safe for use by many threads: what is written is replaced as a whole."""

    feed: InventoryFeed
    cache: PodCache
    resource_config: ResourceConfig
    clock: Clock
    stale_s: float
    """After so long without a sample nothing is known of what is used."""
    reading: Reading = Reading.ON
    latest: Latest | None = field(init=False, default=None)

    def view(self) -> NodeUsage | None:
        """For metrics; None while the GPUs are not known."""
        snapshot, latest = self.feed.latest, self.latest
        if snapshot is None:
            return None
        pods = holding.holding(self.cache.all(), snapshot.inventory, self.resource_config)
        if latest is None:
            return replace(join.view(snapshot.inventory, pods, None, {}), reading=self.reading)
        shown = join.view(snapshot.inventory, pods, latest.joined if self._is_fresh(latest) else None, latest.peaks)
        if not shown.foreign:
            return replace(shown, reading=Reading.SILENT)
        return replace(shown, reading=self.reading, over=latest.over)

    def unseen(self) -> Collection[GpuUuid]:
        """GPUs whose processes are not known; none before the first sample."""
        latest = self.latest
        if latest is None:
            return ()
        return latest.listed.keys() - (latest.joined.foreign.keys() if self._is_fresh(latest) else ())

    def _is_fresh(self, latest: Latest) -> bool:
        return self.clock.monotonic() - latest.joined.at < self.stale_s
