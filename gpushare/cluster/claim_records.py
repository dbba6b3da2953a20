"""What is kept of ResourceClaims: as if each pod that has some held GPUs, or waited for them, by its own request. Pure.

A GPU has one mode, so those of mode dra are a cluster of their own, with ledgers and refusals like any other. They have
the names that ResourceSlices give them in place of UUIDs.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace

from gpushare.cluster.node_records import NodeRecord
from gpushare.cluster.pod_records import Bound, Pending, PodRecord
from gpushare.identity import ContainerName, GpuUuid, NodeName, PodRef
from gpushare.model.capacity import Ask
from gpushare.model.ledger import Allocation, Grant
from gpushare.model.request import ContainerRequest, PodRequest, RequestShape
from gpushare.units import GIB, MIB
from gpushare.wire import claims
from gpushare.wire.fields import JsonObject


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimRecord:
    uid: str
    pod: PodRef  # for which it was made of a template; else as if it were one itself
    made: bool
    asks: tuple[ContainerRequest, ...] = ()  # nothing once it is allocated
    node: NodeName | None = None  # where it is allocated
    grants: tuple[Grant, ...] = ()


def read(claim: JsonObject) -> ClaimRecord | None:
    """What matters of a claim; None if it is not for GPUs of this project. Raises WireError."""
    reduced = claims.reduce(claim)
    if not reduced["results"] and not reduced["asks"]:
        return None
    owner = claims.owner(reduced)
    pod, made = owner or claims.pod_of(reduced["metadata"], reduced["metadata"]["namespace"]), owner is not None
    if not reduced["results"]:
        return ClaimRecord(uid=str(reduced["metadata"]["uid"]), pod=pod, made=made, asks=claims.asked(reduced))
    node = NodeName(str(reduced["results"][0].get("pool")))
    allocated = claims.read(reduced, node)
    grants = tuple(
        Grant(
            container=ContainerName(share.request),
            gpus=(GpuUuid(share.device),),
            memory_mib=-(-share.memory // MIB),
            compute_percent=share.compute,
        )
        for share in allocated.shares
        if not share.admin
    )
    return ClaimRecord(uid=allocated.uid, pod=pod, made=made, node=node, grants=grants)


def of_pod(found: Iterable[ClaimRecord]) -> PodRecord | None:
    """All claims of a pod, which kube-scheduler allocates together; None if they hold nothing and wait for nothing."""
    every = list(found)
    grants = tuple(grant for claim in every for grant in claim.grants)
    if node := next((claim.node for claim in every if claim.node), None):
        counts = Counter(grant.container for grant in grants)
        asks = tuple(
            ContainerRequest(
                container=grant.container,
                memory_mib=max(grant.memory_mib, 1),
                compute_percent=min(grant.compute_percent, 100),
                gpu_count=counts[grant.container],
            )
            for grant in grants
        )
        pod = every[0].pod
        return Bound(
            ref=pod,
            node=node,
            allocation=Allocation(pod=pod, node=node, grants=grants),
            ask=Ask.of(RequestShape(containers=asks)) if asks else Ask(),
        )
    shape = RequestShape(containers=tuple(asked for claim in every for asked in claim.asks))
    if not shape.containers:
        return None
    ref = every[0].pod
    return Pending(ref=ref, request=PodRequest(pod=ref, shape=shape), unschedulable=every[0].made)


def view(node: NodeRecord) -> NodeRecord | None:
    """As kube-scheduler sees it: MIG instances as any GPU, and no list of unhealthy ones. None without mode dra."""
    inventory = node.inventory
    if inventory is None or not inventory.dra:
        return None
    gpus = tuple(
        replace(gpu, uuid=GpuUuid(claims.device_name(gpu.uuid)), extra_mib=0, mig=None) for gpu in inventory.dra
    )
    return replace(node, inventory=replace(inventory, gpus=gpus, dra=(), left_out=(), unit=GIB), unhealthy=frozenset())
