"""Why a GPU takes no containers, or a limit does not hold: a sentence for people, with the code that metrics have."""

from enum import StrEnum
from typing import Any, Final

from gpushare.errors import GpuShareError


class Code(StrEnum):
    """What each means: `release/pages/metrics.py`."""

    XID = "Xid"  # followed by its number
    ECC = "EccError"
    ACTION = "RecoveryAction"
    DRIVER_SILENT = "DriverSilent"
    DRIVER_ERROR = "DriverError"
    DRIVER_CHANGED = "DriverChanged"
    NOT_LISTED = "NotListed"
    MIG_MODE = "MigMode"
    MIG_EMPTY = "MigWithoutInstances"
    MIG_GONE = "MigInstanceGone"
    MIG = "MigInstance"
    MEMORY_UNKNOWN = "MemoryUnknown"
    NOT_HANDED_OVER = "NotHandedOver"
    NOT_LIMITED = "NotLimited"
    SIMULATED = "Simulated"
    NOT_ASKED = "NotAsked"
    NO_MOUNTS = "NoMounts"
    COMPUTE_MODE = "ComputeMode"
    NO_CGROUP = "NoCgroup"
    NOT_SUPPORTED = "NotSupported"
    DRIVER_OLD = "DriverTooOld"
    MPS_SILENT = "MpsNotRunning"
    LIBRARY = "NoLibrary"
    MODE = "ModeChanging"
    DRA = "NoClaims"
    OTHER = "Other"


class Cause(str):
    """The type of faults, proofs and reasons: what is made from one is a `str`, so mypy finds where its code is lost.

    It is a `str` so that a published inventory, whose reasons are text to everyone else, brings the codes to metrics.
    """

    code: str

    def __new__(cls, code: str, sentence: str) -> "Cause":
        found = super().__new__(cls, sentence)
        found.code = code
        return found

    def __reduce__(self) -> tuple[Any, ...]:
        return Cause, (self.code, str(self))


NONE: Final = Cause("", "")


class CauseError(GpuShareError):
    """Has its cause with the code, which `str` of an error loses."""

    def __init__(self, cause: Cause) -> None:
        super().__init__(cause)
        self.cause = cause


def code(sentence: str) -> str:
    """Of a published reason; empty for no sentence."""
    return sentence and getattr(sentence, "code", Code.OTHER)


def both(*causes: Cause) -> Cause:
    """One sentence of all that there are, with the code of the first."""
    found = [each for each in causes if each]
    return Cause(found[0].code, "; ".join(found)) if found else NONE
