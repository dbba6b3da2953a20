"""What becomes of bypassed pods."""

import pytest

from gpushare.cluster import bypass, node_ledger, pod_records
from gpushare.cluster.bypass import Fate
from gpushare.cluster.node_records import NodeRecord
from gpushare.cluster.pod_records import Bound, Bypassed
from gpushare.identity import NodeName
from gpushare.model.ledger import LedgerOrRefused
from gpushare.units import GIB, MemoryUnit, ResourceConfig
from testing.builders import Json, make_container, make_inventory, make_pod


@pytest.mark.parametrize(
    ("kind", "report", "started"),
    [
        ("containerStatuses", {"name": "main", "state": {"running": {}}}, True),
        ("containerStatuses", {"name": "main", "state": {"waiting": {}}, "lastState": {"terminated": {}}}, True),
        ("containerStatuses", {"name": "main", "state": {"waiting": {}}}, False),
        ("containerStatuses", {"name": "log", "state": {"running": {}}}, False),
        ("initContainerStatuses", {"name": "first", "state": {"terminated": {}}}, True),
    ],
)
def test_only_containers_that_ask_for_gpus_count_as_started(kind: str, report: Json, started: bool) -> None:
    pod = make_pod(make_container("main", 3), make_container("log"), init=[make_container("first", 1)], node="node-a")
    pod["status"][kind] = [report]

    record = pod_records.read(pod, ResourceConfig())
    assert isinstance(record, Bound)
    assert record.bypassed is not None
    assert record.bypassed.started == started


@pytest.mark.parametrize("mutated", [True, False])
def test_a_node_is_foreign_as_long_as_nothing_says_what_gpus_it_shares(mutated: bool) -> None:
    def foreign(ledger: LedgerOrRefused | None) -> bool:
        return bypass.outcome(pod, ledger, None)[0] is Fate.LEFT_ALONE

    pod = Bypassed(request=None, mutated=mutated, started=False)
    plain = NodeRecord(name=NodeName("node-a"), published=None)
    sharing = NodeRecord(name=NodeName("node-a"), published="", inventory=make_inventory(15))
    assert foreign(None) is not mutated
    assert foreign(node_ledger.of_node(plain, (), (), GIB)[0]) is not mutated
    assert not foreign(node_ledger.of_node(sharing, (), (), GIB)[0])
    assert not foreign(node_ledger.of_node(sharing, (), (), MemoryUnit(1))[0])
