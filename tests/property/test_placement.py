"""Placement against a brute-force search, and over random sequences: no GPU is granted beyond what it may be."""

import itertools
import random
from dataclasses import replace

from hypothesis import given, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gpushare.identity import ContainerName, NodeName
from gpushare.model.capacity import Ask
from gpushare.model.gpu import Gpu, GpuHealth, HandOver, Limit
from gpushare.model.ledger import Allocation, Grant, NodeLedger, Placed, RefusalReason, Refused, footprint
from gpushare.model.request import ContainerKind, ContainerRequest, Policy, RequestShape
from gpushare.placement.place import place
from gpushare.units import GIB
from gpushare.wire import allocations, pods
from testing.builders import Json, make_allocation, make_inventory, make_pod, make_ref
from tests.property.strategies import ledgers, shapes
from tests.property.test_policies import of_ledger, policies, samples


def fits(grants: tuple[Grant, ...], ledger: NodeLedger) -> bool:
    """By adding up what each GPU would hold, with nothing from the code under test but the formula for containers."""
    for uuid, needed in footprint(grants, ledger.inventory).items():
        gpu = ledger.inventory.by_uuid[uuid]
        others = [footprint(held.grants, ledger.inventory).get(uuid) for held in ledger.allocations.values()]
        held = [other for other in others if other is not None]
        memory = sum(other.memory_mib for other in held) + needed.memory_mib
        capped = any(other.whole or other.physical for other in [needed, *held])
        grantable = gpu.memory_mib + (0 if capped else gpu.extra_mib)
        compute = sum(other.compute_percent for other in held)
        if needed.memory_mib > gpu.memory_mib or memory > grantable:
            return False
        if needed.compute_percent and compute + needed.compute_percent > 100:
            return False
        if (needed.whole and held) or any(other.whole for other in held):
            return False
    return True


def may_use(gpu: Gpu, shape: RequestShape, ledger: NodeLedger) -> bool:
    if gpu.health is not GpuHealth.HEALTHY or shape.gpus.why_not(gpu):
        return False
    if shape.gpus.enforced and gpu.limit is Limit.MIG:
        shares = [request.need(gpu).memory_mib for request in shape.containers if not request.whole]
        if shares and min(shares) < gpu.memory_mib:
            return False
    if shape.only_cdi and ledger.inventory.hand_over is not HandOver.CDI:
        return False
    wanted = shape.affinity
    beside_web = any(
        held.labels.get("app") == "web" and any(gpu.uuid in grant.gpus for grant in held.grants)
        for held in ledger.allocations.values()
    )
    if wanted is not None and wanted.same is not None and not wanted.first and not beside_web:
        return False
    return wanted is None or wanted.other is None or not beside_web


def may_be(gpus: tuple[Gpu, ...], request: ContainerRequest, shape: RequestShape) -> bool:
    """A process uses one MIG instance and nothing beside it, and an instance is no whole GPU unless the pod says so."""
    if not any(gpu.mig for gpu in gpus):
        return True
    return len(gpus) == 1 and not (request.whole and shape.gpus.mig is None)


def grant(request: ContainerRequest, gpus: tuple[Gpu, ...]) -> tuple[Grant, ...]:
    """One for each GPU, because parts of different GPUs are of different sizes."""
    return tuple(
        Grant(
            container=request.container,
            kind=request.kind,
            gpus=(gpu.uuid,),
            memory_mib=request.need(gpu).memory_mib,
            compute_percent=request.compute_percent,
            whole=request.whole,
        )
        for gpu in gpus
    )


def brute_force(shape: RequestShape, ledger: NodeLedger) -> bool:
    gpus = [gpu for gpu in ledger.inventory.gpus if may_use(gpu, shape, ledger)]
    choices = [
        [chosen for chosen in itertools.combinations(gpus, request.gpu_count) if may_be(chosen, request, shape)]
        for request in shape.containers
    ]
    return any(
        fits(tuple(itertools.chain.from_iterable(map(grant, shape.containers, combination))), ledger)
        for combination in itertools.product(*choices)
    )


@given(shapes(), ledgers(), samples, policies)
def test_a_fit_is_found_exactly_when_there_is_one_and_is_what_was_asked(
    shape: RequestShape, ledger: NodeLedger, sample: list[Ask], policy: Policy
) -> None:
    shape = replace(shape, policy=policy)
    verdict = place(shape, ledger, of_ledger(policy, sample, ledger))
    assert isinstance(verdict, Placed) == brute_force(shape, ledger), verdict
    if isinstance(verdict, Refused):
        assert verdict.reason is not RefusalReason.SEARCH_TOO_LONG
        assert place(replace(shape, policy=None), ledger) == verdict, "no policy changes why not"
        return
    by_uuid = ledger.inventory.by_uuid
    chosen = [tuple(by_uuid[uuid] for uuid in found.gpus) for found in verdict.grants]
    assert all(may_use(gpu, shape, ledger) for gpus in chosen for gpu in gpus)
    assert all(may_be(gpus, request, shape) for request, gpus in zip(shape.containers, chosen, strict=True))
    parts = [grant(request, gpus) for request, gpus in zip(shape.containers, chosen, strict=True)]
    assert fits(tuple(one for part in parts for one in part), ledger)
    for request, found, part in zip(shape.containers, verdict.grants, parts, strict=True):
        assert (found.container, found.kind) == (request.container, request.kind)
        assert (len(set(found.gpus)), found.whole) == (request.gpu_count, request.whole)
        assert (found.memory_mib, found.compute_percent) == (
            min(one.memory_mib for one in part),
            request.compute_percent,
        )


@st.composite
def several(draw: st.DrawFn) -> RequestShape:
    """Two to five containers, most of them early, because their order counts."""
    kinds = draw(st.lists(st.sampled_from(list(ContainerKind)), min_size=2, max_size=5))
    return RequestShape(
        containers=tuple(
            ContainerRequest(
                container=ContainerName(f"c{i}"),
                kind=kind,
                memory_mib=draw(st.integers(1, 4)) * 1024,
                compute_percent=draw(st.sampled_from([0, 0, 30, 40, 60])),
                gpu_count=draw(st.sampled_from([1, 1, 1, 2])),
            )
            for i, kind in enumerate(sorted(kinds, key=lambda kind: kind is ContainerKind.APP))
        )
    )


@given(several(), st.lists(st.integers(3, 7), min_size=1, max_size=3))
def test_several_containers_are_placed_where_there_is_hardly_room(shape: RequestShape, sizes: list[int]) -> None:
    ledger = NodeLedger.of(make_inventory(*sizes))
    assert isinstance(place(shape, ledger), Placed) == brute_force(shape, ledger)


@given(
    st.lists(st.integers(4, 10), min_size=1, max_size=2),
    st.lists(shapes(max_containers=2, max_gib=2), min_size=4, max_size=8),
)
def test_a_node_that_is_filled_takes_what_fits_and_no_more(sizes: list[int], several: list[RequestShape]) -> None:
    """Pods that ask in different ways meet on one GPU."""
    ledger = NodeLedger.of(make_inventory(*sizes))
    for i, shape in enumerate(several):
        verdict = place(shape, ledger)
        assert isinstance(verdict, Placed) == brute_force(shape, ledger), verdict
        if isinstance(verdict, Placed):
            ledger = ledger.with_allocation(make_allocation(f"p{i}", *verdict.grants))
            assert ledger.over_committed() == ledger.over_computed() == {}


@given(shapes(), ledgers())
def test_a_permanent_refusal_holds_for_the_empty_node_too(shape: RequestShape, ledger: NodeLedger) -> None:
    verdict = place(shape, ledger)
    if isinstance(verdict, Refused) and verdict.permanent:
        assert isinstance(place(shape, NodeLedger.of(ledger.inventory)), Refused)


@given(shapes(), ledgers(), st.randoms(use_true_random=False))
def test_the_order_in_which_pods_are_read_changes_nothing(
    shape: RequestShape, ledger: NodeLedger, rng: random.Random
) -> None:
    held = list(ledger.allocations.values())
    rng.shuffle(held)
    assert place(shape, NodeLedger.of(ledger.inventory, held)) == place(shape, ledger)


class Ledgers(RuleBasedStateMachine):
    """One node. `cluster` is what the API server knows; `ledger` is what the controller keeps beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.inventory = make_inventory(8, 8, 5)
        self.ledger = NodeLedger.of(self.inventory)
        self.cluster: dict[str, Json] = {}
        self.count = 0
        self.most_mib = {gpu.uuid: gpu.memory_mib for gpu in self.inventory.gpus}
        """What may be held: what could be granted before by the present factor, or is held since before."""

    @rule(shape=shapes(max_containers=3, max_gib=6))
    def bind(self, shape: RequestShape) -> None:
        verdict = place(shape, self.ledger)
        if not isinstance(verdict, Placed):
            return
        self.count += 1
        ref = make_ref(f"pod-{self.count}")
        given = Allocation(pod=ref, node=NodeName("node-a"), grants=verdict.grants)
        self.ledger = self.ledger.with_allocation(given)
        annotations = allocations.binding_annotations(given, self.inventory, self.count)
        self.cluster[ref.uid] = make_pod(name=ref.name, node="node-a", annotations=annotations, phase="Running")

    @precondition(lambda self: self.cluster)
    @rule(data=st.data(), deleted=st.booleans())
    def end(self, data: st.DataObject, deleted: bool) -> None:
        uid = data.draw(st.sampled_from(sorted(self.cluster)))
        self.cluster[uid]["status"]["phase"] = "Succeeded"
        rest = [held for each, held in self.ledger.allocations.items() if each != uid]
        self.ledger = NodeLedger.of(self.inventory, rest)
        if deleted:
            del self.cluster[uid]

    @rule(percents=st.lists(st.sampled_from([0, 0, 25, 50, 100]), min_size=3, max_size=3))
    def oversubscribe(self, percents: list[int]) -> None:
        """An administrator chooses other factors while pods run."""
        gpus = [
            replace(gpu, extra_mib=gpu.memory_mib * percent // 100)
            for gpu, percent in zip(self.inventory.gpus, percents, strict=True)
        ]
        self.inventory = replace(self.inventory, gpus=tuple(gpus))
        self.ledger = self.recomputed()
        held = self.ledger.used_mib
        self.most_mib = {gpu.uuid: max(gpu.grantable_mib, held.get(gpu.uuid, 0)) for gpu in gpus}

    @rule()
    def restart(self) -> None:
        """A new controller knows what the pods say, and nothing else."""
        self.ledger = self.recomputed()

    def recomputed(self) -> NodeLedger:
        holding = [pod for pod in self.cluster.values() if pods.holds_gpus(pod)]
        found = [allocations.granted(pod, GIB) for pod in holding]
        return NodeLedger.of(self.inventory, [held for held in found if held is not None])

    @invariant()
    def no_gpu_is_over_committed(self) -> None:
        assert not self.ledger.over_committed()
        for uuid, held_mib in self.ledger.used_mib.items():
            self.most_mib[uuid] = max(self.inventory.by_uuid[uuid].grantable_mib, min(held_mib, self.most_mib[uuid]))
            assert held_mib <= self.most_mib[uuid]

    @invariant()
    def no_more_is_granted_than_there_is_where_a_pod_refuses_that(self) -> None:
        for held in self.ledger.allocations.values():
            for grant in held.grants:
                for uuid in grant.gpus if grant.physical or grant.whole else ():
                    assert self.ledger.used_mib[uuid] <= self.inventory.by_uuid[uuid].memory_mib

    @invariant()
    def the_ledger_is_what_the_pods_say(self) -> None:
        expected = self.recomputed()
        assert (self.ledger, self.ledger.used_mib) == (expected, expected.used_mib)
        assert (self.ledger.used_percent, self.ledger.whole) == (expected.used_percent, expected.whole)
        assert (self.ledger.physical, self.ledger.extra_mib) == (expected.physical, expected.extra_mib)


TestLedger = Ledgers.TestCase
