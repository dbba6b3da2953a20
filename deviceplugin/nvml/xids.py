"""What the driver's error numbers (Xids) mean for a GPU. Pure.

Source: NVIDIA's Xid catalog, https://docs.nvidia.com/deploy/xid-errors/
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final


@dataclass(frozen=True, slots=True)
class Xid:
    """One kind of error."""

    number: int
    name: str
    condemns: bool = True
    """Whether the GPU counts as unhealthy after it."""


KNOWN: Final[Mapping[int, Xid]] = MappingProxyType(
    {
        xid.number: xid
        for xid in (
            Xid(13, "graphics engine exception", condemns=False),
            Xid(31, "GPU memory page fault", condemns=False),
            Xid(32, "invalid or corrupted push buffer stream"),
            Xid(38, "driver firmware error"),
            Xid(43, "GPU stopped processing", condemns=False),
            Xid(44, "graphics engine fault during context switch"),
            Xid(45, "preemptive cleanup, due to previous errors", condemns=False),
            Xid(46, "GPU stopped processing"),
            Xid(48, "double bit ECC error"),
            Xid(54, "auxiliary power is not connected"),
            Xid(61, "internal micro-controller breakpoint"),
            Xid(62, "internal micro-controller halt"),
            Xid(63, "ECC page retirement or row remapping recorded"),
            Xid(64, "ECC page retirement or row remapping failed"),
            Xid(68, "video decoder exception", condemns=False),
            Xid(69, "graphics engine class error"),
            Xid(74, "NVLink error"),
            Xid(79, "GPU has fallen off the bus"),
            Xid(92, "high single-bit ECC error rate"),
            Xid(94, "contained ECC error"),
            Xid(95, "uncontained ECC error"),
            Xid(109, "context switch timeout", condemns=False),
            Xid(110, "security fault"),
            Xid(119, "GSP RPC timeout"),
            Xid(120, "GSP error"),
            Xid(121, "C2C link corrected error"),
            Xid(136, "link training failed"),
            Xid(137, "NVLink fabric address error"),
            Xid(140, "unrecovered ECC error"),
            Xid(143, "GPU initialization failed"),
            Xid(149, "NVLink network interface error"),
            Xid(154, "GPU recovery action changed"),
            Xid(155, "NVLink software-defined error"),
            Xid(156, "memory resource retired"),
            Xid(157, "memory resource retirement failed"),
        )
    }
)
"""By number. An Xid that is not here condemns: what is not known may be the worst."""


def reason(number: int, ignored: frozenset[int] = frozenset()) -> str:
    """Why a GPU is unhealthy after this Xid, in a few words; empty if it is not, or if an administrator ignores it."""
    known = KNOWN.get(number)
    if number in ignored or (known and not known.condemns):
        return ""
    return f"Xid {number}: {known.name}" if known else f"Xid {number}"
