"""What is left on a node as pods come and leave."""

from gpushare.cluster.node_ledger import Node, PodToPlace
from gpushare.cluster.node_records import NodeRecord
from gpushare.identity import GpuUuid, NodeName
from gpushare.model.capacity import FreeHost
from gpushare.model.ledger import NodeLedger, RefusalReason, Refused
from gpushare.placement.policies import Policies
from testing.builders import make_grant, make_inventory, make_ref, make_shape

A = NodeName("node-a")
RECORD = NodeRecord(name=A, published=None)
POD = PodToPlace(ref=make_ref("p"), shape=make_shape(4), takes=FreeHost(500, 512), counted={"aliyun.com/gpu-mem": 4})


def test_a_pod_that_comes_and_leaves_changes_nothing() -> None:
    sums = {"allocatable": {"aliyun.com/gpu-mem": 6}, "requested": {"aliyun.com/gpu-mem": 0}}
    node = Node(record=RECORD, ledger=NodeLedger.of(make_inventory(15, node=A)), host=FreeHost(1000, 1024), **sums)
    grants = node.grants(POD, POD.shape, Policies())
    assert grants is not None
    full = node.plus(POD, grants)
    assert sum(held.memory_mib for held in full.held(POD.ref.uid).values()) == 4096
    assert full.grants(POD, POD.shape, Policies()) is None
    assert full.lacks(FreeHost(501, 513), POD.counted) == [
        "Insufficient aliyun.com/gpu-mem: 4 asked for, 6 allocatable, 4 requested by pods there",
        "Insufficient cpu: 501m asked for, 500m free",
        "Insufficient memory: 513Mi asked for, 512Mi free",
    ]
    assert full.without([POD]) == node


def test_a_gpu_that_is_closed_takes_no_pods_until_it_is_opened() -> None:
    node = Node(record=RECORD, ledger=NodeLedger.of(make_inventory(15, node=A)))
    closed = node.closed({GpuUuid("GPU-0")})
    assert closed.grants(POD, POD.shape, Policies()) is None
    assert closed.opened({GpuUuid("GPU-0")}).grants(POD, POD.shape, Policies()) is not None


def test_a_node_that_takes_no_pods_stays_so() -> None:
    refused = Refused(RefusalReason.NO_INVENTORY, "none", permanent=True)
    node = Node(record=RECORD, ledger=refused, host=FreeHost(1000, 1024))
    assert node.held(POD.ref.uid) == {}
    assert node.grants(POD, POD.shape, Policies()) is None
    assert node.plus(POD, (make_grant(0, gib=4),)).closed({GpuUuid("GPU-0")}).without([POD]).ledger == refused
