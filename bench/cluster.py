"""Ledgers of a large cluster, about half full."""

import itertools
import random
from collections.abc import Callable

from controller.state import ClusterState
from controller.watches import NodeSink, PodSink
from gpushare.cluster import node_records
from gpushare.cluster.node_records import NodeRecord
from gpushare.cluster.records import Bound
from gpushare.identity import ContainerName, GpuUuid, NodeName, PodRef, PodUid
from gpushare.model.allocation import Allocation, Grant
from gpushare.model.gpu import Gpu, NodeInventory
from gpushare.resource_config import ResourceConfig
from gpushare.units import GIB
from testing.builders import make_node

GPUS, GPU_GIB, PODS = 8, 80, 4


def inventory(name: str) -> NodeInventory:
    gpus = tuple(
        Gpu(uuid=GpuUuid(f"GPU-{name}-{i}"), index=i, model="NVIDIA H100 80GB HBM3", memory_mib=GPU_GIB * 1024)
        for i in range(GPUS)
    )
    return NodeInventory(node=NodeName(name), gpus=gpus, unit=GIB)


def filled(count: int) -> tuple[ClusterState, Callable[[], None]]:
    """The ledger, and a function that makes a pod finish or start somewhere."""
    rng = random.Random(0)
    state = ClusterState(resource_config=ResourceConfig())
    nodes: list[NodeRecord] = [node_records.read(make_node(inventory(f"node-{i}"))) for i in range(count)]
    NodeSink(state).replace(nodes)
    inventories = [node.inventory for node in nodes if node.inventory is not None]
    PodSink(state).replace([bound(gpus, f"pod-{gpus.node}-{j}", rng) for gpus in inventories for j in range(PODS)])
    fresh = itertools.count()

    def churn() -> None:
        i = next(fresh)
        name = f"churn-{i}"
        PodSink(state).upsert(bound(inventory(f"node-{i % count}"), name, rng))

    return state, churn


def bound(on: NodeInventory, name: str, rng: random.Random) -> Bound:
    """A pod on two GPUs with a quarter to three quarters of each."""
    gpus = tuple(gpu.uuid for gpu in rng.sample(on.gpus, 2))
    grant = Grant(container=ContainerName("main"), gpus=gpus, memory_mib=rng.randint(20, 60) * 1024)
    ref = PodRef(namespace="team", name=name, uid=PodUid(f"uid-{name}"))
    return Bound(ref=ref, node=on.node, allocation=Allocation(pod=ref, node=on.node, grants=(grant,)))
