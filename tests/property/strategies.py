"""Hypothesis strategies: small named ones, composed into bigger ones."""

from dataclasses import replace
from typing import Final

from hypothesis import strategies as st

from gpushare.identity import ContainerName, GpuUuid, NodeName
from gpushare.model.gpu import Gpu, GpuHealth, HandOver, Limit, MigInstance, NodeInventory
from gpushare.model.ledger import Allocation, Grant, NodeLedger
from gpushare.model.request import (
    ANY_GPU,
    Affinity,
    Choice,
    ContainerKind,
    ContainerRequest,
    GpuSelector,
    LabelSelector,
    MigChoice,
    Policy,
    RequestShape,
)
from gpushare.units import MemoryUnit
from testing.builders import make_allocation, make_inventory, make_ref

texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12)
units = st.sampled_from([1, 64, 256, 1024, 2048]).map(MemoryUnit)


@st.composite
def inventories(draw: st.DrawFn) -> NodeInventory:
    """Any inventory that the type allows."""
    gpus = draw(
        st.lists(
            st.builds(
                Gpu,
                uuid=texts.map(GpuUuid),
                index=st.integers(0, 99),
                model=texts,
                memory_mib=st.integers(0, 10**6),
                extra_mib=st.sampled_from([0, 0, 1, 10**6]),
                numa=st.none() | st.integers(0, 7),
                health=st.sampled_from([GpuHealth.HEALTHY, GpuHealth.UNHEALTHY]),
            ),
            max_size=8,
            unique_by=(lambda gpu: gpu.uuid, lambda gpu: gpu.index),
        )
    )
    ordered = tuple(sorted(gpus, key=lambda gpu: gpu.index))
    return NodeInventory(node=NodeName("node-a"), gpus=ordered, unit=draw(units))


grants = st.builds(
    Grant,
    container=texts.map(ContainerName),
    kind=st.sampled_from(ContainerKind),
    gpus=st.lists(texts.map(GpuUuid), min_size=1, max_size=4, unique=True).map(tuple),
    memory_mib=st.integers(1, 10**6),
    compute_percent=st.integers(0, 100),
    whole=st.booleans(),
    physical=st.booleans(),
    extra_mib=st.sampled_from([0, 0, 1, 10**6]),
)
allocations = st.builds(
    Allocation, pod=st.just(make_ref()), node=texts.map(NodeName), grants=st.lists(grants, max_size=4).map(tuple)
)


@st.composite
def container_requests(draw: st.DrawFn, name: str, kind: ContainerKind, max_gib: int = 8) -> ContainerRequest:
    """A container that asks in any of the ways."""
    spelling = draw(st.sampled_from(["memory", "memory", "compute", "compute", "compute", "part", "part", "whole"]))
    count = draw(st.sampled_from([1, 1, 1, 2, 3]))
    percent = draw(st.sampled_from([5, 20, 33, 50, 60, 100]))
    memory = draw(st.integers(1, max_gib)) * 1024
    common = ContainerRequest(container=ContainerName(name), kind=kind, memory_mib=memory, gpu_count=count)
    match spelling:
        case "compute":
            return replace(common, compute_percent=percent)
        case "part":
            return replace(common, memory_mib=0, memory_percent=percent, compute_percent=percent)
        case "whole":
            return replace(common, memory_mib=0, whole=True, compute_percent=100)
        case _:
            return common


_WEB: Final = LabelSelector.parse("app=web")
selectors = st.sampled_from([ANY_GPU, ANY_GPU, ANY_GPU]) | st.builds(
    GpuSelector,
    models=st.builds(Choice, wanted=st.sampled_from([(), ("T4",), ("A100", "T4")]), unwanted=st.sampled_from([()])),
    uuids=st.builds(Choice, unwanted=st.sampled_from([(), ("GPU-0",)])),
    min_memory_mib=st.sampled_from([0, 4096]),
    enforced=st.sampled_from([False, False, True]),
    mig=st.sampled_from([None, None, *MigChoice]),
    physical=st.sampled_from([False, False, True]),
)
affinities = (
    st.sampled_from([None, None, None])
    | st.builds(
        Affinity, namespace=st.just("default"), same=st.none() | st.just(_WEB), other=st.none(), first=st.booleans()
    )
    | st.builds(Affinity, namespace=st.just("default"), other=st.just(_WEB))
)


@st.composite
def shapes(draw: st.DrawFn, max_containers: int = 4, max_gib: int = 8) -> RequestShape:
    """Small pods: init containers and sidecars first, as they start."""
    early = draw(st.lists(st.sampled_from([ContainerKind.INIT, ContainerKind.SIDECAR]), max_size=2))
    apps = draw(st.integers(0 if early else 1, max(1, max_containers - len(early))))
    # One container is the usual pod, and is placed without a search.
    kinds = [*early, *[ContainerKind.APP] * apps] if draw(st.booleans()) else [ContainerKind.APP]
    return RequestShape(
        containers=tuple(draw(container_requests(f"c{i}", kind, max_gib)) for i, kind in enumerate(kinds)),
        policy=draw(st.none() | st.sampled_from(Policy)),
        gpus=draw(selectors),
        affinity=draw(affinities),
        only_cdi=draw(st.sampled_from([False, False, False, True])),
    )


@st.composite
def ledgers(draw: st.DrawFn, node: str = "node-a") -> NodeLedger:
    """Small nodes, partly full."""
    sizes = draw(st.lists(st.sampled_from([0, *range(1, 11)]), min_size=1, max_size=4))
    inventory = make_inventory(*sizes, node=node)
    models = st.sampled_from(["Tesla T4", "NVIDIA A100-SXM4-80GB"])
    health = st.sampled_from([*[GpuHealth.HEALTHY] * 5, GpuHealth.UNHEALTHY, GpuHealth.CORDONED])
    held_by = st.sampled_from(
        [(Limit.ADVISORY, None), (Limit.CGROUP, None), (Limit.MIG, MigInstance(gpu=0, number=0, profile="1g.5gb"))]
    )

    def drawn(gpu: Gpu) -> Gpu:
        limit, mig = draw(held_by)
        extra_mib = 0 if mig else gpu.memory_mib * draw(st.sampled_from([0, 0, 20, 50, 150])) // 100
        return replace(gpu, model=draw(models), health=draw(health), limit=limit, mig=mig, extra_mib=extra_mib)

    gpus = tuple(map(drawn, inventory.gpus))
    held = [
        replace(
            make_allocation(
                f"holder-{node}-{gpu.index}",
                Grant(
                    container=ContainerName("c"),
                    gpus=(gpu.uuid,),
                    memory_mib=gpu.memory_mib * draw(st.sampled_from([0, 10, 20, 40, 50, 80, 100, 120])) // 100,
                    compute_percent=draw(st.sampled_from([0, 0, 30, 75])),  # also much beside little memory
                    whole=draw(st.sampled_from([False, False, False, True])),
                    physical=draw(st.sampled_from([False, False, True])),
                ),
                node=node,
            ),
            labels=draw(st.sampled_from([{}, {"app": "web"}])),
        )
        for gpu in inventory.gpus
        if draw(st.booleans())
    ]
    by = draw(st.sampled_from([HandOver.CDI, HandOver.CDI, HandOver.ENVVAR]))
    return NodeLedger.of(replace(inventory, gpus=gpus, hand_over=by), held)
