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

    def of(self, uuid: str, instance: int | None = None) -> str:
        """Why an instance of a GPU is unhealthy, which has its GPU's faults too, or a whole GPU; empty if it is not.

        Old drivers name an instance in the events of any GPU, so whatever is wrong with a whole GPU is its own.
        """
        found = {where: reason for (gpu, where), (reason, _) in self._found.items() if gpu == uuid}
        wanted = (_WHOLE_GPU, *found) if instance is None else (_WHOLE_GPU, instance)
        return next((found[where] for where in wanted if where in found), "")

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
