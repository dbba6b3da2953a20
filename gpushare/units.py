"""Amounts: how they are read and written. Memory is an int of MiB everywhere inside; units exist at the edges only."""

import decimal
import fractions
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from gpushare import errors, names

_UNIT: Final = re.compile(r"(?P<count>[1-9][0-9]{0,6})?\s?(?P<name>GiB|MiB)")
_INTEGER: Final = re.compile(r"[0-9]+[kM]?")  # the API server shortens amounts: 16000 comes back as 16k, 2000000 as 2M
_LONGEST: Final = 40  # characters of an amount; more are no amount, and are not repeated
MAX_UNITS: Final = 10**9  # far above any node; keeps products inside what JSON readers hold exactly


@dataclass(frozen=True, slots=True)
class MemoryUnit:
    """What one unit of `aliyun.com/gpu-mem` stands for in a cluster."""

    mib: int  # MiB of one unit, at least 1. 1024 (GiB) unless the administrator chose another.

    def __post_init__(self) -> None:
        if self.mib < 1:
            raise errors.SettingsError(f"memory unit of {self.mib} MiB: must be at least 1 MiB")

    @classmethod
    def parse(cls, text: str) -> "MemoryUnit":
        """Read `GiB`, `MiB`, or a multiple such as `256MiB`. Raises SettingsError: it is none of these."""
        match = _UNIT.fullmatch(text.strip())
        if match is None:
            raise errors.SettingsError(f"memory unit {text!r}: write GiB, MiB or a multiple such as 256MiB")
        return cls(int(match["count"] or 1) * (1024 if match["name"] == "GiB" else 1))

    @property
    def name(self) -> str:
        return {1: "MiB", 1024: "GiB"}.get(self.mib) or memory(self.mib).replace(" ", "")

    def floor(self, mib: int) -> int:
        """Whole units in so many MiB: what a GPU can hand out."""
        return mib // self.mib

    def ceil(self, mib: int) -> int:
        """Units that hold at least so many MiB."""
        return -(-mib // self.mib)

    def to_mib(self, units: int) -> int:
        return units * self.mib


GIB: Final = MemoryUnit(1024)
MIB: Final = 2**20  # bytes


def parse_amount(value: object, of: str = "units") -> int:
    """Read an amount as a Kubernetes manifest spells it: 3 or "3"; `of` is what is counted, for the message.

    Raises ValueError: not a positive whole number; the message says what to write instead.
    """
    if isinstance(value, bool) or not isinstance(value, (int, str, float)):
        raise ValueError(  # noqa: TRY004 - callers turn every ValueError into a field error
            f"{value!r:.80} is not a number; write a whole number of {of} such as 3"
        )
    text = str(value).strip()
    if len(text) > _LONGEST:
        raise ValueError(f"{text[:_LONGEST]!r}... is too long for an amount; write a whole number of {of} such as 3")
    if not _INTEGER.fullmatch(text):
        raise ValueError(_why_not_integer(text, of))
    amount = int(quantity(text) or 0)
    if amount == 0:
        raise ValueError("0 asks for nothing; remove the entry or write at least 1")
    if amount > MAX_UNITS:
        raise ValueError(f"{text} is more than any node can hold; write a number of {of} up to {MAX_UNITS}")
    return amount


def parse_memory(text: str, unit: MemoryUnit) -> int:
    """Read an amount of memory, such as 16Gi, 40000Mi or 24GB; a number alone counts units. In MiB, rounded up.

    Raises ValueError, which says what to write instead; so does `parse_factor`.
    """
    match = _MEMORY.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r:.80} is no amount of memory; write one such as 16Gi or 40000Mi")
    number, suffix = match["number"], match["suffix"].removesuffix("B")
    amount = fractions.Fraction(quantity(f"{number}{suffix}") or 0)
    mib = math.ceil(amount / MIB if suffix else amount * unit.mib)
    if mib == 0:
        raise ValueError(f"{text} asks for nothing; remove the annotation or write an amount such as 16Gi")
    if mib > MAX_UNITS:
        raise ValueError(f"{text} is more than any GPU has; write an amount such as 16Gi")
    return mib


_MEMORY: Final = re.compile(r"(?P<number>[0-9]{1,15}(\.[0-9]{1,9})?)\s?(?P<suffix>|[MGT]i?B?)")


def _why_not_integer(text: str, of: str) -> str:
    if text.startswith("-"):
        return f"{text} is negative; write a whole number of {of} such as 3"
    suffix = re.fullmatch(r"([0-9]+)(\.[0-9]+)?(m|k|M|G|T|P|E|[kKMGTPE]i?|[eE][0-9]+)?", text)
    if suffix and suffix[3] == "m":  # the API server's spelling of a fraction: 0.5 comes back as 500m
        return f"{text} is not whole (m stands for thousandths); a share is a whole number of {of}"
    if suffix and suffix[3]:
        return f"{text} has a suffix, but the resource is counted in {of}; write the number alone, such as {suffix[1]}"
    if suffix:
        return f"{text} is not whole; a share is a whole number of {of}"
    return f"{text!r} is not a number; write a whole number of {of} such as 3"


_FACTOR: Final = re.compile(r"([0-9]{1,2})(?:\.([0-9]{1,2}))?")
_MOST_PERCENT: Final = 1000


def parse_factor(text: str) -> int:
    """Read by how much of its memory a GPU may be granted; per cent, 100 or more."""
    found = _FACTOR.fullmatch(text.strip())
    percent = int(found[1]) * 100 + int((found[2] or "").ljust(2, "0")) if found else 0
    if not 100 <= percent <= _MOST_PERCENT:
        raise ValueError(f"{text!r:.80} is no factor; write one from 1 to 10 such as 1.5, with at most two decimals")
    return percent


_QUANTITY: Final = re.compile(
    r"(?P<number>[+-]?([0-9]+\.?[0-9]*|\.[0-9]+))(?:(?P<suffix>[numkMGTPE]|[KMGTPE]i)|[eE](?P<power>[+-]?[0-9]{1,4}))?"
)
_POWERS: Final = {"n": -9, "u": -6, "m": -3, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_LARGEST: Final = 2**63 - 1  # Kubernetes' own arithmetic
_BINARY: Final = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}


def quantity(value: object) -> decimal.Decimal | None:
    """Read an amount of any resource in any spelling that the API server takes; None if it is none.

    A number of too many digits is infinite.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    text = str(value).strip()
    if len(text) > _LONGEST and text.lstrip("+0").isdecimal():
        return decimal.Decimal("Infinity")
    match = _QUANTITY.fullmatch(text) if len(text) <= _LONGEST else None
    if match is None:
        return None
    power = int(match["power"] or _POWERS.get(match["suffix"], 0))
    return decimal.Decimal(match["number"]).scaleb(power) * (1 << _BINARY.get(match["suffix"], 0))


def whole(value: object) -> int:
    """A number of devices in any spelling that the API server takes, up to the largest that it counts; 0 if none."""
    amount = min(quantity(value) or 0, _LARGEST)
    return int(amount) if amount > 0 and amount == int(amount) else 0


def spelled(number: int) -> str:
    """A number of devices as the API server spells it when it is read back: 15000 as 15k."""
    for suffix, power in (("M", 10**6), ("k", 10**3)):
        if number and number % power == 0:
            return f"{number // power}{suffix}"
    return str(number)


def binary(mib: int) -> str:
    """An amount of memory, not 0, as the API server spells it when it is read back: 3072 as 3Gi."""
    power = min((mib & -mib).bit_length() - 1, 30) // 10
    return f"{mib >> 10 * power}{'MGTP'[power]}i"


def memory(mib: int) -> str:
    unit, (amount,) = in_one_unit(mib)
    return f"{amount} {unit}"


def in_one_unit(*mib: int) -> tuple[str, Sequence[int]]:
    """The unit in which amounts are compared, GiB if all are whole, else MiB; and their numbers."""
    if any(each % 1024 for each in mib):
        return "MiB", mib
    return "GiB", [each // 1024 for each in mib]


def part(mib: int, of_mib: int) -> str:
    """`3 of 15 GiB`."""
    unit, (some, every) = in_one_unit(mib, of_mib)
    return f"{some} of {every} {unit}"


def percent(used: int, total: int) -> int:
    """Truncated, as Aliyun's tool does; 0 of nothing."""
    return used * 100 // total if total else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceConfig:
    """The settings by which a pod's request is read."""

    unit: MemoryUnit = GIB  # what one `aliyun.com/gpu-mem` stands for
    whole_gpus: bool = False
    """Whether `nvidia.com/gpu` is this project's; otherwise it is another plugin's and none of our business."""

    @property
    def resources(self) -> tuple[str, ...]:
        """Extended resources that make a pod one of ours."""
        return (*names.SHARED_RESOURCES, names.GPU) if self.whole_gpus else names.SHARED_RESOURCES
