"""What the plugin has done, counted. Apart from the metrics, whose library would cost a plugin its first second."""

import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from deviceplugin.decision import Decision, Reason, Refuse
from deviceplugin.resources import Resource

StartCheck = Callable[[Resource, Sequence[str]], Decision]


@dataclass
class Counts:
    """Safe for use by many threads."""

    _lock: threading.Lock = field(init=False, default_factory=threading.Lock)
    _starts: Counter[tuple[str, str]] = field(init=False, default_factory=Counter)
    _watchdog: Counter[tuple[str, str]] = field(init=False, default_factory=Counter)

    def counting(self, check: StartCheck) -> StartCheck:
        """A check of starts whose decisions are counted."""

        def counted(resource: Resource, device_ids: Sequence[str]) -> Decision:
            decision = check(resource, device_ids)
            outcome = ("refused", decision.reason.value) if isinstance(decision, Refuse) else ("accepted", "")
            with self._lock:
                self._starts[outcome] += 1
            return decision

        return counted

    def starts(self) -> Mapping[tuple[str, str], int]:
        """By outcome and reason; all of them, as nothing increases for Prometheus that was not there before."""
        none = {("accepted", ""): 0, **{("refused", reason.value): 0 for reason in Reason}}
        with self._lock:
            return {**none, **self._starts}

    def watchdog(self, action: str, result: str) -> None:
        """The watchdog has done something."""
        with self._lock:
            self._watchdog[action, result] += 1

    def actions(self) -> Mapping[tuple[str, str], int]:
        """Of the watchdog, by action and result."""
        with self._lock:
            return dict(self._watchdog)
