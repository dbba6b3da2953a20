"""Nodes and pods of a simulation from nothing but what they have and ask for: for tests, and for measurements."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from gpushare.cluster.node_records import NodeRecord
from gpushare.identity import ContainerName, GpuUuid, NodeName, PodRef, PodUid
from gpushare.model.capacity import Ask, NodeCapacity
from gpushare.model.gpu import Gpu, NodeInventory
from gpushare.model.request import ContainerRequest, GpuSelector, PodRequest, RequestShape
from gpushare.units import MemoryUnit, ResourceConfig
from gpushare_cli import world
from gpushare_cli.kube_scores import Load
from gpushare_cli.schedulable import PODS, NodeFacts
from gpushare_cli.simulate.cluster import Nodes
from gpushare_cli.simulate.signature import PodSignature

_MIB = MemoryUnit(1)


def nodes_of(rooms: Sequence[NodeCapacity], *, max_pods: int = 110) -> Nodes:
    """Nodes without pods that hold GPUs, in this order."""
    known = []
    for number, room in enumerate(rooms):
        name = NodeName(f"node-{number:05}")
        gpus = tuple(
            Gpu(uuid=GpuUuid(f"GPU-{number}-{i}"), index=i, model=room.model, memory_mib=gpu.total_mib)
            for i, gpu in enumerate(room.gpus)
        )
        inventory = NodeInventory(node=name, gpus=gpus, unit=_MIB)
        record = NodeRecord(name=name, published="", inventory=inventory, allocatable=room.host)
        known.append((record, NodeFacts(name=name, labels={}, allocatable={PODS: max_pods})))
    return Nodes(
        world=world.build(known, (), ResourceConfig(unit=_MIB)),
        used=np.zeros((len(Load._fields), len(rooms))),
        replicas={},
        affinities=None,
        asks=(),
    )


def signature_of(ask: Ask, **more: Any) -> PodSignature:
    """That of a pod with one container, which requests CPU and memory."""
    load = Load(*ask.host, *ask.host)
    return PodSignature(ask=ask, load=load, shape=_shape(ask) if ask.gpus else None, **more)


def request_of(signature: PodSignature, number: int) -> PodRequest | None:
    """That of one of its pods; None if it asks for no GPU."""
    if signature.shape is None:
        return None
    ref = PodRef(namespace="default", name=f"pod-{number}", uid=PodUid(f"uid-{number}"))
    return PodRequest(pod=ref, shape=signature.shape)


def _shape(ask: Ask) -> RequestShape:
    request = ContainerRequest(
        container=ContainerName("main"),
        memory_mib=0 if ask.whole else ask.memory_mib,
        memory_percent=ask.memory_percent,
        compute_percent=0 if ask.whole else ask.compute_percent,
        whole=ask.whole,
        gpu_count=ask.gpus,
    )
    return RequestShape(containers=(request,), gpus=GpuSelector(models=ask.models, mig=ask.mig))
