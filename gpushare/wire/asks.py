"""What a pod takes of a node, GPUs and host, from the pod as an object. Pure.

It is the same before and after a pod is bound. Whatever an object looks like, nothing but WireError comes out of here.
"""

import functools
from typing import Final

from gpushare import names
from gpushare.errors import InvalidRequestError
from gpushare.model.allocation import Allocation, Grant
from gpushare.model.capacity import Ask, FreeHost
from gpushare.model.request import PodRequest
from gpushare.units import ResourceConfig
from gpushare.wire import host, pods, requests

_OFTEN: Final = 4096
_CHOICES: Final = frozenset({names.ANNOTATION_MODEL, names.ANNOTATION_MIG})


def of_bound(pod: pods.Pod, allocation: Allocation | None, resource_config: ResourceConfig) -> Ask:
    """What a pod on a node takes; no GPUs if no one can tell what it asked for.

    Args:
        pod: the pod.
        allocation: what it holds, as far as it is known, which tells most requests without reading them again.
        resource_config: of the cluster.

    Raises:
        WireError: it is no pod.
    """
    if allocation is not None and len(allocation.grants) == 1 and _is_plain(pod, allocation.grants[0]):
        return _of_grant(allocation.grants[0], host.counted(pod))
    try:
        request = requests.of_pod(pod, resource_config)
    except InvalidRequestError:
        request = None
    return of_host(host.counted(pod)) if request is None else of_request(request)


def of_request(request: PodRequest) -> Ask:
    """What a pod takes that has been read already."""
    return Ask.of(request.shape, cpu_milli=request.cpu_milli, host_mib=request.host_mib)


@functools.lru_cache(maxsize=_OFTEN)
def of_host(takes: FreeHost) -> Ask:
    """What a pod without GPUs takes. Equal ones are mostly one object: a cluster has tens of thousands of pods."""
    return Ask(cpu_milli=takes.cpu_milli, host_mib=takes.memory_mib)


def _is_plain(pod: pods.Pod, grant: Grant) -> bool:
    """Whether the only grant of a pod says all that its request does: no part of a GPU, and no choice of GPUs."""
    if not _CHOICES.isdisjoint(pods.annotations(pod)):
        return False
    if grant.whole or not grant.compute_percent:
        return True  # a part is of compute, too
    return not any(names.GPU_PERCENT in pods.amounts(container, "limits") for _, _, container in pods.containers(pod))


def _of_grant(grant: Grant, takes: FreeHost) -> Ask:
    return _ask(len(grant.gpus), 0 if grant.whole else grant.memory_mib, grant.compute_percent, grant.whole, takes)


@functools.lru_cache(maxsize=_OFTEN)
def _ask(gpus: int, memory_mib: int, compute_percent: int, whole: bool, takes: FreeHost) -> Ask:
    return Ask(
        gpus=gpus,
        memory_mib=memory_mib,
        compute_percent=compute_percent,
        whole=whole,
        cpu_milli=takes.cpu_milli,
        host_mib=takes.memory_mib,
    )
