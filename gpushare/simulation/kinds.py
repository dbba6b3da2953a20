"""Pods that nothing in a simulation tells apart."""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field

from gpushare.model.capacity import Ask
from gpushare.simulation.scores import Load


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What a pod says of nodes, whatever is on them. Nodes are numbered."""

    allowed: frozenset[int] | None = None
    """By taints, selectors and required affinity; None for all."""
    repelled: Mapping[int, int] = field(default_factory=dict, hash=False)
    """How many taints with the effect PreferNoSchedule of a node it does not tolerate, where there are any."""
    attracted: Mapping[int, int] = field(default_factory=dict, hash=False)
    """Weights of preferred node affinity that hold of a node."""


ANYWHERE = Terms()


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """All that decides where a pod goes. Kinds of pods repeat, and what is known of one is kept."""

    ask: Ask
    """GPUs, and CPU and memory of the host."""
    load: Load
    """CPU and memory by kube-scheduler's count."""
    terms: Terms = ANYWHERE
    replicas_of: Hashable = None
    """The owner whose other pods PodTopologySpread keeps apart; None for pods of which it knows no owner."""
    company: Hashable = None
    """What pod affinity needs to know of it; None if no pod says anything of others."""
    more: Hashable = None
    """What else tells pods apart for `Gpus`."""

    @classmethod
    def plain(cls, ask: Ask) -> "Kind":
        """A pod that goes anywhere, whose containers request CPU and memory."""
        cpu, memory = ask.cpu_milli, ask.host_mib
        return cls(ask=ask, load=Load(cpu, memory, cpu, memory))
