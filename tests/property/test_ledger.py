"""Random create, bind, finish, delete, restart and oversubscribe sequences: no GPU is granted beyond what it may be."""

from dataclasses import replace

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gpushare.identity import NodeName
from gpushare.model.ledger import Allocation, NodeLedger, Placed
from gpushare.model.request import RequestShape
from gpushare.placement.place import place
from gpushare.units import GIB
from gpushare.wire import allocations, pods
from testing.builders import Json, make_inventory, make_pod, make_ref
from tests.property.strategies import shapes


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
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        uid = data.draw(st.sampled_from(sorted(self.cluster)))
        self.cluster[uid]["status"]["phase"] = "Succeeded"
        self.ledger = self.without(self.cluster[uid])

    @precondition(lambda self: self.cluster)
    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        uid = data.draw(st.sampled_from(sorted(self.cluster)))
        self.ledger = self.without(self.cluster.pop(uid))

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

    def without(self, pod: Json) -> NodeLedger:
        rest = [held for uid, held in self.ledger.allocations.items() if uid != pods.ref(pod).uid]
        return NodeLedger.of(self.inventory, rest)

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
