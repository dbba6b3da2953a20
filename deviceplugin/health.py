"""Reads the source again and again and posts what changed."""

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from deviceplugin import advertise, inventory
from deviceplugin.handover.choice import Choice
from deviceplugin.inventory_feed import InventoryFeed
from deviceplugin.renewal import Renewal
from deviceplugin.resources import Resource
from deviceplugin.source import GpuSource, GpuSourceError, OutdatedLibraryError, RawGpu
from gpushare import names
from gpushare.errors import SettingsError
from gpushare.identity import NodeName
from gpushare.model.gpu import NodeInventory
from gpushare.runtime import logs
from gpushare.runtime.clock import Backoff, Clock
from gpushare.units import MemoryUnit

_LOG: Final = logging.getLogger(__name__)
_LONGEST_S: Final = 30.0  # between two looks for a driver
_PATIENCE: Final = 3  # readings that may fail in a row before all GPUs count as unhealthy


@dataclass(kw_only=True)
class HealthLoop:
    """The only user of the source."""

    source: GpuSource
    feed: InventoryFeed
    clock: Clock
    node: NodeName
    unit: MemoryUnit
    offered: Sequence[Resource]
    poll_s: float
    renewal: Renewal
    choice: Callable[[], Choice | None] = lambda: None
    """How GPUs are handed over; None for a plugin that only counts them."""
    assess: Callable[[NodeInventory], NodeInventory] = lambda inventory: inventory
    """Finds out what holds the limits of each GPU."""
    _current: NodeInventory | None = field(init=False, default=None)
    _failures: int = field(init=False, default=0)
    _complaint: str = field(init=False, default="")

    def run(self, stop: threading.Event) -> None:
        """Poll until `stop` is set.

        Returns early if the settings do not fit the GPUs found at the start, or if only a new process can read them.

        A node without a driver or without GPUs is not registered as one with nothing: it is asked again, because the
        driver may be installed later.
        """
        backoff = Backoff(first_s=0.5, cap_s=_LONGEST_S)
        try:
            while not stop.is_set():
                if not self.poll():
                    return
                if self._current is None:
                    longest = self.poll_s if self.renewal.outdated else _LONGEST_S
                    self.clock.wait(stop, min(backoff.next_s(), longest))
                else:
                    self.source.wait(stop, self.poll_s)
        finally:
            self.source.close()

    def poll(self) -> bool:
        """Read once and post a change. False if this process can never work with these GPUs."""
        try:
            raw = self._read()
            latest = self._built(raw)
        except GpuSourceError as error:
            self._failures += 1
            self._complain("gpus unreadable", error)
            if isinstance(error, OutdatedLibraryError) and self.renewal.due():
                logs.event(_LOG, "new process needed", level=logging.ERROR, error=str(error))
                return False
            if self._current is None or self._failures < _PATIENCE:
                return True
            raw = ()
            latest = self._built(raw, missing=error.reason)
        else:
            if self._failures:
                self._complaint = ""
            self._failures = 0
            self.renewal.reset()
        return latest == self._current or self._post(latest, raw)

    def _built(self, raw: Sequence[RawGpu], missing: str = inventory.NOT_LISTED) -> NodeInventory:
        built = inventory.build(raw, node=self.node, unit=self.unit, previous=self._current, missing=missing)
        built = replace(built, left_out=tuple(self.source.left_out))
        if chosen := self.choice():
            built = replace(built, hand_over=chosen.way, hand_over_reason=chosen.reason)
            if chosen.impossible:
                built = inventory.unusable(built, chosen.impossible)
        return self.assess(built)

    def _read(self) -> Sequence[RawGpu]:
        raw = self.source.read()
        if not raw and self._current is None:
            reasons = "".join(f"; GPU {gpu.index}: {gpu.reason}" for gpu in self.source.left_out)
            raise GpuSourceError(
                f"there is no GPU that can be shared{reasons or '; run this plugin on GPU nodes only'}"
            )
        return raw

    def _complain(self, event: str, error: Exception) -> None:
        """Log what is wrong once, not at every poll."""
        if str(error) != self._complaint:
            logs.event(_LOG, event, level=logging.ERROR, error=str(error))
        self._complaint = str(error)

    def _post(self, latest: NodeInventory, raw: Sequence[RawGpu]) -> bool:
        try:
            advertised = advertise.devices(latest, self.offered)
        except SettingsError as error:
            self._complain("gpus cannot be advertised", error)
            return self._current is not None
        self._current, self._complaint = latest, ""
        self.feed.post(latest, advertised, raw)
        memory = advertised[names.GPU_MEM]
        logs.event(
            _LOG,
            "gpus changed",
            gpus=len(latest.gpus),
            unit=latest.unit.name,
            healthy_units=len(memory.healthy),
            unhealthy_units=len(memory.unhealthy),
            faults={gpu.uuid: gpu.reason for gpu in latest.gpus if gpu.reason},
        )
        return True
