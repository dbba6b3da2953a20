"""A file that says whether the plugin is registered, for probes: nothing has to listen for them."""

import logging
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from gpushare.runtime import logs
from gpushare.runtime.clock import Clock

_LOG: Final = logging.getLogger(__name__)
_TOUCH_S: Final = 5.0
_STALE_S: Final = 30.0


@dataclass(kw_only=True)
class StateFile:
    """The plugin's side. A plugin that hangs leaves the file to grow old. Safe for use by many threads."""

    path: Path
    clock: Clock
    parts: Iterable[str]
    """What has to be registered, each with its own beat; the file is there while all are."""
    _lock: threading.Lock = field(init=False, default_factory=threading.Lock)
    _heard: dict[str, float | None] = field(init=False)
    """When each part last said that it is registered; None if it is not."""
    _touched: float | None = field(init=False, default=None)
    _present: bool = field(init=False, default=True)
    """An earlier process may have left one."""
    _broken: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        self._heard = dict.fromkeys(self.parts)

    def beat(self, part: str, registered: bool) -> None:
        """Called often by every part; writes seldom."""
        now = self.clock.monotonic()
        with self._lock:
            self._heard[part] = now if registered else None
            if None in self._heard.values():
                self._write(self._remove)
            elif self._due(now):
                self._write(self._touch)

    def _due(self, now: float) -> bool:
        """Whether the file has to be touched; a part that has fallen silent lets it grow old."""
        silent = any(heard is None or now - heard >= _TOUCH_S for heard in self._heard.values())
        return not silent and (self._touched is None or now - self._touched >= _TOUCH_S)

    def _touch(self) -> None:
        self._present, self._touched = True, self.clock.monotonic()
        self.path.touch()

    def _remove(self) -> None:
        if self._present:
            self.path.unlink(missing_ok=True)
        self._present, self._touched = False, None

    def _write(self, act: Callable[[], None]) -> None:
        try:
            act()
        except OSError as error:
            if not self._broken:
                logs.event(_LOG, "state file not written", level=logging.WARNING, error=str(error))
            self._broken = True


def problem(path: Path, clock: Clock) -> str:
    """Why the plugin is not registered, or nothing."""
    try:
        age = clock.now().timestamp() - path.stat().st_mtime
    except OSError as error:
        return f"the plugin is not registered with the kubelet ({path}: {error.strerror}); its log says why"
    if age > _STALE_S:
        return f"the plugin was registered, but has not said so for {age:.0f} s; its log says why"
    return ""
