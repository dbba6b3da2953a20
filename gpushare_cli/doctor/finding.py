"""What a check finds."""

from dataclasses import dataclass
from enum import IntEnum
from functools import partial
from typing import Final


class Severity(IntEnum):
    OK = 0
    """An intentional setting."""
    WARNING = 1
    """It works, but not as it should, or not for every pod; or it could not be seen."""
    ERROR = 2
    """Pods that ask for GPUs will not run, or GPUs are handed out twice."""

    @property
    def word(self) -> str:
        return self.name.lower()


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is as it should not be."""

    severity: Severity
    object: str
    """Kind, namespace if it has one, and name, with slashes in between."""
    problem: str
    """In plain words, with numbers."""
    fix: str
    """What to do, a command where possible. Empty if there is nothing to do."""


error: Final = partial(Finding, Severity.ERROR)
warning: Final = partial(Finding, Severity.WARNING)
note: Final = partial(Finding, Severity.OK)
