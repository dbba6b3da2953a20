"""Which pods that came to their nodes past this system cannot be helped any more, or are left alone."""

import pytest

from gpushare.cluster import bypass, node_ledger
from gpushare.cluster.node_records import NodeRecord
from gpushare.identity import NodeName
from gpushare.resource_config import ResourceConfig
from gpushare.units import GIB, MemoryUnit
from testing.builders import Json, make_container, make_inventory, make_pod


@pytest.mark.parametrize(
    ("reference", "keeps"),
    [
        ({"kind": "ReplicaSet", "controller": True}, False),
        ({"kind": "Job", "controller": True}, True),
        ({"kind": "Node", "controller": True}, True),
        ({"kind": "Job"}, False),
    ],
)
def test_jobs_and_static_pods_are_deleted_by_people_only(reference: Json, keeps: bool) -> None:
    pod = make_pod()
    pod["metadata"]["ownerReferences"] = [reference]

    assert bypass.owner(pod).keeps_pods == keeps
    assert bool(bypass.owner(pod).advice) == keeps


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

    assert bypass.gpu_started(pod, ResourceConfig()) == started


def test_a_node_is_foreign_as_long_as_nothing_says_what_gpus_it_shares() -> None:
    def foreign(record: NodeRecord, unit: MemoryUnit = GIB) -> bool:
        return bypass.is_foreign_node(node_ledger.of_node(record, (), (), unit)[0])

    plain = NodeRecord(name=NodeName("node-a"), published=None)
    sharing = NodeRecord(name=NodeName("node-a"), published="", inventory=make_inventory(15))
    assert foreign(plain)
    assert not foreign(sharing)
    assert not foreign(sharing, MemoryUnit(1))
