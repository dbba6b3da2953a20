"""Names of resources that are nearly one of ours -> the one that was probably meant. Pure."""

import difflib
import itertools
from collections.abc import Iterator, Mapping
from typing import Any, Final

from gpushare import names
from gpushare.units import ResourceConfig
from gpushare.wire import pods

COMPARED: Final = 64  # most resources of a pod that are compared with ours: a pod may carry hundreds of thousands
_DOMAINS: Final = ("aliyun.com", "nano-gpu", names.DOMAIN)
_LONGEST: Final = 63 + 1 + 63  # a name after the slash, and a domain that is worth comparing
_NEAR: Final = 0.6  # of 1: `gpu` and `gpu-mem`
_NEAR_DOMAIN: Final = 0.8  # `alyun.com`, `nanogpu`
_BEGINS: Final = 0.9  # one name is the beginning of the other


def meant(resource: str, resource_config: ResourceConfig) -> str | None:
    """The resource of ours that an author probably meant; None if it is one of ours, or nothing like it."""
    ours = (*resource_config.resources, names.GPU_CORE)
    domain, slash, name = resource.lower().partition("/")
    if not slash or len(resource) > _LONGEST or resource in {*ours, names.GPU_COUNT}:
        return None
    if not difflib.get_close_matches(domain, _DOMAINS, cutoff=_NEAR_DOMAIN):
        return next((each for each in ours if each != names.GPU and each.partition("/")[2] == name), None)
    best = max(ours, key=lambda each: (_likeness(name, each), each.startswith(f"{domain}/")))
    return best if _likeness(name, best) >= _NEAR else None


def of_pod(pod: Mapping[str, Any], resource_config: ResourceConfig) -> Iterator[tuple[str, str, str]]:
    """Container, resource and what was probably meant, for each misspelt limit among the first of a pod or template."""
    asked = (
        (str(container.get("name")), resource)
        for _, _, container in pods.containers(pod)
        for resource in pods.amounts(container, "limits")
        if "/" in resource
    )
    for name, resource in itertools.islice(asked, COMPARED):
        if likely := meant(resource, resource_config):
            yield name, resource, likely


def _likeness(name: str, ours: str) -> float:
    other = ours.partition("/")[2]
    ratio = difflib.SequenceMatcher(None, name, other).ratio()
    begins = bool(name) and (name.startswith(other) or other.startswith(name))
    return max(ratio, _BEGINS) if begins else ratio
