"""Which pods have to move: the cases that random clusters rarely have."""

from collections.abc import Mapping
from dataclasses import replace

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

A, B = NodeName("node-a"), NodeName("node-b")
WEB = LabelSelector((Requirement("app", Operator.IN, ("web",)),), text="app=web")


def of_ledger(ledger: NodeLedger, **fields: object) -> Node:
    record = NodeRecord(name=ledger.inventory.node, published=None, inventory=ledger.inventory)
    return Node(record=record, ledger=ledger, **fields)  # type: ignore[arg-type]


def on_node(node: NodeName, sizes: tuple[int, ...], held: Mapping[str, tuple[int, int]], **fields: object) -> Node:
    """A node with pods: name -> GPU and GiB."""
    allocations = [
        Allocation(pod=make_ref(name), node=node, grants=(make_grant(gpu, gib=gib, container="c0"),))
        for name, (gpu, gib) in held.items()
    ]
    return of_ledger(NodeLedger.of(make_inventory(*sizes, node=node), allocations), **fields)


def evictable(name: str, gib: int, node: NodeName = A, **fields: object) -> Evictable:
    pod = PodToPlace(ref=make_ref(name), shape=make_shape(gib), **fields)  # type: ignore[arg-type]
    return Evictable(bound=Bound(ref=pod.ref, node=node), pod=pod)


def waiting(gib: int, count: int = 1, **fields: object) -> PodToPlace:
    return PodToPlace(ref=make_ref("waits"), shape=make_shape((gib, count)), **fields)  # type: ignore[arg-type]


def planned(pod: PodToPlace, movable: Movable) -> Plan:
    plan = move_search.plan(pod, movable)
    assert plan is not None
    return plan


def test_the_pods_of_another_gpu_move_if_those_of_the_first_find_no_place() -> None:
    held = {"a": (0, 5), "b": (0, 5), "c": (0, 5), "d": (1, 13), "e": (1, 1), "f": (1, 1)}
    nodes = {A: on_node(A, (15, 15), held), B: on_node(B, (13, 1, 1), {})}
    movable = Movable(nodes=nodes, evictable=[evictable(name, gib) for name, (_, gib) in held.items()])
    plan = planned(waiting(15), movable)
    assert ({move.pod.name for move in plan.moves}, plan.waiting) == (set("def"), ())
    assert len(list(candidates(waiting(15), movable, 3))) == 2


def test_what_a_node_has_too_little_of_beside_gpus_counts() -> None:
    """There is room on node-b's GPU, and none for what kube-scheduler counts."""
    full = {"aliyun.com/gpu-mem": 3}
    nodes = {
        A: on_node(A, (15,), {"one": (0, 4)}, allocatable={"aliyun.com/gpu-mem": 11}),
        B: on_node(B, (8,), {}, allocatable=full),
    }
    movable = Movable(nodes=nodes, evictable=[evictable("one", 4, counted={"aliyun.com/gpu-mem": 4})])
    plan = planned(waiting(15, counted={"aliyun.com/gpu-mem": 15}), movable)
    assert [move.target for move in plan.waiting] == [None]


def test_of_two_plans_that_leave_pods_waiting_the_lesser_evil_is_told() -> None:
    nodes = {A: on_node(A, (15,), {"one": (0, 8), "two": (0, 7)}), B: on_node(B, (14,), {"three": (0, 8)})}
    movable = Movable(nodes=nodes, evictable=[evictable("one", 8), evictable("two", 7), evictable("three", 8, B)])
    plan = planned(waiting(13), movable)
    assert [move.pod.name for move in plan.waiting] == ["three"]


def test_who_wants_a_neighbour_is_placed_beside_it() -> None:
    """`guest` is to be beside `app=web`, which is on node-b as well as on node-a."""
    affinity = Affinity(namespace="default", same=WEB)
    wants = RequestShape(containers=make_shape(4).containers, affinity=affinity)
    held = [
        Allocation(pod=make_ref(name), node=node, grants=(make_grant(gpu, gib=2),), labels={"app": "web"})
        for name, node, gpu in (("web-a", A, 0), ("web-b", B, 1))
    ]
    guest = Allocation(pod=make_ref("guest"), node=A, grants=(make_grant(0, gib=4),))
    nodes = {
        A: of_ledger(NodeLedger.of(make_inventory(15, node=A), [held[0], guest])),
        B: of_ledger(NodeLedger.of(make_inventory(9, 9, node=B), [held[1]])),
    }
    pod = PodToPlace(ref=make_ref("guest"), shape=wants, labels={"app": "web"})
    movable = Movable(nodes=nodes, evictable=[Evictable(bound=Bound(ref=pod.ref, node=A), pod=pod)])
    plan = planned(waiting(13), movable)
    assert [(move.target, move.grants[0].gpus) for move in plan.moves] == [(B, ("GPU-1",))]


def test_no_successor_comes_back_to_a_host_that_has_no_cpu_for_both() -> None:
    """GPU 1 of node-a has room for it."""
    nodes = {
        A: on_node(A, (15, 15), {"one": (0, 4)}, host=FreeHost(500, 1024)),
        B: on_node(B, (8,), {}, host=FreeHost(4000, 8192)),
    }
    movable = Movable(nodes=nodes, evictable=[evictable("one", 4, takes=FreeHost(1000, 1024))])
    plan = planned(waiting(14, takes=FreeHost(1500, 1024)), movable)
    assert plan.kept_free == {"GPU-0", "GPU-1"}
    assert [move.target for move in plan.moves] == [B]


def test_the_rest_of_a_plan_is_judged_by_the_cluster_as_it_is_then() -> None:
    nodes = {A: on_node(A, (15,), {"one": (0, 4), "two": (0, 4)}), B: on_node(B, (8,), {})}
    movable = Movable(nodes=nodes, evictable=[evictable("one", 4), evictable("two", 4)])
    pod = waiting(15)
    plan = planned(pod, movable)
    first, second = plan.moves

    held = {second.pod.name: (0, 4)}
    after = {A: on_node(A, (15,), held).closed(plan.kept_free), B: on_node(B, (8,), {"again": (0, 4)})}
    later = Movable(nodes=after, evictable=[evictable(second.pod.name, 4)])
    rest = move_search.remainder(pod, later, plan, [second.pod.uid])
    assert rest is not None
    assert [move.pod.name for move in rest.moves] == [second.pod.name]

    taken = Movable(nodes={**after, B: on_node(B, (8,), {"again": (0, 6)})}, evictable=later.evictable)
    assert move_search.remainder(pod, taken, plan, [second.pod.uid]) is None
    beside = {**after, A: on_node(A, (15,), {**held, "rival": (0, 1)}).closed(plan.kept_free)}
    assert move_search.remainder(pod, replace(later, nodes=beside), plan, [second.pod.uid]) is None, "one has come"
    assert move_search.remainder(pod, later, plan, [first.pod.uid, second.pod.uid]) is None, "it is gone"
    assert move_search.remainder(pod, Movable(nodes={B: after[B]}), plan, []) is None, "the node is gone"


def test_the_rest_of_a_plan_is_judged_while_the_gpus_that_are_held_take_no_pods() -> None:
    """The pod fits on either GPU without `two`, which comes back to GPU 1 if that is open, and nowhere else."""
    grants = make_grant(0, gib=4, container="c0"), make_grant(1, gib=13, container="c1")
    two = PodToPlace(ref=make_ref("two"), shape=make_shape(4, 13))
    ledger = NodeLedger.of(make_inventory(15, 20, node=A), [Allocation(pod=two.ref, node=A, grants=grants)])

    def rest(held: str) -> Plan | None:
        begun = Plan(node=A, kept_free=frozenset({GpuUuid(held)}), moves=(), grants=())
        closed = of_ledger(ledger).closed(begun.kept_free)
        evictables = [Evictable(bound=Bound(ref=two.ref, node=A), pod=two)]
        return move_search.remainder(
            waiting(15), Movable(nodes={A: closed}, evictable=evictables), begun, [two.ref.uid]
        )

    assert rest("GPU-1") is None
    found = rest("GPU-0")
    assert found is not None
    assert [move.target for move in found.moves] == [A]


def test_of_very_many_pods_as_few_move_as_it_takes() -> None:
    """Too many to try every two of them."""
    names = [f"p{i}" for i in range(41)]
    movable = Movable(
        nodes={A: on_node(A, (41,), dict.fromkeys(names, (0, 1))), B: on_node(B, (4,), {})},
        evictable=[evictable(name, 1) for name in names],
        admits=lambda pod, node: (pod.ref.name, node) != ("waits", B),
    )
    plan = planned(waiting(3), movable)
    assert len(plan.moves) == 3
    assert not plan.waiting


def test_the_successors_of_all_pods_of_a_gpu_find_places_one_after_another() -> None:
    nodes = {A: on_node(A, (15, 15), {"one": (0, 4), "two": (0, 9), "three": (1, 9)}), B: on_node(B, (8,), {})}
    found = [evictable("one", 4), evictable("two", 9)]
    leaving = [make_ref(name).uid for name in ("two", "one", "unknown")]

    places = move_search.successors(Movable(nodes=nodes, evictable=found), A, {GpuUuid("GPU-0")}, leaving)

    assert places[make_ref("two").uid] is None
    assert places[make_ref("one").uid] in {A, B}
    assert len(places) == 2
    assert move_search.successors(Movable(nodes={}, evictable=found), A, (), leaving) == {}


def test_the_small_pod_moves_first_if_the_large_one_would_take_its_only_place() -> None:
    nodes = {
        A: on_node(A, (15,), {"large": (0, 5), "small": (0, 4)}),
        B: on_node(B, (6,), {}),
        NodeName("node-c"): on_node(NodeName("node-c"), (14,), {}),
    }
    movable = Movable(
        nodes=nodes,
        evictable=[evictable("large", 5), evictable("small", 4)],
        admits=lambda pod, node: (pod.ref.name, node) != ("small", "node-c"),
    )
    plan = planned(waiting(15), movable)
    assert [(move.pod.name, move.target) for move in plan.moves] == [("small", B), ("large", "node-c")]


def test_no_one_moves_from_a_host_whose_cpu_would_not_be_enough_all_the_same() -> None:
    nodes = {A: on_node(A, (15,), {"one": (0, 4)}, host=FreeHost(500, 1024)), B: on_node(B, (8,), {})}
    movable = Movable(nodes=nodes, evictable=[evictable("one", 4, takes=FreeHost(1000, 512))])

    assert move_search.plan(waiting(15, takes=FreeHost(2000, 512)), movable) is None
    assert move_search.plan(waiting(15, takes=FreeHost(1500, 512)), movable) is not None
