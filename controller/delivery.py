"""Deliver a choice of GPUs to its pod: one request, a Binding or a patch, whose reply may be lost.

If the answer does not tell whether it took effect, the pod is read; if that does not tell, the memory stays reserved.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from controller.state import AlreadyBound, ClusterState, Reserved
from gpushare.errors import WireError
from gpushare.kube import api as kube
from gpushare.kube.api import JsonObject, KubeApi
from gpushare.model.ledger import Allocation
from gpushare.model.request import PodRequest
from gpushare.runtime.clock import Clock
from gpushare.wire import allocations, pods as pods_wire


class Absent(Enum):  # a pod that holds no GPUs and is on no node
    UNBOUND = "unbound"
    GONE = "gone"  # or another pod has its name


ReadBack = Allocation | AlreadyBound | Absent
"""What a pod itself says: it holds GPUs on the node that was chosen, or it is on a node without them, or on another."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Undelivered:
    """The pod is not known to hold what was chosen."""

    error: kube.KubeError  # of the request
    read_back: ReadBack | None = None  # None if the pod was not read
    unread: str = ""  # why it could not be read
    in_doubt: bool = False  # the request may still take effect, so the memory stays reserved


def annotations(reserved: Reserved, request: PodRequest, clock: Clock) -> dict[str, str]:
    assumed_ns = int(clock.now().timestamp() * 1_000_000) * 1000
    return allocations.binding_annotations(reserved.allocation, reserved.inventory, assumed_ns, request)


def limit(timeout_s: float) -> dict[str, str]:
    """The API server drops the request after the same time, so that it cannot take effect much later."""
    return {"timeout": f"{timeout_s:g}s"}


def deliver(
    state: ClusterState, reserved: Reserved, *, send: Callable[[], object], read: Callable[[], ReadBack]
) -> Allocation | Undelivered:
    """Send a choice and end its reservation, whatever happens; what the pod holds now, if that is known."""
    ended: Allocation | Undelivered | None = None
    try:
        send()
        ended = reserved.allocation
    except (kube.ConflictError, kube.UnreachableError, kube.ServerFaultError) as error:
        ended = _resolved(error, read)
    except kube.KubeError as error:
        ended = Undelivered(error=error)
    finally:
        match ended:
            case Allocation():
                state.confirm(reserved, ended)
            case Undelivered(in_doubt=False):
                state.undo(reserved)
            case _:  # an error that was not expected may have come at any moment
                state.mark_in_doubt(reserved)
    return ended


def read_back(api: KubeApi, state: ClusterState, chosen: Allocation, *, timeout_s: float) -> ReadBack:
    """What the API server shows of a pod for which GPUs were chosen. Raises KubeError, WireError: it cannot be read."""
    path = kube.pod_path(chosen.pod.namespace, chosen.pod.name)
    try:
        return api.read_object(path, keep=lambda pod: _read_from(pod, chosen, state), timeout_s=timeout_s)
    except kube.NotFoundError:
        return Absent.GONE


def _read_from(pod: JsonObject, chosen: Allocation, state: ClusterState) -> ReadBack:
    if pods_wire.ref(pod).uid != chosen.pod.uid:
        return Absent.GONE
    node = pods_wire.node_of(pod)
    if node is None:
        return Absent.UNBOUND
    if node != chosen.node:
        return AlreadyBound(node=node, granted=True)
    return allocations.granted(pod, state.resource_config.unit) or AlreadyBound(node=node, granted=False)


def _resolved(error: kube.KubeError, read: Callable[[], ReadBack]) -> Allocation | Undelivered:
    """What the pod says after an answer that does not tell all."""
    # A conflict changed nothing, but an earlier request may have. After silence only a pod on a node settles it.
    try:
        pod_shows = read()
    except (kube.KubeError, WireError) as unread:
        return Undelivered(error=error, unread=str(unread), in_doubt=True)
    if isinstance(pod_shows, Allocation):
        return pod_shows
    settled = isinstance(error, kube.ConflictError) or isinstance(pod_shows, AlreadyBound)
    return Undelivered(error=error, read_back=pod_shows, in_doubt=not settled)
