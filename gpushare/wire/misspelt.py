"""Names of resources that are nearly one of ours -> the one that was probably meant. Pure."""

import difflib
from typing import Final

from gpushare import names
from gpushare.resource_config import ResourceConfig

_DOMAINS: Final = ("aliyun.com", "nano-gpu", names.DOMAIN)
_LONGEST: Final = 63 + 1 + 63  # a name after the slash, and a domain that is worth comparing
_NEAR: Final = 0.6  # of 1: `gpu` and `gpu-mem`
_NEAR_DOMAIN: Final = 0.8  # `alyun.com`, `nanogpu`
_BEGINS: Final = 0.9  # one name is the beginning of the other


def meant(resource: str, resource_config: ResourceConfig) -> str | None:
    """The resource of ours that an author probably meant; None if it is one of ours, or nothing like it.

    Args:
        resource: as it was written.
        resource_config: of the cluster.
    """
    ours = (*resource_config.resources, names.GPU_CORE)
    domain, slash, name = resource.lower().partition("/")
    if not slash or len(resource) > _LONGEST or resource in {*ours, names.GPU_COUNT}:
        return None
    if not difflib.get_close_matches(domain, _DOMAINS, n=1, cutoff=_NEAR_DOMAIN):
        return next((each for each in ours if each != names.GPU and each.partition("/")[2] == name), None)
    best = max(ours, key=lambda each: (_likeness(name, each), each.startswith(f"{domain}/")))
    return best if _likeness(name, best) >= _NEAR else None


def _likeness(name: str, ours: str) -> float:
    """From 0 to 1."""
    other = ours.partition("/")[2]
    ratio = difflib.SequenceMatcher(None, name, other).ratio()
    begins = bool(name) and (name.startswith(other) or other.startswith(name))
    return max(ratio, _BEGINS) if begins else ratio
