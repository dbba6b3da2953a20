"""Why a GPU takes no containers, or a limit does not hold: a sentence for people, with the code that metrics have."""

from enum import StrEnum

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
    OTHER = "Other"


class Cause(str):
    code: str

    def __new__(cls, code: str, sentence: str) -> "Cause":
        found = super().__new__(cls, sentence)
        found.code = code
        return found


class CauseError(GpuShareError):
    """Has its cause with the code, which `str` of an error loses."""

    def __init__(self, cause: str) -> None:
        super().__init__(cause)
        self.cause = cause


def code(sentence: str) -> str:
    """Empty for no sentence."""
    return sentence and getattr(sentence, "code", Code.OTHER)


def both(*sentences: str) -> str:
    """One sentence of all that there are, with the code of the first."""
    found = [each for each in sentences if each]
    return Cause(code(found[0]), "; ".join(found)) if found else ""
