"""What this node advertises at the moment: written by one thread, awaited by those that tell it to others."""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from deviceplugin.advertise import Advertisement
from deviceplugin.source import RawGpu
from gpushare.identity import GpuUuid
from gpushare.model.gpu import NodeInventory


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """One state of the node's GPUs."""

    version: int
    """Counts up with every change, from 1."""
    inventory: NodeInventory
    advertised: Mapping[str, Advertisement]
    """By the name of the resource."""
    raw: Mapping[GpuUuid, RawGpu]
    """The GPUs as their source describes them, those that it did not list excepted."""


class InventoryFeed:
    """Holds the latest snapshot. The lock is never held for long."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._latest: Snapshot | None = None

    @property
    def latest(self) -> Snapshot | None:
        """None until the GPUs were read for the first time."""
        return self._latest

    def post(
        self, inventory: NodeInventory, advertised: Mapping[str, Advertisement], raw: Sequence[RawGpu] = ()
    ) -> None:
        """Show a new state to all who wait."""
        with self._changed:
            version = self._latest.version + 1 if self._latest else 1
            self._latest = Snapshot(
                version=version, inventory=inventory, advertised=advertised, raw={GpuUuid(gpu.uuid): gpu for gpu in raw}
            )
            self._changed.notify_all()

    def wake(self) -> None:
        """Let all who wait look at their `over` again."""
        with self._changed:
            self._changed.notify_all()

    def newer(self, version: int, *, over: Callable[[], bool], seconds: float | None = None) -> Snapshot | None:
        """Wait for a snapshot later than a version, 0 for any. None if there is none in so many seconds.

        The wait also ends when `over` says that the caller wants to wait no longer; it is asked after each `wake`.
        """
        with self._changed:
            self._changed.wait_for(lambda: over() or self._is_newer(version), seconds)
            return self._latest if self._is_newer(version) and not over() else None

    def _is_newer(self, version: int) -> bool:
        return self._latest is not None and self._latest.version > version
