"""The simulated scheduler keeps what it knows of nodes; a plain one that looks at everything again chooses the same."""

import math
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from gpushare.identity import NodeName
from gpushare.model.capacity import Ask, FreeGpu, FreeHost, NodeCapacity
from gpushare.model.request import Policy
from gpushare.model.selector import Choice, accepts
from gpushare.placement import grade, ranking
from gpushare.simulation import scores
from gpushare.simulation.cluster import Nodes
from gpushare.simulation.engine import Bound, Extender, Scheduler
from gpushare.simulation.kinds import Kind, Terms
from gpushare.simulation.learner import Learner
from gpushare.simulation.plain_gpus import PlainGpus
from gpushare.simulation.scores import Fit, Host, Load, Rules

MODELS = ("T4", "A10")
asks = st.builds(
    Ask,
    gpus=st.integers(0, 2),
    memory_mib=st.sampled_from([100, 250, 500, 810]),
    compute_percent=st.sampled_from([0, 0, 50]),
    whole=st.booleans(),
    cpu_milli=st.integers(0, 6).map(lambda cores: cores * 1000),
    host_mib=st.integers(0, 4).map(lambda gib: gib * 1024),
    models=st.sampled_from([Choice(), Choice(), Choice(wanted=("T4",)), Choice(unwanted=("T4",))]),
)
rooms = st.builds(
    lambda model, gpus, cores, gib: NodeCapacity(
        model, (FreeGpu(1000, 1000),) * gpus, FreeHost(cores * 1000, gib * 1024)
    ),
    st.sampled_from(MODELS),
    st.integers(0, 4),
    st.integers(4, 16),
    st.integers(4, 16),
)
nodes = st.lists(rooms, min_size=1, max_size=2).flatmap(  # equal nodes among them
    lambda shapes: st.lists(st.sampled_from(shapes), min_size=1, max_size=6)
)


@st.composite
def kinds(draw: st.DrawFn, number: int) -> Kind:
    """Kinds of pods for so many nodes."""
    places = st.integers(0, number - 1)
    plain = Kind.plain(draw(asks))
    terms = Terms(
        allowed=draw(st.none() | st.frozensets(places, min_size=1)),
        repelled=draw(st.dictionaries(places, st.integers(1, 3), max_size=3)),
        attracted=draw(st.dictionaries(places, st.integers(1, 100), max_size=3)),
    )
    return Kind(ask=plain.ask, load=plain.load, terms=terms, replicas_of=draw(st.sampled_from([None, "a", "b"])))


class Plain:
    """Remembers nothing but where pods are."""

    def __init__(self, hosts: Sequence[Host], rules: Rules, extender: Extender) -> None:
        self.hosts, self.rules, self.extender = hosts, rules, extender
        self.bound: list[Bound] = []

    def best(self, kind: Kind, gpus: PlainGpus, policy: ranking.Ranking) -> set[int]:
        """All nodes that may be chosen."""
        costs: dict[int, int] = {}
        for node, room in enumerate(gpus.rooms):
            found = ranking.best(kind.ask, room, policy)
            accepted = not kind.ask.gpus or accepts(kind.ask.models, room.model)
            allowed = kind.terms.allowed is None or node in kind.terms.allowed
            if found is not None and accepted and allowed and kind.load.fits(self._used(node), self.hosts[node]):
                costs[node] = found.cost
        if not costs:
            return set()
        total = dict(zip(costs, self._points(kind, list(costs)), strict=True))
        weight = self.extender.weight if kind.ask.gpus else self.extender.others_weight
        if weight:
            given = grade.grades([NodeName(f"{node:03}") for node in costs], list(costs.values()))
            total = {node: total[node] + 10 * weight * more for node, more in zip(costs, given, strict=True)}
        return {node for node, points in total.items() if points == max(total.values())}

    def _points(self, kind: Kind, fitting: list[int]) -> list[int]:
        host = scores.resources(self.rules)
        total = [host(kind.load, self._used(node), self.hosts[node]) for node in fitting]
        high = max(kind.terms.repelled.get(node, 0) for node in fitting)
        for place, node in enumerate(fitting):
            if high:
                total[place] -= 3 * (100 * kind.terms.repelled.get(node, 0) // high)
        most = max(kind.terms.attracted.get(node, 0) for node in fitting)
        for place, node in enumerate(fitting):
            if most:
                total[place] += 2 * (100 * kind.terms.attracted.get(node, 0) // most)
        if kind.replicas_of is not None:
            counts = [
                sum(b.node == node and b.kind.replicas_of == kind.replicas_of for b in self.bound) for node in fitting
            ]
            raw = [math.floor(count * math.log(len(fitting) + 2) + 2.5) for count in counts]
            for place, one in enumerate(raw):
                total[place] += 2 * (100 * (max(raw) + min(raw) - one) // max(raw))
        return total

    def _used(self, node: int) -> Load:
        used = Load(pods=0)
        for bound in self.bound:
            if bound.node == node:
                used = used.plus(bound.kind.load)
        return used


@given(
    nodes,
    st.data(),
    st.sampled_from(Policy),
    st.sampled_from(Fit),
    st.builds(Extender, weight=st.sampled_from([0, 1, 4, 26]), others_weight=st.sampled_from([0, 1, 26])),
)
def test_it_chooses_what_a_plain_one_chooses(
    cluster: list[NodeCapacity], data: st.DataObject, policy: Policy, fit: Fit, extender: Extender
) -> None:
    hosts = [Host(room.host.cpu_milli, room.host.memory_mib, 8) for room in cluster if room.host is not None]
    rules = Rules(fit=fit)
    gpus = PlainGpus(cluster, policy, Learner(cluster))
    picked: list[int] = []

    def pick(number: int) -> int:
        picked.append(number)
        return 0

    scheduler = Scheduler(Nodes(hosts), gpus, rules=rules, extender=extender, pick=pick)
    plain = Plain(hosts, rules, extender)
    known = data.draw(st.lists(kinds(len(cluster)), min_size=1, max_size=3))

    for _ in range(data.draw(st.integers(4, 24))):
        if plain.bound and data.draw(st.integers(0, 3)) == 0:
            scheduler.leave(plain.bound.pop(data.draw(st.integers(0, len(plain.bound) - 1))))
            continue
        kind = data.draw(st.sampled_from(known))
        gpus.came(kind)  # as `place` does first
        expected = plain.best(kind, gpus, gpus.ranking)
        node = scheduler.choose(kind)

        assert (node is None) == (not expected)
        assert picked == ([len(expected)] if len(expected) > 1 else [])
        picked.clear()
        if node is not None:
            assert node in expected
            plain.bound.append(scheduler.bind(kind, node))
    for bound in plain.bound:
        scheduler.leave(bound)
    assert gpus.rooms == cluster
    assert set(scheduler.used) == {Load(pods=0)}
