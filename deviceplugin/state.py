"""A file that says whether the plugin is registered, for probes: nothing has to listen for them."""

import logging
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
    """The plugin's side. A plugin that hangs leaves the file to grow old."""

    path: Path
    clock: Clock
    _touched: float | None = field(init=False, default=None)
    _present: bool = field(init=False, default=True)
    """An earlier process may have left one."""
    _broken: bool = field(init=False, default=False)

    def beat(self, registered: bool) -> None:
        """Called often; writes seldom."""
        now = self.clock.monotonic()
        try:
            if not registered:
                if self._present:
                    self.path.unlink(missing_ok=True)
                self._present, self._touched = False, None
            elif self._touched is None or now - self._touched >= _TOUCH_S:
                self._present, self._touched = True, now
                self.path.touch()
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
