"""Correct the scheduler's victims, node by node: it counts the GPU memory of a node as one sum."""

import itertools
import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from controller import preemption
from controller.extender.messages import PreemptArgs
from controller.metrics import Metrics
from controller.preemption import Decision, Preemptor, Ruling, Victims
from controller.state import ClusterState
from gpushare.cluster.budgets import Budget
from gpushare.identity import NodeName
from gpushare.model.request import PodRequest
from gpushare.runtime import logs
from gpushare.runtime.clock import Clock

_LOG: Final = logging.getLogger(__name__)
BUDGET_S: Final = 1.5  # kube-scheduler schedules no one meanwhile; it needs one node, not the best of all

MAX_NAMED: Final = 5  # nodes in the log


@dataclass(frozen=True, slots=True, kw_only=True)
class Preemption:
    """Answers what to evict. It evicts no one itself. Safe for use by many threads."""

    state: ClusterState
    budgets: Callable[[], Sequence[Budget]]
    clock: Clock
    metrics: Metrics

    def decide(self, args: PreemptArgs, request: PodRequest | None) -> Mapping[NodeName, Victims]:
        """Whom to evict from each node; nodes on which that does not help are left out.

        Args:
            args: the scheduler's choice.
            request: what the pod asks for; None if no GPU.
        """
        decisions: Mapping[NodeName, Decision]
        if request is None:
            decisions = {node: preemption.as_given(given) for node, given in args.victims.items()}
        else:
            preemptor = Preemptor(request=request, priority=args.priority, policies=self.state.policies)
            decisions = self._judged(preemptor, args)
        self._tell(args, decisions)
        return {node: decision.victims for node, decision in decisions.items() if decision.ruling is not Ruling.DROPPED}

    def _judged(self, preemptor: Preemptor, args: PreemptArgs) -> Mapping[NodeName, Decision]:
        """In the scheduler's order; nodes for which there is no time are left out."""
        deadline = self.clock.monotonic() + BUDGET_S
        known = self.budgets()
        decisions: dict[NodeName, Decision] = {}
        for node, given in args.victims.items():
            if self.clock.monotonic() >= deadline:
                break
            ledger, bound = self.state.index.occupants(node)
            decisions[node] = preemption.decide(preemptor, given, ledger, bound, known)
        return decisions

    def _tell(self, args: PreemptArgs, decisions: Mapping[NodeName, Decision]) -> None:
        nodes = Counter(decision.ruling.value for decision in decisions.values())
        nodes["late"] = len(args.victims) - len(decisions)
        victims: Counter[str] = Counter()
        for node, decision in decisions.items():
            before, after = set(args.victims[node].pods), set(decision.victims.pods)
            victims.update(kept=len(before & after), dropped=len(before - after), added=len(after - before))
        nodes, victims = +nodes, +victims  # without zeros
        self.metrics.preempted(nodes=nodes, victims=victims)
        chosen = (
            f"{node}: {', '.join(decision.victims.pods)}"
            for node, decision in decisions.items()
            if decision.ruling is Ruling.CHOSEN
        )
        metadata = args.pod["metadata"]
        logs.event(
            _LOG,
            "preempt",
            pod=f"{metadata.get('namespace')}/{metadata.get('name')}",
            uid=str(metadata.get("uid")),
            priority=args.priority,
            nodes=dict(nodes),
            victims=dict(victims),
            chosen="; ".join(itertools.islice(chosen, MAX_NAMED)),
        )
