"""Pods that come, wait and end in a simulation."""

from gpushare.model.capacity import Ask, FreeGpu, FreeHost, NodeCapacity
from gpushare.model.request import Policy
from gpushare.simulation import timeline
from gpushare.simulation.cluster import Nodes
from gpushare.simulation.engine import Extender, Scheduler
from gpushare.simulation.kinds import Kind, Terms
from gpushare.simulation.learner import Learner
from gpushare.simulation.plain_gpus import PlainGpus
from gpushare.simulation.scores import Host, Rules
from gpushare.simulation.timeline import Arrival, Came, Ended, Waited

WHOLE = Kind.plain(Ask(gpus=1, whole=True, cpu_milli=1000))
HALF = Kind.plain(Ask(gpus=1, memory_mib=500))


def scheduler(*gpus: int, policy: Policy = Policy.BINPACK) -> Scheduler:
    rooms = [NodeCapacity("T4", (FreeGpu(1000, 1000),) * count, FreeHost(8000, 8192)) for count in gpus]
    hosts = [Host(8000, 8192) for _ in rooms]
    fleet = PlainGpus(rooms, policy, Learner(rooms))
    return Scheduler(Nodes(hosts), fleet, rules=Rules(), extender=Extender(), pick=lambda number: number - 1)


def told(events: object) -> list[tuple[str, int, int | None]]:
    """What happened to which pod, and on which node."""
    found: list[tuple[str, int, int | None]] = []
    for event in events:  # type: ignore[attr-defined] # events of a timeline
        node = None if isinstance(event, Ended) or event.bound is None else event.bound.node
        found.append((type(event).__name__, event.arrival.number, node))
    return found


def test_a_pod_that_waits_gets_the_place_of_one_that_ends() -> None:
    arrivals = [
        Arrival(kind=WHOLE, number=1, at_s=0, lasts_s=10),
        Arrival(kind=WHOLE, number=2, at_s=1, lasts_s=10),
        Arrival(kind=HALF, number=3, at_s=2),
        Arrival(kind=WHOLE, number=4, at_s=15),
        Arrival(kind=WHOLE, number=5, at_s=25),
    ]

    assert told(timeline.run(scheduler(1), arrivals)) == [
        ("Came", 1, 0),
        ("Came", 2, None),
        ("Came", 3, None),
        ("Ended", 1, None),
        ("Waited", 2, 0),
        ("Came", 4, None),
        ("Ended", 2, None),
        ("Waited", 3, 0),
        ("Came", 5, None),
    ]


def test_a_pod_for_one_node_goes_nowhere_else() -> None:
    arrivals = [Arrival(kind=WHOLE, number=number, only=1) for number in (1, 2)]
    assert told(timeline.run(scheduler(1, 1), arrivals)) == [("Came", 1, 1), ("Came", 2, None)]


def test_a_node_that_is_not_allowed_takes_no_pod() -> None:
    picky = Kind(ask=WHOLE.ask, load=WHOLE.load, terms=Terms(allowed=frozenset({1})))
    assert told(timeline.run(scheduler(1, 1, 1), [Arrival(kind=picky, number=n) for n in (1, 2)])) == [
        ("Came", 1, 1),
        ("Came", 2, None),
    ]
    assert told(timeline.run(scheduler(2, 1), [Arrival(kind=picky, number=1, only=0)])) == [("Came", 1, None)]


def test_what_pods_have_left_is_there_again() -> None:
    cluster = scheduler(2, 2, policy=Policy.DENSE)
    events = list(timeline.run(cluster, [Arrival(kind=HALF, number=n, at_s=n, lasts_s=3) for n in range(40)]))

    assert sum(isinstance(event, Came) and event.bound is not None for event in events) == 40
    assert not any(isinstance(event, Waited) for event in events)
    assert sum(used.pods for used in cluster.used) == 3
