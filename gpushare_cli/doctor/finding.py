"""What checks are made of: a question to the cluster, and what it finds."""

from dataclasses import dataclass
from enum import IntEnum
from typing import TypeVar

T = TypeVar("T")


class Severity(IntEnum):
    OK = 0
    """An intentional setting."""
    WARNING = 1
    """It works, but not as it should, or not for every pod."""
    ERROR = 2
    """Pods that ask for GPUs will not run, or GPUs are handed out twice."""

    @property
    def word(self) -> str:
        return self.name.lower()


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that is as it should not be."""

    severity: Severity
    object: str
    """Kind, namespace if it has one, and name, with slashes in between."""
    problem: str
    """In plain words, with numbers."""
    fix: str = ""
    """What to do, a command where possible. Empty if there is nothing to do."""


def error(object_: str, problem: str, fix: str) -> Finding:
    return Finding(severity=Severity.ERROR, object=object_, problem=problem, fix=fix)


def warning(object_: str, problem: str, fix: str) -> Finding:
    """Something that should be fixed, or that could not be seen."""
    return Finding(severity=Severity.WARNING, object=object_, problem=problem, fix=fix)


def note(object_: str, problem: str, fix: str = "") -> Finding:
    return Finding(severity=Severity.OK, object=object_, problem=problem, fix=fix)
