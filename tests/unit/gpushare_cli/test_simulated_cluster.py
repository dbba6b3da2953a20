"""Pods that come, wait and end: which nodes a simulated scheduler chooses, what it learns, and how little it keeps."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from gpushare.identity import ContainerName, NodeName, PodRef, PodUid
from gpushare.model.capacity import Ask, FreeGpu, FreeHost, NodeCapacity
from gpushare.model.request import Policy, RequestShape
from gpushare.placement.columns import Nodes
from gpushare_cli.kube_scores import Rules
from gpushare_cli.simulate import cluster, plan
from gpushare_cli.simulate.cluster import Cluster, Learner
from gpushare_cli.simulate.plan import Event
from gpushare_cli.simulate.scheduler import Scheduler, SchedulerConfig
from gpushare_cli.simulate.signature import NodeTerms, PodSignature
from gpushare_cli.simulate.workloads import Pod
from testing.simulated_cluster import nodes_of, request_of, signature_of

HALF = signature_of(Ask(gpus=1, memory_mib=500))
WHOLE = signature_of(Ask(gpus=1, whole=True, cpu_milli=1000))
HOST = FreeHost(8000, 8192)


def room(gpus: int, host: FreeHost | None = HOST, mib: int = 1000) -> NodeCapacity:
    return NodeCapacity("T4", (FreeGpu(mib, mib),) * gpus, host)


def scheduler(*rooms: NodeCapacity, policy: Policy = Policy.BINPACK, others_weight: int = 0) -> Scheduler:
    nodes = nodes_of(rooms)
    config = SchedulerConfig(policy=policy, rules=Rules(), weight=26, others_weight=others_weight)
    return Scheduler(nodes, Cluster(nodes, policy, Learner()), config, lambda number: number - 1)


def came(signature: PodSignature, number: int, **more: Any) -> tuple[int, Pod, PodSignature]:
    ref = PodRef(namespace="default", name=f"pod-{number}", uid=PodUid(f"uid-{number}"))
    return number, Pod(ref=ref, value={}, request=request_of(signature, number), **more), signature


def told(events: Iterable[Event]) -> list[tuple[str, int, int | None]]:
    """What happened to which pod, and on which node."""
    found = [("came" if each.came else "waited", each.number, each.bound) for each in events]
    return [(what, number, bound.node if bound else None) for what, number, bound in found]


def test_a_pod_that_waits_gets_the_place_of_one_that_ends() -> None:
    arrivals = [
        came(WHOLE, 1, at_s=0, duration_s=10),
        came(WHOLE, 2, at_s=1, duration_s=10),
        came(HALF, 3, at_s=2),
        came(WHOLE, 4, at_s=15),
        came(WHOLE, 5, at_s=25),
    ]

    assert told(plan.events(scheduler(room(1)), arrivals)) == [
        ("came", 1, 0),
        ("came", 2, None),
        ("came", 3, None),
        ("waited", 2, 0),
        ("came", 4, None),
        ("waited", 3, 0),
        ("came", 5, None),
    ]


def test_a_node_that_is_not_allowed_or_not_the_only_one_takes_no_pod() -> None:
    arrivals = [came(WHOLE, number, only=NodeName("node-00001")) for number in (1, 2)]
    assert told(plan.events(scheduler(room(1), room(1)), arrivals)) == [("came", 1, 1), ("came", 2, None)]
    picky = replace(WHOLE, terms=NodeTerms(allowed=frozenset({1})))
    three = [room(1)] * 3
    assert told(plan.events(scheduler(*three), [came(picky, 1), came(picky, 2)])) == [("came", 1, 1), ("came", 2, None)]
    elsewhere = came(picky, 1, only=NodeName("node-00000"))
    assert told(plan.events(scheduler(room(2), room(1)), [elsewhere])) == [("came", 1, None)]


def test_pods_without_gpus_are_ranked_on_nodes_with_very_many_gpus_too() -> None:
    found = scheduler(room(65), room(65), others_weight=26)
    found.place(HALF, request_of(HALF, 1), only=NodeName("node-00001"))
    assert found.choose(signature_of(Ask(cpu_milli=1))) == 1


def test_what_several_containers_cost_is_said_at_once_and_none_gets_more_than_there_is() -> None:
    found = scheduler(room(1), room(1)).cluster
    assert HALF.shape is not None
    containers = tuple(replace(HALF.shape.containers[0], container=ContainerName(name)) for name in "ab")
    two = replace(HALF, shape=RequestShape(containers=containers))
    every = np.ones(2, np.bool_)
    assert found.column(two, every).best(np.arange(2)) == 0
    found.take(two, 0, request_of(two, 1))
    with pytest.raises(ValueError, match="node-00000 has no room"):
        found.take(two, 0, request_of(two, 2))


def test_a_node_that_does_not_tell_its_cpu_takes_pods_and_gives_back() -> None:
    found = scheduler(room(2, host=None))
    before = list(found.cluster.rooms)
    bound = found.place(WHOLE, request_of(WHOLE, 1))
    assert bound is not None
    assert found.cluster.rooms != before
    found.leave(bound)
    assert found.cluster.rooms == before


def test_what_is_remembered_of_pods_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "_MOST_KEPT", 40)
    found = scheduler(room(1), room(1))
    for mib in range(1, 31):
        found.choose(signature_of(Ask(gpus=1, memory_mib=mib)))

    assert len(found.cluster._columns) == 20


def test_who_knows_the_pods_to_come_learns_nothing_of_those_that_come() -> None:
    nodes, third = Nodes.of([room(1, host=None)]), Ask(gpus=1, memory_mib=333)
    knows, learns = Learner([HALF.ask], learns=False), Learner([HALF.ask])
    for one in (knows, learns):
        one.came(third)
        one.left(HALF.ask)
        one.look(nodes, nodes)

    assert [[ask.memory_mib for ask in one.outlook.kinds] for one in (knows, learns)] == [[500], [333]]
    never = Learner()  # has seen who leaves
    never.left(HALF.ask)
    never.look(nodes, nodes)
    assert never.outlook.kinds == ()
