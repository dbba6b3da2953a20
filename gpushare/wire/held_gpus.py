"""Bound pods, as objects -> what they hold. Whatever an object looks like, nothing but WireError comes out of here."""

from dataclasses import dataclass, replace

from gpushare import names
from gpushare.errors import InvalidRequestError, WireError
from gpushare.model.allocation import Allocation
from gpushare.resource_config import ResourceConfig
from gpushare.units import MemoryUnit
from gpushare.wire import allocation as allocation_wire
from gpushare.wire import fields, interop_read, pods, requests


def allocation(pod: pods.Pod, unit: MemoryUnit) -> Allocation | None:
    """What a bound pod was given, by this system or by one that it replaces; None if nothing.

    Args:
        pod: a bound pod.
        unit: of its node; annotations of other systems count in units.

    Raises:
        WireError: the annotation cannot be read or speaks of another node.
    """
    node = pods.node_of(pod)
    if node is None:
        return None
    if names.ANNOTATION_ALLOCATION not in pods.annotations(pod):
        return interop_read.allocation(pod, pods.ref(pod), node, unit)
    text = fields.text(pods.annotations(pod), names.ANNOTATION_ALLOCATION, "metadata.annotations")
    written = allocation_wire.decode(text, pods.ref(pod), pods.labels(pod))
    if written.node != node:
        raise WireError(
            f"annotation {names.ANNOTATION_ALLOCATION}: made for node {written.node}, but the pod is on {node}"
        )
    return written


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldGpus:
    """What a bound pod holds, for a ledger in which what cannot be read must not count as nothing."""

    allocation: Allocation | None
    problem: str = ""
    """Why its own annotation cannot be read; `allocation` is then what the others of its Binding tell."""


def of_pod(pod: pods.Pod, resource_config: ResourceConfig, unit: MemoryUnit) -> HeldGpus:
    """What a bound pod holds, from whichever annotation can be read.

    Args:
        pod: a bound pod.
        resource_config: of the cluster.
        unit: of its node.

    Raises:
        WireError: none can.
    """
    try:
        return HeldGpus(allocation=allocation(pod, unit))
    except WireError as error:
        node = pods.node_of(pod)
        if node is None or names.ANNOTATION_ALLOCATION not in pods.annotations(pod):
            raise
        asking = pods.asking(pod, resource_config)
        try:
            partial = allocation_wire.of_containers(pods.annotations(pod), asking, pod=pods.ref(pod), node=node)
        except WireError as other:
            raise WireError(f"{error}; and {other}") from error
        return HeldGpus(
            allocation=replace(_completed(partial, pod, resource_config), labels=pods.labels(pod)), problem=str(error)
        )


def _completed(partial: Allocation, pod: pods.Pod, resource_config: ResourceConfig) -> Allocation:
    """With what the annotations of single containers do not tell, but the pod's own request does."""
    try:
        asked = requests.of_pod(pod, resource_config)
    except InvalidRequestError:
        return partial
    wanted = {request.container: request for request in asked.shape.containers} if asked else {}
    physical = asked is not None and asked.shape.gpus.physical
    grants = tuple(
        replace(
            grant,
            compute_percent=wanted[grant.container].compute_percent,
            whole=wanted[grant.container].whole,
            physical=physical,
        )
        if grant.container in wanted
        else grant
        for grant in partial.grants
    )
    return replace(partial, grants=grants)
