"""Whole clusters and their workloads: the controller's answers against a search by brute force on the same ledger."""

import random

from hypothesis import given
from hypothesis import strategies as st

from controller.cluster_table import ClusterTable
from controller.reconcile import loop
from controller.state import AlreadyBound, ClusterState, Reserved
from controller.watches import NodeSink
from gpushare.cluster.node_records import NodeRecord
from gpushare.identity import NodeName
from gpushare.model.allocation import Refused
from gpushare.model.ledger import NodeLedger
from gpushare.model.request import PodRequest, RequestShape
from gpushare.runtime.clock import SystemClock
from gpushare.units import ResourceConfig
from testing.builders import make_ref
from tests.property.brute_force import brute_force
from tests.property.strategies import ledgers, shapes

Workload = list[tuple[RequestShape, dict[str, str]]]
pods = st.lists(st.tuples(shapes(max_containers=2), st.sampled_from([{}, {"app": "web"}])), min_size=1, max_size=8)


@st.composite
def clusters(draw: st.DrawFn) -> list[NodeRecord]:
    """A few nodes; what is on them comes from the workload."""
    names = [f"node-{i}" for i in range(draw(st.integers(1, 3)))]
    inventories = [draw(ledgers(name)).inventory for name in names]
    return [NodeRecord(name=found.node, published="", inventory=found) for found in inventories]


@given(clusters(), pods, st.randoms(use_true_random=False))
def test_filter_agrees_with_brute_force_and_bind_never_over_commits(
    nodes: list[NodeRecord], workload: Workload, rng: random.Random
) -> None:
    state = ClusterState(resource_config=ResourceConfig(whole_gpus=True))
    NodeSink(state.index).replace(nodes)
    table = ClusterTable(state, SystemClock())
    names = [node.name for node in nodes]
    for i, (shape, labels) in enumerate(workload):
        request = PodRequest(pod=make_ref(f"p{i}"), shape=shape, labels=labels)
        resolved = state.index.resolve(shape, labels)
        found = table.filter(resolved, names, state.index.reserved_on(request.pod.uid))
        ledgers = {name: ledger(state, name) for name in names}
        assert found.fits == [name for name in names if brute_force(resolved, ledgers[name])]
        assert {*found.fits, *found.failed, *found.unresolvable} == set(names)

        # The scheduler may choose any node, also one that did not fit: then bind refuses, and nothing changes.
        chosen = rng.choice(names)
        answer = state.reserve(request, chosen, now=0.0)
        assert not isinstance(answer, AlreadyBound)
        assert isinstance(answer, Reserved) == (chosen in found.fits)
        match answer:
            case Reserved() if rng.random() < 0.8:
                state.confirm(answer, answer.allocation)
            case Reserved():
                state.undo(answer)
            case Refused():
                assert ledger(state, chosen) == ledgers[chosen]
        for name in names:
            assert ledger(state, name).over_committed() == {}
            assert ledger(state, name).over_computed() == {}
    assert loop.audit(state.index) == []


def ledger(state: ClusterState, name: NodeName) -> NodeLedger:
    ledger = state.index.snapshot().ledgers[name]
    assert isinstance(ledger, NodeLedger)
    return ledger
