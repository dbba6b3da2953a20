"""Amounts of extended resources as the API server writes them, and amounts of memory as people read them. Pure."""

import re
from typing import Final

_QUANTITY: Final = re.compile(r"([0-9]{1,15})(k|M|G|Ki|Mi|Gi)?")
_SUFFIX: Final = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30}


def whole(value: object) -> int:
    """A whole quantity; the API server writes 15000 as 15k. 0 if it is none."""
    match = _QUANTITY.fullmatch(str(value))
    return int(match[1]) * _SUFFIX[match[2] or ""] if match else 0


def memory(mib: int) -> str:
    """An amount of memory, exactly."""
    return f"{mib // 1024} GiB" if mib % 1024 == 0 else f"{mib} MiB"


def percent(used: int, total: int) -> int:
    """Truncated, as Aliyun's tool does; 0 of nothing."""
    return used * 100 // total if total else 0
