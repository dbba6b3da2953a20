"""Which pods have to move: the cases that random clusters rarely have."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from gpushare.cluster.node_ledger import Node, PodToPlace
from gpushare.cluster.node_records import NodeRecord
from gpushare.cluster.pod_records import Bound
from gpushare.identity import GpuUuid, NodeName
from gpushare.model.capacity import FreeHost
from gpushare.model.ledger import Allocation, NodeLedger
from gpushare.model.request import Affinity, LabelSelector, Operator, RequestShape, Requirement
from gpushare_cli.evict import move_search
from gpushare_cli.evict.move_search import Evictable, Movable, Plan, candidates
from testing.builders import make_grant, make_inventory, make_ref, make_shape

A, B, C = (NodeName(f"node-{name}") for name in "abc")
WEB = LabelSelector((Requirement("app", Operator.IN, ("web",)),), text="app=web")
Admits = Callable[[PodToPlace, NodeName], bool]


def of_ledger(ledger: NodeLedger, **fields: Any) -> Node:
    record = NodeRecord(name=ledger.inventory.node, published=None, inventory=ledger.inventory)
    return Node(record=record, ledger=ledger, **fields)


def on_node(node: NodeName, sizes: tuple[int, ...], held: Mapping[str, tuple[int, int]], **fields: Any) -> Node:
    """A node with pods: name -> GPU and GiB."""
    allocations = [
        Allocation(pod=make_ref(name), node=node, grants=(make_grant(gpu, gib=gib, container="c0"),))
        for name, (gpu, gib) in held.items()
    ]
    return of_ledger(NodeLedger.of(make_inventory(*sizes, node=node), allocations), **fields)


def movable(*nodes: Node, stay: str = "", admits: Admits = lambda _pod, _node: True, **fields: Any) -> Movable:
    """A cluster whose pods may move, but for those that stay."""
    evictable = []
    for node in nodes:
        assert isinstance(node.ledger, NodeLedger)
        for held in node.ledger.allocations.values():
            if held.pod.name not in stay.split():
                shape = make_shape(*(grant.memory_mib // 1024 for grant in held.grants))
                pod = PodToPlace(ref=held.pod, shape=shape, **fields)
                evictable.append(Evictable(bound=Bound(ref=pod.ref, node=node.record.name), pod=pod))
    return Movable(nodes={node.record.name: node for node in nodes}, evictable=evictable, admits=admits)


def waiting(gib: int, **fields: Any) -> PodToPlace:
    return PodToPlace(ref=make_ref("waits"), shape=make_shape(gib), **fields)


def planned(pod: PodToPlace, cluster: Movable) -> Plan:
    plan = move_search.plan(pod, cluster)
    assert plan is not None
    return plan


def test_the_pods_of_another_gpu_move_if_those_of_the_first_find_no_place() -> None:
    held = {"a": (0, 5), "b": (0, 5), "c": (0, 5), "d": (1, 13), "e": (1, 1), "f": (1, 1)}
    cluster = movable(on_node(A, (15, 15), held), on_node(B, (13, 1, 1), {}))
    plan = planned(waiting(15), cluster)
    assert ({move.pod.name for move in plan.moves}, plan.waiting) == (set("def"), ())
    assert len(list(candidates(waiting(15), cluster, 3))) == 2


def test_what_a_node_has_too_little_of_beside_gpus_counts() -> None:
    """There is room on node-b's GPU, and none for what kube-scheduler counts."""
    a = on_node(A, (15,), {"one": (0, 4)}, allocatable={"aliyun.com/gpu-mem": 11})
    b = on_node(B, (8,), {}, allocatable={"aliyun.com/gpu-mem": 3})
    cluster = movable(a, b, counted={"aliyun.com/gpu-mem": 4})
    plan = planned(waiting(15, counted={"aliyun.com/gpu-mem": 15}), cluster)
    assert [move.target for move in plan.waiting] == [None]


def test_of_two_plans_that_leave_pods_waiting_the_lesser_evil_is_told() -> None:
    cluster = movable(on_node(A, (15,), {"one": (0, 8), "two": (0, 7)}), on_node(B, (14,), {"three": (0, 8)}))
    assert [move.pod.name for move in planned(waiting(13), cluster).waiting] == ["three"]


def test_who_wants_a_neighbour_is_placed_beside_it() -> None:
    """`guest` is to be beside `app=web`, which is on node-b as well as on node-a."""
    wants = RequestShape(containers=make_shape(4).containers, affinity=Affinity(namespace="default", same=WEB))
    held = [
        Allocation(pod=make_ref(name), node=node, grants=(make_grant(gpu, gib=2),), labels={"app": "web"})
        for name, node, gpu in (("web-a", A, 0), ("web-b", B, 1))
    ]
    guest = Allocation(pod=make_ref("guest"), node=A, grants=(make_grant(0, gib=4),))
    a = of_ledger(NodeLedger.of(make_inventory(15, node=A), [held[0], guest]))
    b = of_ledger(NodeLedger.of(make_inventory(9, 9, node=B), [held[1]]))
    cluster = movable(a, b, stay="web-a web-b", labels={"app": "web"})
    [one] = cluster.evictable
    cluster = replace(cluster, evictable=[replace(one, pod=replace(one.pod, shape=wants))])
    plan = planned(waiting(13), cluster)
    assert [(move.target, move.grants[0].gpus) for move in plan.moves] == [(B, ("GPU-1",))]


def test_no_successor_comes_back_to_a_host_that_has_no_cpu_for_both() -> None:
    """GPU 1 of node-a has room for it."""
    a = on_node(A, (15, 15), {"one": (0, 4)}, host=FreeHost(500, 1024))
    cluster = movable(a, on_node(B, (8,), {}, host=FreeHost(4000, 8192)), takes=FreeHost(1000, 1024))
    plan = planned(waiting(14, takes=FreeHost(1500, 1024)), cluster)
    assert plan.kept_free == {"GPU-0", "GPU-1"}
    assert [move.target for move in plan.moves] == [B]


def test_the_rest_of_a_plan_is_judged_by_the_cluster_as_it_is_then() -> None:
    pod = waiting(15)
    plan = planned(pod, movable(on_node(A, (15,), {"one": (0, 4), "two": (0, 4)}), on_node(B, (8,), {})))
    first, second = plan.moves

    def rest(left: Mapping[str, tuple[int, int]], again: int, *leaving: move_search.Move) -> Plan | None:
        """Of a cluster in which the first successor, which stays, has so many GiB, as has a pod that has come."""
        a, b = on_node(A, (15,), left).closed(plan.kept_free), on_node(B, (8,), {"again": (0, again)})
        return move_search.remainder(pod, movable(a, b, stay="again rival"), plan, [move.pod.uid for move in leaving])

    held = {second.pod.name: (0, 4)}
    found = rest(held, 4, second)
    assert found is not None
    assert [move.pod.name for move in found.moves] == [second.pod.name]
    assert rest(held, 6, second) is None
    assert rest({**held, "rival": (0, 1)}, 4, second) is None, "one has come"
    assert rest(held, 4, first, second) is None, "it is gone"
    assert move_search.remainder(pod, movable(on_node(B, (8,), {})), plan, []) is None, "the node is gone"


def test_the_rest_of_a_plan_is_judged_while_the_gpus_that_are_held_take_no_pods() -> None:
    """The pod fits on either GPU without `two`, which comes back to GPU 1 if that is open, and nowhere else."""
    grants = make_grant(0, gib=4, container="c0"), make_grant(1, gib=13, container="c1")
    two = Allocation(pod=make_ref("two"), node=A, grants=grants)
    node = of_ledger(NodeLedger.of(make_inventory(15, 20, node=A), [two]))

    def rest(held: str) -> Plan | None:
        begun = Plan(node=A, kept_free=frozenset({GpuUuid(held)}), moves=(), grants=())
        return move_search.remainder(waiting(15), movable(node.closed(begun.kept_free)), begun, [two.pod.uid])

    assert rest("GPU-1") is None
    found = rest("GPU-0")
    assert found is not None
    assert [move.target for move in found.moves] == [A]


def test_of_very_many_pods_as_few_move_as_it_takes() -> None:
    """Too many to try every two of them."""
    held = {f"p{i}": (0, 1) for i in range(41)}
    nodes = on_node(A, (41,), held), on_node(B, (4,), {})
    plan = planned(waiting(3), movable(*nodes, admits=lambda pod, node: (pod.ref.name, node) != ("waits", B)))
    assert len(plan.moves) == 3
    assert not plan.waiting


def test_the_successors_of_all_pods_of_a_gpu_find_places_one_after_another() -> None:
    a = on_node(A, (15, 15), {"one": (0, 4), "two": (0, 9), "three": (1, 9)})
    cluster = movable(a, on_node(B, (8,), {}), stay="three")
    leaving = [make_ref(name).uid for name in ("two", "one", "unknown")]

    places = move_search.successors(cluster, A, {GpuUuid("GPU-0")}, leaving)

    assert places[make_ref("two").uid] is None
    assert places[make_ref("one").uid] in {A, B}
    assert len(places) == 2
    assert move_search.successors(replace(cluster, nodes={}), A, (), leaving) == {}


def test_the_small_pod_moves_first_if_the_large_one_would_take_its_only_place() -> None:
    nodes = on_node(A, (15,), {"large": (0, 5), "small": (0, 4)}), on_node(B, (6,), {}), on_node(C, (14,), {})
    plan = planned(waiting(15), movable(*nodes, admits=lambda pod, node: (pod.ref.name, node) != ("small", C)))
    assert [(move.pod.name, move.target) for move in plan.moves] == [("small", B), ("large", C)]
