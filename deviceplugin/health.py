"""Reads the source again and again, posts what changed, and ends the process when only a new one can read it."""

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from deviceplugin import inventory, resources
from deviceplugin.handover.choice import HandOverChoice
from deviceplugin.inventory import InventoryFeed
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
_CONTAINER_S: Final = 20.0  # until a new container is needed: the runtime mounts the node's library when it makes one


@dataclass(kw_only=True)
class ProcessRestart:
    """When a process ends because its library is not the one of the node's driver; asked at every such reading.

    At once if a new one would do better; else ending it often would only make the kubelet wait longer and longer
    between two containers.
    """

    clock: Clock
    new_process_works: Callable[[], bool]  # whether a new process in this container can read the GPUs
    _since: float | None = field(init=False, default=None)

    @property
    def library_outdated(self) -> bool:
        return self._since is not None

    def is_due(self) -> bool:
        now = self.clock.monotonic()
        if self._since is None:
            self._since = now
        return now - self._since >= _CONTAINER_S or self.new_process_works()

    def reset(self) -> None:
        self._since = None


@dataclass(kw_only=True)
class HealthLoop:
    source: GpuSource
    feed: InventoryFeed
    clock: Clock
    node: NodeName
    unit: MemoryUnit
    offered: Sequence[Resource]
    poll_s: float
    restart: ProcessRestart
    choice: Callable[[], HandOverChoice | None] = lambda: None  # of the hand-over; None for who only counts GPUs
    stages: Sequence[Callable[[NodeInventory], NodeInventory]] = ()
    """In this order: limits are proven for the hand-over, and the watchdog replaces only what is weaker."""
    _current: NodeInventory | None = field(init=False, default=None)
    _failures: int = field(init=False, default=0)
    _problems: logs.Changes = field(init=False, default_factory=lambda: logs.Changes(_LOG))

    def run(self, stop: threading.Event) -> None:
        """Until `stop` is set, or `poll` gives up. A node without GPUs is asked again, not shown as empty."""
        backoff = Backoff(first_s=0.5, cap_s=_LONGEST_S)
        try:
            while not stop.is_set():
                if not self.poll():
                    return
                if self._current is None:
                    longest = self.poll_s if self.restart.library_outdated else _LONGEST_S
                    self.clock.wait(stop, min(backoff.next_s(), longest))
                else:
                    self.source.wait(stop, self.poll_s)
        finally:
            self.source.close()

    def poll(self) -> bool:
        """Read once and post a change. False: the settings fit no GPUs, or only a new process can read them."""
        try:
            raw = self._read()
            latest = self._built(raw)
        except GpuSourceError as error:
            self._failures += 1
            self._problems.say("gpus unreadable", level=logging.ERROR, error=str(error))
            if isinstance(error, OutdatedLibraryError) and self.restart.is_due():
                logs.event(_LOG, "new process needed", level=logging.ERROR, error=str(error))
                return False
            if self._current is None or self._failures < _PATIENCE:
                return True
            raw = ()
            latest = self._built(raw, missing=error.reason)
        else:
            if self._failures:
                self._problems.clear()
            self._failures = 0
            self.restart.reset()
        return latest == self._current or self._post(latest, raw)

    def _read(self) -> Sequence[RawGpu]:
        raw = self.source.read()
        if not raw and self._current is None:
            reasons = "".join(f"; GPU {gpu.index}: {gpu.reason}" for gpu in self.source.left_out)
            raise GpuSourceError(
                f"there is no GPU that can be shared{reasons or '; run this plugin on GPU nodes only'}"
            )
        return raw

    def _built(self, raw: Sequence[RawGpu], missing: str = inventory.NOT_LISTED) -> NodeInventory:
        built = inventory.build(raw, node=self.node, unit=self.unit, previous=self._current, missing=missing)
        built = replace(built, left_out=tuple(self.source.left_out))
        if chosen := self.choice():
            built = replace(built, hand_over=chosen.way, hand_over_reason=chosen.reason)
            if chosen.impossible:
                built = inventory.unusable(built, chosen.impossible)
        for stage in self.stages:
            built = stage(built)
        return built

    def _post(self, latest: NodeInventory, raw: Sequence[RawGpu]) -> bool:
        try:
            advertised = resources.devices(latest, self.offered)
        except SettingsError as error:
            self._problems.say("gpus cannot be advertised", level=logging.ERROR, error=str(error))
            return self._current is not None
        self._current = latest
        self._problems.clear()
        self.feed.post(latest, advertised, raw)
        memory = advertised[names.GPU_MEM]
        units: dict[str, Any] = {"healthy_units": len(memory.healthy), "unhealthy_units": len(memory.unhealthy)}
        faults = {gpu.uuid: gpu.reason for gpu in latest.gpus if gpu.reason}
        logs.event(_LOG, "gpus changed", gpus=len(latest.gpus), unit=latest.unit.name, **units, faults=faults)
        return True
