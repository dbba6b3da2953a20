"""What Prometheus reads of nodes and namespaces, and how much of it there can be."""

from dataclasses import replace

from prometheus_client.parser import text_string_to_metric_families

from controller.ledger_metrics import MOST_GPUS, MOST_NAMESPACES, LedgerGauges
from controller.metrics import Metrics
from controller.state import ClusterState
from gpushare import names
from gpushare.cluster import node_records, pod_records
from gpushare.identity import NodeName
from gpushare.resource_config import ResourceConfig
from testing.builders import make_grant, make_inventory, make_node
from testing.cli.podding import bound
from testing.controller.world import ManualClock

CONFIG = ResourceConfig()
GIB = 1024**3


def with_pods(state: ClusterState, count: int, *, node: str = "node-a", gpu: str = "GPU-0", gib: int = 1) -> None:
    """One in each of so many namespaces, on a GPU of its own if the name has a place for its number."""
    index = state.cache.cluster_index
    for number in range(count):
        pod = bound(f"p{number}-{node}", make_grant(gpu.format(number), gib=gib), node=node)
        pod["metadata"]["namespace"] = f"team-{number:05}"
        record = pod_records.read(pod, CONFIG)
        assert record is not None
        index.set_pod(record.ref.uid, record)
    index.rebuild({NodeName(node)}, frees=False)


def with_node(state: ClusterState, name: str, *gib: int) -> None:
    state.cache.cluster_index.set_node(NodeName(name), node_records.read(make_node(make_inventory(*gib, node=name))))


def page(state: ClusterState, *, is_read: bool = True) -> str:
    metrics = Metrics(ManualClock())
    metrics.watch(state, {}, dict, is_read=lambda: is_read)
    return metrics.page().decode()


def found(state: ClusterState, name: str) -> dict[tuple[str, ...], float]:
    families = text_string_to_metric_families(page(state))
    return {
        tuple(each.labels.values()): each.value for family in families if family.name == name for each in family.samples
    }


def test_the_namespaces_that_hold_most_have_series_and_the_others_share_one() -> None:
    state = ClusterState(resource_config=CONFIG)
    with_node(state, "node-a", 4000)
    with_pods(state, MOST_NAMESPACES + 5)
    with_pods(state, 5, node="node-b")  # which is not there
    granted = found(state, "gpushare_namespace_memory_granted_bytes")
    assert len(granted) == MOST_NAMESPACES + 1
    assert granted[names.OTHERS,] == 5 * GIB
    assert sum(granted.values()) == (MOST_NAMESPACES + 5) * GIB
    assert sum(found(state, "gpushare_namespace_pods").values()) == MOST_NAMESPACES + 5


def test_over_committed_gpus_have_a_bound_and_the_worst_are_told() -> None:
    """A forged allocation may name GPUs that do not exist, as long as an annotation can be."""
    state = ClusterState(resource_config=CONFIG)
    with_node(state, "node-a", 8)
    with_pods(state, MOST_GPUS + 5, gpu="GPU-made-up-{}" + "x" * 300)
    with_pods(state, 1, gpu="GPU-0", gib=20)
    over = found(state, "gpushare_gpu_over_committed_bytes")
    assert len(over) == MOST_GPUS
    assert max(over.values()) == 12 * GIB
    assert max(len(gpu) for labels in over for gpu in labels) <= 253


def test_the_number_of_series_is_what_the_page_promises() -> None:
    state, nodes = ClusterState(resource_config=CONFIG), 20
    for number in range(nodes):
        with_node(state, f"node-{number}", 8, 8)
        with_pods(state, 100, node=f"node-{number}", gpu="GPU-{}")
    lines = [line for line in page(state).splitlines() if not line.startswith("#")]
    assert len(lines) <= 8 * nodes + 2 * (100 + 1) + 2 * MOST_GPUS + 300
    assert len([line for line in lines if "node=" in line and "UUID=" not in line]) <= 8 * nodes


def test_before_all_pods_are_read_no_node_looks_empty() -> None:
    """A new leader lists nodes and pods at the same time, and those of a large cluster for most of a minute."""
    state = ClusterState(resource_config=CONFIG)
    with_node(state, "node-a", 16)
    assert "node-a" not in page(state, is_read=False)
    with_pods(state, 1)
    assert 'gpushare_node_memory_granted_bytes{node="node-a"} 1.0' in page(state)


def test_only_nodes_that_have_changed_are_summed_up_again() -> None:
    state = ClusterState(resource_config=CONFIG)
    for name in ("node-a", "node-b"):
        with_node(state, name, 16)
    gauges = LedgerGauges(state, lambda: True)
    first = [family.samples for family in gauges.collect()]
    known = dict(gauges._known)
    assert [family.samples for family in gauges.collect()] == first
    assert all(gauges._known[name][1] is sums for name, (_, sums) in known.items())
    with_pods(state, 1, node="node-b")
    changed = [family.samples for family in gauges.collect()]
    assert changed != first
    assert gauges._known[NodeName("node-a")][1] is known[NodeName("node-a")][1]


def test_what_may_be_granted_is_told_beside_what_gpus_have() -> None:
    state, known = ClusterState(resource_config=CONFIG), make_inventory(16, 16)
    more = replace(known, gpus=(replace(known.gpus[0], extra_mib=8 * 1024), known.gpus[1]))
    state.cache.cluster_index.set_node(NodeName("node-a"), node_records.read(make_node(more)))
    kinds = ("total", "usable", "grantable")
    assert [found(state, f"gpushare_node_memory_{kind}_bytes")["node-a",] / GIB for kind in kinds] == [32, 32, 40]
