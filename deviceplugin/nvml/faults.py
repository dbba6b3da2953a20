"""What is wrong with GPUs, from the driver's events, until they are well again. Pure apart from its own memory."""

from dataclasses import dataclass, field
from typing import Final

_WHOLE_GPU: Final = 0xFFFFFFFF
"""What an event says instead of a GPU instance."""
_SETTLED_S: Final = 30.0


@dataclass(kw_only=True)
class Faults:
    """Remembers faults by GPU and, for MIG, by GPU instance.

    A fault stays until the GPU was away (a reset takes it away), the driver was unloaded or says that nothing needs to
    be done, or `recovery_s` have passed without another one.
    """

    recovery_s: float = 0.0
    """0: time heals nothing."""
    _found: dict[tuple[str, int], tuple[str, float]] = field(init=False, default_factory=dict)

    def add(self, uuid: str, instance: int, reason: str, now: float) -> None:
        """Args: uuid: of the GPU. instance: GPU instance, or what events say for the whole GPU."""
        self._found[uuid, instance] = (reason, now)

    def of(self, uuid: str, instance: int = _WHOLE_GPU) -> str:
        """Why a GPU is unhealthy, or an instance of it, which has its GPU's faults too; empty if it is not."""
        for key in ((uuid, _WHOLE_GPU), (uuid, instance)):
            if key in self._found:
                return self._found[key][0]
        return ""

    def forget(self, uuid: str) -> None:
        """The GPU was away and is back."""
        self._found = {key: fault for key, fault in self._found.items() if key[0] != uuid}

    def settle(self, uuid: str, now: float) -> None:
        """The driver says that nothing needs to be done. It may say so for a moment after a fault, too."""
        self._found = {
            key: fault for key, fault in self._found.items() if key[0] != uuid or now - fault[1] < _SETTLED_S
        }

    def forget_all(self) -> None:
        """The driver was unloaded."""
        self._found.clear()

    def expire(self, now: float) -> None:
        """Forget what is old enough."""
        if self.recovery_s:
            self._found = {key: fault for key, fault in self._found.items() if now - fault[1] < self.recovery_s}
