"""Removes CDI specs that no container needs any more."""

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from deviceplugin.handover.devices import DeviceHandOver
from deviceplugin.handover.spec_files import SpecFileError, SpecFiles
from gpushare.runtime.clock import Clock
from gpushare.wire import pods as wire
from gpushare.wire.pods import Pod

_EVERY_S: Final = 10.0
_YOUNG_S: Final = 60.0
"""A start may know its pod from the API server itself, before the watch has told of it."""
Pods = Callable[[], Sequence[Pod] | None]
"""Those of this node that ask for GPUs; None while that is not known."""


@dataclass(kw_only=True)
class SpecSweeper:
    """Looks at the directory now and then."""

    devices: DeviceHandOver
    files: SpecFiles
    pods: Pods
    clock: Clock
    _needed: set[str] = field(init=False, default_factory=set)
    """UIDs of the pods that had GPUs at the last look."""

    def run(self, stop: threading.Event) -> None:
        """Sweep until `stop` is set."""
        while not stop.is_set():
            self.sweep()
            self.clock.wait(stop, _EVERY_S)

    def sweep(self) -> None:
        """Remove specs of pods that are gone or have ended, what others wrote of this plugin's kind, and remains."""
        self.devices.remove_forged()
        before = self.clock.now().timestamp() - _YOUNG_S
        self.files.remove_unfinished(before)
        pods = self.pods()
        if pods is None:
            return
        needed: set[str] = {wire.ref(pod).uid for pod in pods if wire.holds_gpus(pod)}
        gone, self._needed = self._needed - needed, needed
        for file in self.files.found():
            if file.uid in gone or (file.uid not in needed and self.files.written_at(file) < before):
                with suppress(SpecFileError):  # tried again
                    self.files.remove(file)
