"""The simulated scheduler keeps what it knows of nodes; a plain one that looks at everything again chooses the same."""

import math

import numpy as np
from hypothesis import given, strategies as st

from gpushare.model.capacity import Ask, FreeGpu, FreeHost, NodeCapacity
from gpushare.model.request import Choice, Policy, accepts
from gpushare.placement.costs import Cost
from gpushare_cli import kube_scores
from gpushare_cli.kube_scores import Fit, Floats, Load, Rules
from gpushare_cli.simulate.cluster import Cluster, Learner
from gpushare_cli.simulate.scheduler import Bound, Scheduler, SchedulerConfig
from gpushare_cli.simulate.signature import NodeTerms, PodSignature
from testing.placing import best
from testing.plain_policies import grades
from testing.simulated_cluster import nodes_of, request_of, signature_of

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
clusters = st.lists(rooms, min_size=1, max_size=2).flatmap(  # equal nodes among them
    lambda shapes: st.lists(st.sampled_from(shapes), min_size=1, max_size=6)
)


@st.composite
def signatures(draw: st.DrawFn, number: int) -> PodSignature:
    """Of pods for so many nodes."""
    places = st.integers(0, number - 1)
    terms = NodeTerms(
        allowed=draw(st.none() | st.frozensets(places, min_size=1)),
        repelled=draw(st.dictionaries(places, st.integers(1, 3), max_size=3)),
        attracted=draw(st.dictionaries(places, st.integers(1, 100), max_size=3)),
    )
    owners = [None, ("ml", "ReplicaSet", "a"), ("ml", "ReplicaSet", "b")]
    return signature_of(draw(asks), terms=terms, replicas_of=draw(st.sampled_from(owners)))


class Plain:
    """Remembers nothing but where pods are."""

    def __init__(self, hosts: Floats, config: SchedulerConfig) -> None:
        self.hosts, self.config = hosts, config
        self.bound: list[Bound] = []

    def best(self, pod: PodSignature, cluster: Cluster) -> set[int]:
        """All nodes that may be chosen."""
        costs: dict[int, Cost] = {}
        takes = pod.load.fits(self._used(), self.hosts)
        for node, room in enumerate(cluster.rooms):
            found = best(pod.ask, room, cluster.policies.of(None if pod.ask.gpus else Policy.DENSE))
            accepted = not pod.ask.gpus or accepts(pod.ask.models, room.model)
            allowed = pod.terms.allowed is None or node in pod.terms.allowed
            if found is not None and accepted and allowed and takes[node]:
                costs[node] = found.cost
        if not costs:
            return set()
        total = dict(zip(costs, self._points(pod, list(costs)), strict=True))
        weight = self.config.weight if pod.ask.gpus else self.config.others_weight
        if weight:
            names = [cluster.names[node] for node in costs]
            bare = [] if pod.ask.gpus else [cluster.names[node] for node in costs if not cluster.rooms[node].gpus]
            given = grades(names, list(costs.values()), bare)
            total = {node: total[node] + 10 * weight * more for node, more in zip(costs, given, strict=True)}
        return {node for node, points in total.items() if points == max(total.values())}

    def _points(self, pod: PodSignature, fitting: list[int]) -> list[float]:
        host = kube_scores.resources(self.config.rules)
        total: list[float] = host(pod.load, self._used(), self.hosts)[fitting].tolist()
        for weight, terms in ((-3, pod.terms.repelled), (2, pod.terms.attracted)):
            most = max(terms.get(node, 0) for node in fitting) or 1
            for place, node in enumerate(fitting):
                total[place] += weight * (100 * terms.get(node, 0) // most)
        if pod.replicas_of is not None:
            counts = [
                sum(b.node == node and b.pod.replicas_of == pod.replicas_of for b in self.bound) for node in fitting
            ]
            raw = [math.floor(count * math.log(len(fitting) + 2) + 2.5) for count in counts]
            for place, one in enumerate(raw):
                total[place] += 2 * (100 * (max(raw) + min(raw) - one) // max(raw))
        return total

    def _used(self) -> Floats:
        used = np.zeros((len(Load._fields), self.hosts.shape[1]))
        for bound in self.bound:
            used[:, bound.node] += bound.pod.load
        return used


@given(
    clusters,
    st.data(),
    st.sampled_from(Policy),
    st.sampled_from(Fit),
    st.sampled_from([0, 1, 4, 26]),
    st.sampled_from([0, 1, 26]),
)
def test_it_chooses_what_a_plain_one_chooses(
    rooms: list[NodeCapacity], data: st.DataObject, policy: Policy, fit: Fit, weight: int, others_weight: int
) -> None:
    config = SchedulerConfig(policy=policy, rules=Rules(fit=fit), weight=weight, others_weight=others_weight)
    nodes = nodes_of(rooms, max_pods=8)
    cluster = Cluster(nodes, policy, Learner(), rank_others=others_weight > 0)
    picked: list[int] = []

    def draw(number: int) -> int:
        picked.append(number)
        return 0

    scheduler = Scheduler(nodes, cluster, config, draw)
    plain = Plain(nodes.hosts, config)
    known = data.draw(st.lists(signatures(len(rooms)), min_size=1, max_size=3))

    for number in range(data.draw(st.integers(4, 24))):
        if plain.bound and data.draw(st.integers(0, 3)) == 0:
            scheduler.leave(plain.bound.pop(data.draw(st.integers(0, len(plain.bound) - 1))))
            continue
        pod = data.draw(st.sampled_from(known))
        cluster.came(pod)  # as `place` does first
        expected = plain.best(pod, cluster)
        node = scheduler.choose(pod)

        assert (node is None) == (not expected)
        assert picked == ([len(expected)] if len(expected) > 1 else [])
        picked.clear()
        if node is not None:
            assert node in expected
            plain.bound.append(scheduler.bind(pod, node, request_of(pod, number)))
    for bound in plain.bound:
        scheduler.leave(bound)
    assert cluster.rooms == Cluster(nodes, policy, Learner()).rooms
    assert not scheduler.used.any()
