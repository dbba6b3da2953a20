"""When a process ends because only a new one can read the GPUs: its library is not the one of the node's driver."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from gpushare.runtime.clock import Clock

_CONTAINER_S: Final = 20.0
"""After so long a new container is needed: the runtime mounts the node's library when it makes one, so a new process in
this one may find the old library for ever."""


@dataclass(kw_only=True)
class Renewal:
    """Asked at every reading that fails for this reason.

    The process ends at once if a new one would do better. If not, ending it often would only make the kubelet wait
    longer and longer between two containers (up to 5 minutes), so it is not the first thing that is tried.
    """

    clock: Clock
    works: Callable[[], bool]
    """Whether a new process in this container can read the GPUs."""
    _since: float | None = field(init=False, default=None)

    @property
    def outdated(self) -> bool:
        """Whether this process cannot read the GPUs, by the last reading."""
        return self._since is not None

    def due(self) -> bool:
        """Whether to end now."""
        now = self.clock.monotonic()
        if self._since is None:
            self._since = now
        return now - self._since >= _CONTAINER_S or self.works()

    def reset(self) -> None:
        """The GPUs were read."""
        self._since = None
