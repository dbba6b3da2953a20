"""How often pods of one owner may be deleted so that they are recreated. Pure.

The webhook may still be away, or may never see pods of that namespace; then each new pod is as bad as the one before.
So one pod is tried first. If no new one turns up as bad, the others follow; else one more is tried, ever later.
"""

from collections.abc import Set
from dataclasses import dataclass
from typing import Final

from gpushare.identity import PodUid

FIRST_S: Final = 60.0  # any controller has made a new pod by then
CAP_S: Final = 960.0
FORGET_S: Final = 2 * CAP_S


@dataclass(frozen=True, slots=True)
class _Try:
    at: float
    wait_s: float
    known: frozenset[PodUid]
    """Bad pods of the owner at that time, the deleted one included."""

    def has_worked(self, bad: Set[PodUid]) -> bool:
        return bad <= self.known


class RecreateBackoff:
    """Tries by the owners' UIDs; times are monotonic seconds. Not shared between threads."""

    def __init__(self) -> None:
        self._tries: dict[str, _Try] = {}

    def may_delete(self, owner: str, now: float) -> bool:
        """Whether one of the owner's bad pods may be deleted now: always, or for one try."""
        last = self._tries.get(owner)
        return last is None or now - last.at >= last.wait_s

    def deleted(self, owner: str, bad: Set[PodUid], now: float) -> None:
        """One of the owner's bad pods was deleted; `bad` are all of them, that one included."""
        last = self._tries.get(owner)
        if last is not None and last.has_worked(bad):
            return
        wait = FIRST_S if last is None else min(last.wait_s * 2, CAP_S)
        self._tries[owner] = _Try(now, wait, frozenset(bad))

    def forget(self, now: float) -> None:
        """Drop what is too long ago to matter."""
        self._tries = {owner: last for owner, last in self._tries.items() if now - last.at < FORGET_S}
