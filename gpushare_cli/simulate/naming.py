"""Names of pods that do not exist yet: shaped as Kubernetes makes them, but the same in every run. Pure."""

import hashlib
from typing import Final

_LETTERS: Final = "bcdfghjklmnpqrstvwxz2456789"  # those of Kubernetes' own suffixes
_LONGEST: Final = 58  # Kubernetes cuts a longer base before it adds a suffix


def random_like(base: str, seed: str) -> str:
    """A base with five letters behind it, as of a `generateName`."""
    return f"{base[:_LONGEST]}{_letters(seed, 5)}"


def template_hash(seed: str) -> str:
    """What a Deployment puts between its name and the name of a pod."""
    return _letters(seed, 10)


def _letters(seed: str, count: int) -> str:
    number = int.from_bytes(hashlib.sha256(seed.encode()).digest()[:16])
    found = []
    for _ in range(count):
        number, rest = divmod(number, len(_LETTERS))
        found.append(_LETTERS[rest])
    return "".join(found)
