"""Random create, bind, finish, delete, shrink and restart sequences: no GPU is ever granted beyond what it has."""

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gpushare.identity import NodeName
from gpushare.model.allocation import Allocation
from gpushare.model.ledger import NodeLedger
from gpushare.model.request import RequestShape
from gpushare.model.verdict import Placed
from gpushare.placement.place import place
from gpushare.units import GIB
from gpushare.wire import allocation as allocation_wire
from gpushare.wire import held_gpus, pods
from testing.builders import Json, make_inventory, make_pod, make_ref
from tests.strategies import shapes


class Ledgers(RuleBasedStateMachine):
    """One node. `cluster` is what the API server knows; `ledger` is what the controller keeps beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.inventory = make_inventory(8, 8, 5)
        self.ledger = NodeLedger.of(self.inventory)
        self.cluster: dict[str, Json] = {}
        self.count = 0

    @rule(shape=shapes(max_containers=3, max_gib=6))
    def bind(self, shape: RequestShape) -> None:
        verdict = place(shape, self.ledger)
        if not isinstance(verdict, Placed):
            return
        self.count += 1
        ref = make_ref(f"pod-{self.count}")
        given = Allocation(pod=ref, node=NodeName("node-a"), grants=verdict.grants)
        self.ledger = self.ledger.with_allocation(given)
        annotations = allocation_wire.binding_annotations(given, self.inventory, self.count)
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

    @rule()
    def restart(self) -> None:
        """A new controller knows what the pods say, and nothing else."""
        self.ledger = self.recomputed()

    def without(self, pod: Json) -> NodeLedger:
        rest = [held for uid, held in self.ledger.allocations.items() if uid != pods.ref(pod).uid]
        return NodeLedger.of(self.inventory, rest)

    def recomputed(self) -> NodeLedger:
        holding = [pod for pod in self.cluster.values() if pods.holds_gpus(pod)]
        found = [held_gpus.allocation(pod, GIB) for pod in holding]
        return NodeLedger.of(self.inventory, [held for held in found if held is not None])

    @invariant()
    def no_gpu_is_over_committed(self) -> None:
        assert not self.ledger.over_committed()

    @invariant()
    def the_ledger_is_what_the_pods_say(self) -> None:
        expected = self.recomputed()
        assert self.ledger == expected
        assert self.ledger.used_mib == expected.used_mib
        assert self.ledger.used_percent == expected.used_percent
        assert self.ledger.whole == expected.whole


TestLedger = Ledgers.TestCase
