"""Hypothesis strategies: small named ones, composed into bigger ones."""

from hypothesis import strategies as st

from gpushare.identity import ContainerName, GpuUuid, NodeName
from gpushare.model.allocation import Allocation, Grant
from gpushare.model.gpu import Gpu, GpuHealth, NodeInventory
from gpushare.model.ledger import NodeLedger
from gpushare.model.request import ContainerKind, ContainerRequest, Policy, RequestShape
from gpushare.units import MemoryUnit
from tests.builders import make_allocation, make_inventory, make_ref

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
                numa=st.none() | st.integers(0, 7),
                health=st.sampled_from(GpuHealth),
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
)
allocations = st.builds(
    Allocation, pod=st.just(make_ref()), node=texts.map(NodeName), grants=st.lists(grants, max_size=4).map(tuple)
)


@st.composite
def shapes(draw: st.DrawFn, max_containers: int = 4, max_gib: int = 8) -> RequestShape:
    """Small pods: init containers and sidecars first, as they start."""
    early = draw(st.lists(st.sampled_from([ContainerKind.INIT, ContainerKind.SIDECAR]), max_size=2))
    apps = draw(st.integers(0 if early else 1, max(1, max_containers - len(early))))
    kinds = [*early, *[ContainerKind.APP] * apps]
    containers = tuple(
        ContainerRequest(
            container=ContainerName(f"c{i}"),
            kind=kind,
            memory_mib=draw(st.integers(1, max_gib)) * 1024,
            gpu_count=draw(st.sampled_from([1, 1, 1, 2, 3])),
        )
        for i, kind in enumerate(kinds)
    )
    return RequestShape(containers=containers, policy=draw(st.none() | st.sampled_from(Policy)))


@st.composite
def ledgers(draw: st.DrawFn) -> NodeLedger:
    """Small nodes, partly full."""
    sizes = draw(st.lists(st.integers(1, 10), min_size=1, max_size=4))
    inventory = make_inventory(*sizes)
    held = [
        make_allocation(
            f"holder-{gpu.index}",
            Grant(container=ContainerName("c"), gpus=(gpu.uuid,), memory_mib=draw(st.integers(1, 10)) * 1024),
        )
        for gpu in inventory.gpus
        if draw(st.booleans())
    ]
    return NodeLedger.of(inventory, held)
