"""What the driver's error numbers (Xids) mean for a GPU. Pure.

Source: NVIDIA's Xid catalog, https://docs.nvidia.com/deploy/xid-errors/
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class Xid:
    """One kind of error."""

    number: int
    name: str
    condemns: bool = True
    """Whether the GPU counts as unhealthy after it."""


def _program(number: int, name: str) -> Xid:
    return Xid(number=number, name=name, condemns=False)


def _gpu(number: int, name: str) -> Xid:
    return Xid(number=number, name=name)


KNOWN: Final[Mapping[int, Xid]] = MappingProxyType(
    {
        xid.number: xid
        for xid in (
            _program(13, "graphics engine exception"),
            _program(31, "GPU memory page fault"),
            _gpu(32, "invalid or corrupted push buffer stream"),
            _gpu(38, "driver firmware error"),
            _program(43, "GPU stopped processing"),
            _gpu(44, "graphics engine fault during context switch"),
            _program(45, "preemptive cleanup, due to previous errors"),
            _gpu(46, "GPU stopped processing"),
            _gpu(48, "double bit ECC error"),
            _gpu(54, "auxiliary power is not connected"),
            _gpu(61, "internal micro-controller breakpoint"),
            _gpu(62, "internal micro-controller halt"),
            _gpu(63, "ECC page retirement or row remapping recorded"),
            _gpu(64, "ECC page retirement or row remapping failed"),
            _program(68, "video decoder exception"),
            _gpu(69, "graphics engine class error"),
            _gpu(74, "NVLink error"),
            _gpu(79, "GPU has fallen off the bus"),
            _gpu(92, "high single-bit ECC error rate"),
            _gpu(94, "contained ECC error"),
            _gpu(95, "uncontained ECC error"),
            _program(109, "context switch timeout"),
            _gpu(110, "security fault"),
            _gpu(119, "GSP RPC timeout"),
            _gpu(120, "GSP error"),
            _gpu(121, "C2C link corrected error"),
            _gpu(136, "link training failed"),
            _gpu(137, "NVLink fabric address error"),
            _gpu(140, "unrecovered ECC error"),
            _gpu(143, "GPU initialization failed"),
            _gpu(149, "NVLink network interface error"),
            _gpu(154, "GPU recovery action changed"),
            _gpu(155, "NVLink software-defined error"),
            _gpu(156, "memory resource retired"),
            _gpu(157, "memory resource retirement failed"),
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
