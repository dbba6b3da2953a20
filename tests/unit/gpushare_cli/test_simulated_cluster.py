"""What a simulated scheduler thinks of nodes, which it chooses, what it learns, and how little it keeps."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from gpushare.identity import ContainerName, NodeName, PodRef, PodUid
from gpushare.model.capacity import Ask, FreeGpu, FreeHost, NodeCapacity
from gpushare.model.request import Policy, RequestShape
from gpushare.placement.columns import Ints, Nodes
from gpushare_cli import kube_scores as scores
from gpushare_cli.kube_scores import Fit, Floats, Load, Rules
from gpushare_cli.simulate import cluster, plan
from gpushare_cli.simulate.cluster import Cluster, Learner
from gpushare_cli.simulate.plan import Event
from gpushare_cli.simulate.scheduler import Scheduler, SchedulerConfig
from gpushare_cli.simulate.signature import NodeTerms, PodSignature
from gpushare_cli.simulate.workloads import Pod
from testing.simulated_cluster import nodes_of, request_of, signature_of

HAS = (10_000, 20_000, 110)
POD = Load(2_500, 4_000, 2_500, 4_000)
USED = Load(2_500, 1_000, 2_500, 1_000)
MOST = Fit.MOST_ALLOCATED
NOTHING = Load(0, 0, scores.DEFAULT_CPU_MILLI, scores.DEFAULT_MEMORY_MIB)
QUARTERS, SMALL = Load(500, 5_000, 500, 5_000), (1_000, 20_000)
FULL = Load(10_000, 20_000, 12_000, 24_000)


def column(values: Sequence[int]) -> Floats:
    return np.array([values], np.float64).T


def spread(rules: Rules, counts: Mapping[int, int], zones: Ints, fitting: Sequence[int]) -> list[int]:
    found: list[int] = scores.spread(rules, counts, zones, np.array(fitting)).tolist()
    return found


def fits(pod: Load, used: Load) -> bool:
    return bool(pod.fits(column(used), column(HAS))[0])


@pytest.mark.parametrize(
    ("rules", "pod", "used", "host", "expected"),
    [
        # 50 % of CPU and 75 % of memory are left. The fractions were 0.25 and 0.05, and are 0.5 and 0.25 now.
        (Rules(minor=36), POD, USED, HAS, 62 + 50 + (50 + 87 - 90) // 2),
        (Rules(minor=35), POD, USED, HAS, 62 + 87),
        (Rules(minor=23), POD, USED, HAS, 62 + 87),
        (Rules(minor=20), POD, USED, HAS, 62 + 75),
        (Rules(minor=36, fit=MOST), POD, USED, HAS, 37 + 50 + (50 + 87 - 90) // 2),
        (Rules(minor=20, fit=MOST), POD, USED, HAS, 37 + 75),
        # A pod without requests counts as a small one, and its balance as none.
        *((Rules(minor=minor), NOTHING, QUARTERS, SMALL, (40 + 74) // 2) for minor in (36, 34)),
        (Rules(minor=33), NOTHING, QUARTERS, SMALL, (40 + 74) // 2 + 87),
        (Rules(minor=22), NOTHING, QUARTERS, SMALL, (40 + 74) // 2 + 66),
        (Rules(minor=33), Load(), Load(pods=0), (0, 1000), 50 + scores.MOST),  # a host without CPU is even
        # Scores count more on a node than it has.
        (Rules(minor=36), Load(0, 1, 100, 200), FULL, HAS, 0 + 75),
        (Rules(minor=23), Load(0, 1, 100, 200), FULL, HAS, 0 + 100),
        (Rules(minor=20), Load(0, 1, 100, 200), FULL, HAS, 0),
    ],
)
def test_cpu_and_memory(rules: Rules, pod: Load, used: Load, host: Sequence[int], expected: int) -> None:
    assert scores.resources(rules)(pod, column(used), column(host)).tolist() == [expected]


def test_replicas_are_kept_apart_between_nodes_and_between_zones() -> None:
    rules, zones = Rules(), np.array([1, 1, 2])

    assert spread(rules, {}, zones, [0, 1, 2]) == [100, 100, 100]
    # ln 5 = 1.61 for each replica on a node, ln 4 = 1.39 in a zone; 2 and 4 for skews of 3 and 5.
    assert spread(rules, {0: 5}, zones, [0, 1, 2]) == [100 * (21 + 6 - found) // 21 for found in (21, 13, 6)]
    # Without a zone: 2, 2 and 2 + 1.61 rounded.
    assert spread(Rules(), {1: 1}, np.zeros(3, np.int64), [0, 1, 2]) == [100, 50, 100]
    assert spread(Rules(minor=23), {1: 1}, np.zeros(3, np.int64), [0, 1, 2]) == [100, 66, 100]
    # Zones that do not come into question do not count.
    zones = np.array([1, 2, 3])
    alone = spread(Rules(), {0: 1}, zones, [0, 1])
    assert spread(Rules(), {0: 1, 2: 5}, zones, [0, 1]) == alone
    assert alone[0] < alone[1]


def test_counts_become_points_in_proportion() -> None:
    assert scores.normalized({1: 1, 2: 3}, [0, 1, 2]) == [0, 33, 100]
    assert scores.normalized({2: 1}, [0, 1]) == [0, 0]


def test_a_pod_fits_by_what_it_requests_not_by_what_scores_count() -> None:
    assert fits(Load(0, 0, 100, 200), Load(10_000, 20_000, 10_000, 20_000, 5))
    assert not fits(Load(1, 0), Load(10_000, 0, pods=5))
    assert not fits(Load(0, 1), Load(0, 20_000, pods=5))
    assert not fits(Load(), Load(pods=110))


HALF = signature_of(Ask(gpus=1, memory_mib=500))
WHOLE = signature_of(Ask(gpus=1, whole=True, cpu_milli=1000))
HOST = FreeHost(8000, 8192)


def room(gpus: int, host: FreeHost | None = HOST, mib: int = 1000) -> NodeCapacity:
    return NodeCapacity("T4", (FreeGpu(mib, mib),) * gpus, host)


def scheduler(*rooms: NodeCapacity, policy: Policy = Policy.BINPACK, others_weight: int = 0) -> Scheduler:
    nodes = nodes_of(rooms)
    config = SchedulerConfig(policy=policy, rules=Rules(), weight=26, others_weight=others_weight)
    return Scheduler(
        nodes, Cluster(nodes, policy, Learner(), rank_others=others_weight > 0), config, lambda number: number - 1
    )


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


def test_what_pods_have_left_is_there_again() -> None:
    found = scheduler(room(2), room(2), policy=Policy.DENSE)
    events = list(plan.events(found, [came(HALF, n, at_s=n, duration_s=3) for n in range(40)]))

    assert [event.came and event.bound is not None for event in events] == [True] * 40
    assert found.used[4].sum() == 3
    assert found.cluster.free_mib == 4000 - 3 * 500
    without_gpus = [came(signature_of(Ask(cpu_milli=8000)), n, at_s=n, duration_s=1) for n in range(2)]
    assert told(plan.events(scheduler(room(1)), without_gpus)) == [("came", 0, 0), ("came", 1, 0)]


def test_pods_without_gpus_are_ranked_on_nodes_with_very_many_gpus_too() -> None:
    """By what GPU pods need, whatever these are ranked by: the emptier host can just serve its GPUs."""
    rooms = [room(65, FreeHost(17_000, 8192)), room(65, FreeHost(200_000, 8192)), room(8)]
    found = scheduler(*rooms, others_weight=26)
    found.place(WHOLE, request_of(WHOLE, 1), only=NodeName("node-00001"))
    for node, cpu in ("node-00001", 100_000), ("node-00002", 8_000):
        assert found.place(signature_of(Ask(cpu_milli=cpu)), None, only=NodeName(node))
    assert found.choose(signature_of(Ask(cpu_milli=2000))) == 1


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


def test_pods_that_are_there_are_learned_from() -> None:
    nodes, third = Nodes.of([room(1, host=None)]), Ask(gpus=1, memory_mib=333)
    learns, never = Learner([HALF.ask]), Learner()
    learns.came(third)
    for one in (learns, never):  # the latter has never seen who leaves
        one.left(HALF.ask)
        one.look(nodes, nodes)
    assert [[ask.memory_mib for ask in one.outlook.kinds] for one in (learns, never)] == [[333], []]
