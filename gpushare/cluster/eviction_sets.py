"""Sets of pods of one node without which another pod fits there, and each of which is needed for that. Pure."""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from gpushare.cluster import budgets
from gpushare.cluster.snapshot import Evictable, NodeState, PodToPlace, Snapshot, resolved
from gpushare.identity import GpuUuid, NodeName, PodUid
from gpushare.model.ledger import NodeLedger
from gpushare.model.request import RequestShape
from gpushare.placement.policies import Policies

_PAIRS_OF: Final = 40
"""Pods of a node, up to which every two of them are tried together."""


def candidates(pod: PodToPlace, snapshot: Snapshot, most: int) -> Iterator[tuple[NodeName, Sequence[Evictable]]]:
    """Sets of pods of one node without which the pod fits there, and each of which is needed for that: few first."""
    shape = resolved(pod, snapshot.nodes)
    on_node: dict[NodeName, list[Evictable]] = {}
    for one in snapshot.evictable:
        on_node.setdefault(one.bound.node, []).append(one)
    trials = []
    for node, evictable in sorted(on_node.items()):
        if node not in snapshot.nodes or not snapshot.admits(pod, node):
            continue
        trial = _Trial(pod, shape, snapshot.nodes[node], snapshot.policies)
        if trial.fits(evictable):
            trials.append((node, trial, evictable))
    single: set[PodUid] = set()
    for count, tier in enumerate((_singles, _pairs, _large), start=1):
        found: list[tuple[NodeName, Sequence[Evictable]]] = []
        for node, trial, evictable in trials if count <= most else ():
            found += (
                (node, gone)
                for gone in tier(trial, [one for one in evictable if one.bound.ref.uid not in single])
                if len(gone) <= most and not budgets.violating([one.bound for one in gone], snapshot.known)
            )
        found.sort(key=_rank)
        yield from found
        single |= {one.bound.ref.uid for _, gone in found if len(gone) == 1 for one in gone}


@dataclass(frozen=True, slots=True)
class _Trial:
    """A node without some of its pods."""

    pod: PodToPlace
    shape: RequestShape
    node_state: NodeState
    policies: Policies

    def fits(self, gone: Iterable[Evictable]) -> bool:
        """Whether the pod fits when these are gone."""
        left = self.node_state.without([one.pod for one in gone])
        return left.grants(self.pod, self.shape, self.policies) is not None


def _singles(trial: _Trial, evictable: Sequence[Evictable]) -> Iterator[Sequence[Evictable]]:
    return ((one,) for one in evictable if trial.fits((one,)))


def _pairs(trial: _Trial, evictable: Sequence[Evictable]) -> Iterator[Sequence[Evictable]]:
    if len(evictable) <= _PAIRS_OF:
        yield from (pair for pair in itertools.combinations(evictable, 2) if _is_needed(trial, pair))


def _large(trial: _Trial, evictable: Sequence[Evictable]) -> Iterator[Sequence[Evictable]]:
    """Begin without all pods of a GPU, or of the node, and take back whom the pod does not need gone."""
    by_gpu: dict[GpuUuid, list[Evictable]] = {}
    for one in evictable:
        held = trial.node_state.ledger.allocations.get(one.bound.ref.uid)
        for uuid in trial.node_state.ledger.held(held) if held is not None else ():
            by_gpu.setdefault(uuid, []).append(one)
    seen: set[frozenset[PodUid]] = set()
    for scope in (*by_gpu.values(), evictable):
        if not trial.fits(scope):
            continue
        by_size = sorted(scope, key=lambda one: (size(trial.node_state.ledger, one), one.bound.ref.uid))
        for order in (by_size, by_size[::-1]):
            gone = _reduced(trial, order)
            key = frozenset(one.bound.ref.uid for one in gone)
            if len(gone) > 1 and key not in seen and _is_needed(trial, gone):
                seen.add(key)
                yield gone


def _reduced(trial: _Trial, order: Sequence[Evictable]) -> Sequence[Evictable]:
    """Whom it takes, after everyone who is not needed was taken back in this order."""
    gone = list(order)
    for one in order:
        rest = [other for other in gone if other is not one]
        if trial.fits(rest):
            gone = rest
    return gone


def _is_needed(trial: _Trial, gone: Sequence[Evictable]) -> bool:
    """Whether the pod fits without these, and not while any of them stays."""
    return trial.fits(gone) and not any(trial.fits([other for other in gone if other is not one]) for one in gone)


def _rank(found: tuple[NodeName, Sequence[Evictable]]) -> tuple[object, ...]:
    """Few and unimportant pods first, then small ones: they find a place more easily, and lose less."""
    node, gone = found
    sizes = sum(request.memory_mib * request.gpu_count for one in gone for request in one.pod.shape.containers)
    return len(gone), max(one.bound.priority for one in gone), sizes, node, [one.bound.ref.uid for one in gone]


def size(ledger: NodeLedger, one: Evictable) -> int:
    """MiB that a pod holds on all of its GPUs."""
    held = ledger.allocations.get(one.bound.ref.uid)
    return sum(each.memory_mib for each in ledger.held(held).values()) if held is not None else 0
