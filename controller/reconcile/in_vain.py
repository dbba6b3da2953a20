"""How often nodes were asked for in vain, by namespace: a pod that is created again has all its attempts again."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from controller.reconcile.node_requests import REST_S


@dataclass(slots=True)
class InVain:
    """Within the last `REST_S`. Not for several threads."""

    _ended: list[tuple[float, str]] = field(default_factory=list)
    """When, in monotonic seconds, and for a pod of which namespace; the oldest first."""

    def note(self, namespace: str, now: float) -> None:
        """A node may have come and its pod has not got there."""
        self._ended.append((now, namespace))

    def counts(self, now: float) -> Mapping[str, int]:
        """By namespace."""
        self._ended = [each for each in self._ended if now - each[0] < REST_S]
        return Counter(namespace for _, namespace in self._ended)
