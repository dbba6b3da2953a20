"""Which nodes a simulated scheduler chooses, what it learns, and how little it keeps."""

import pytest

from gpushare.model.capacity import Ask, FreeGpu, FreeHost, NodeCapacity
from gpushare.model.request import Policy
from gpushare.placement.policies import Policies
from gpushare.simulation import costs, scores, views
from gpushare.simulation.cluster import Nodes
from gpushare.simulation.costs import Costs
from gpushare.simulation.engine import Extender, Scheduler
from gpushare.simulation.kinds import Kind
from gpushare.simulation.learner import Learner
from gpushare.simulation.plain_gpus import PlainGpus
from gpushare.simulation.scores import Host, Load, Rules

HALF = Ask(gpus=1, memory_mib=500)
HAS = Host(8000, 8192)


def room(*free_mib: int, host: FreeHost | None = None) -> NodeCapacity:
    return NodeCapacity("T4", tuple(sorted(FreeGpu(1000, free) for free in free_mib)), host)


def scheduler(*rooms: NodeCapacity, used: tuple[Load, ...] = (), weight: int = 26) -> Scheduler:
    gpus = PlainGpus(rooms, Policy.BINPACK, Learner(rooms))
    nodes = Nodes([HAS] * len(rooms), used)
    return Scheduler(nodes, gpus, rules=Rules(), extender=Extender(weight=weight), pick=lambda _: 0)


@pytest.mark.parametrize(("weight", "chosen"), [(26, 0), (1, 1)])
def test_a_small_weight_leaves_the_choice_to_free_cpu(weight: int, chosen: int) -> None:
    used = (Load(8000, 8192, 8000, 8192), Load(pods=0))
    assert scheduler(room(500), room(1000), used=used, weight=weight).choose(Kind.plain(HALF)) == chosen
    assert scheduler(weight=weight).choose(Kind.plain(HALF)) is None


def test_a_host_that_does_not_tell_what_it_has_takes_pods_and_gives_back() -> None:
    gpus = PlainGpus([room(1000, 1000)], Policy.BINPACK, Learner([]))
    taken = gpus.take(Kind.plain(HALF), 0, 1)

    assert gpus.rooms == [room(1000, 500)]
    assert gpus.ranking.gpu(FreeGpu(1000, 500), HALF.need(FreeGpu(1000, 500))) == 500
    gpus.give(0, taken)
    assert gpus.rooms == [room(1000, 1000)]


def test_cpu_and_memory_of_the_host_count_in_costs() -> None:
    found = Costs(Policy.DENSE, Policies(Policy.DENSE))
    asks = [Ask(gpus=1, memory_mib=500, cpu_milli=cpu, host_mib=mib) for cpu, mib in ((2000, 9), (9, 2000), (9, 9))]

    assert [found.of(ask, [room(1000, host=FreeHost(1000, 1000))]) == [None] for ask in asks] == [True, True, False]


def test_what_is_remembered_of_gpus_is_forgotten_when_it_is_much(monkeypatch: pytest.MonkeyPatch) -> None:
    rooms = [room(free) for free in range(500, 1000, 50)]
    policies = Policies(Policy.BINPACK)
    expected = [Costs(Policy.BINPACK, policies).choice(HALF, each) for each in rooms]
    monkeypatch.setattr(costs, "_MOST", 3)
    found = Costs(Policy.BINPACK, policies)

    assert [found.choice(HALF, each) for each in rooms] == expected
    assert found.remembered <= 3


def test_what_is_remembered_of_rooms_is_forgotten_when_it_is_much(monkeypatch: pytest.MonkeyPatch) -> None:
    rooms = [room(free, host=FreeHost(9000, 9000)) for free in range(500, 1000, 50)]
    learner = Learner(rooms, [HALF])
    learner.look(rooms)
    found = Costs(Policy.DENSE, Policies(Policy.DENSE, learner.outlook, learner.tally))
    expected = [found.ranking.then(each, each.after(HALF, found.choice(HALF, each))) for each in rooms]
    monkeypatch.setattr(costs, "_MOST", 3)
    kept = []
    for each, then in zip(rooms, expected, strict=True):
        assert found.fine(HALF, [each]) == [then]
        kept.append(len(found._worths))

    assert len(set(expected)) > 1
    assert max(kept) <= 4
    assert min(kept[1:]) == 1


def test_what_is_remembered_of_kinds_of_pods_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(views, "_MOST_KEPT", 40)
    cluster = scheduler(room(1000), room(1000))
    for mib in range(1, 31):
        cluster.choose(Kind.plain(Ask(gpus=1, memory_mib=mib)))

    assert len(cluster._views) == 20


def test_who_knows_the_pods_to_come_learns_nothing_of_those_that_come() -> None:
    rooms, third = [room(1000)], Ask(gpus=1, memory_mib=333)
    knows, learns = Learner(rooms, [HALF], learns=False), Learner(rooms, [HALF])
    for one in (knows, learns):
        one.came(third)
        one.left(HALF)
        one.look(rooms)

    assert [[ask.memory_mib for ask in one.outlook.kinds] for one in (knows, learns)] == [[500], [333]]


def test_a_pod_that_was_never_seen_may_leave() -> None:
    learner = Learner([room(1000)])
    learner.left(HALF)
    learner.look([room(1000)])

    assert learner.outlook.kinds == ()


def test_a_host_without_cpu_is_balanced() -> None:
    points = scores.resources(Rules(minor=33))(Load(), Load(pods=0), Host(0, 1000))
    assert points == 50 + scores.MOST


def test_replicas_in_zones_that_do_not_come_into_question_do_not_count() -> None:
    rules, zones = Rules(), ["a", "b", "c"]
    alone = scores.spread(rules, {0: 1}, zones, [0, 1])

    assert scores.spread(rules, {0: 1, 2: 5}, zones, [0, 1]) == alone
    assert alone[0] < alone[1]
