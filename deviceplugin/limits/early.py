"""Limits the cgroup of a container as soon as the container runtime has made it.

The kubelet tells the ID of a container only after its start. But it starts the containers of a pod one after another,
so the first new group in that of the pod after PreStartContainer is the one of this container. The runtime makes it
shortly before it starts the program: mostly early enough for what CUDA tells the program, and no promise.
"""

import queue
import threading
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from deviceplugin import cgroups
from deviceplugin.limits.backend import LimitError
from deviceplugin.nvml.memory_limits import MemoryLimits
from gpushare.identity import GpuUuid
from gpushare.runtime.clock import Clock

_LOOK_S: Final = 0.01
_AGAIN_S: Final = 0.1
"""After the driver refused: the group may not have its controllers yet."""
_LONGEST_S: Final = 10.0
"""That a runtime may take; afterwards the kubelet's report is waited for."""
_AGED: Final = 0.05
"""Of the time since PreStartContainer: after which to look again."""
_IDLE_S: Final = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """A container that is about to start."""

    pod: Path
    """The cgroup of its pod."""
    known: frozenset[str]
    """IDs of the containers that have groups in it already."""
    limits: tuple[tuple[GpuUuid, int], ...]
    """Bytes that it may use of each GPU."""
    after: float = 0.0
    """When to look for it."""
    until: float = 0.0


@dataclass(kw_only=True)
class EarlyLeaves:
    """`expect` is called by many threads, the rest by one."""

    driver: MemoryLimits
    clock: Clock
    _news: "queue.SimpleQueue[Expected]" = field(init=False, default_factory=queue.SimpleQueue)
    _waiting: list[Expected] = field(init=False, default_factory=list)

    def expect(self, pod: Path, limits: tuple[tuple[GpuUuid, int], ...]) -> None:
        """Limit the container that starts next in a pod."""
        if limits:
            until = self.clock.monotonic() + _LONGEST_S
            known = frozenset(cgroups.container_directories(pod))
            self._news.put(Expected(pod=pod, known=known, limits=limits, until=until))

    def run(self, stop: threading.Event) -> None:
        """Look whenever something is about to start, until `stop` is set."""
        while not stop.is_set():
            with suppress(queue.Empty):
                self._waiting.append(self._news.get(timeout=_IDLE_S))
            while self._waiting and not self.clock.wait(stop, _LOOK_S):
                self.look()

    def look(self) -> None:
        """Limit what has appeared."""
        with suppress(queue.Empty):
            while True:
                self._waiting.append(self._news.get_nowait())
        now = self.clock.monotonic()
        self._waiting = [each for each in self._waiting if now < each.until]
        for pod in {each.pod for each in self._waiting if each.after <= now}:
            self._look_at(pod, now)

    def _look_at(self, pod: Path, now: float) -> None:
        groups = cgroups.container_directories(pod)
        found = [each for each in self._waiting if each.pod == pod and groups.keys() - each.known]
        if not found:
            # Less and less often, so that many that take long cost little.
            self._waiting = [
                replace(each, after=now + _AGED * (now + _LONGEST_S - each.until)) if each.pod == pod else each
                for each in self._waiting
            ]
            return
        new = {path for each in found for name, path in groups.items() if name not in each.known}
        others = [each for each in self._waiting if each not in found]
        # Of several it is not known which one is which: then the kubelet's report decides.
        is_clear = len(new) == 1 and len({each.limits for each in found}) == 1
        if is_clear and not self._is_limited(min(new), found[0]):
            others += [replace(each, after=now + _AGAIN_S) for each in found]
        self._waiting = others

    def _is_limited(self, leaf: Path, expected: Expected) -> bool:
        try:
            for gpu, hard in expected.limits:
                self.driver.set(gpu, leaf, hard)
        except LimitError:
            return False
        return True
