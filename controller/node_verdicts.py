"""Which nodes a kind of pod fits on, for the scheduler's questions. Only nodes that were asked for are judged.

Where simple pods (`gpushare.placement.room`) fit is told by what is kept beside every ledger. All other verdicts are
kept for each kind of pod, because replicas ask for the same; a node's ledger is immutable, so that the verdict of one
that has not changed is still right.
"""

import itertools
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from controller.background import Background
from controller.extender import filter as filtering
from controller.extender.messages import FilterResult
from controller.extender.name_lists import NameList
from controller.rooms import NONE
from controller.state import ClusterState
from gpushare.cluster.node_ledger import LedgerOrRefused
from gpushare.cluster.verdicts import ShapeCache
from gpushare.identity import NodeName
from gpushare.model.allocation import RefusalReason, Refused
from gpushare.model.request import RequestShape
from gpushare.placement import judge, room
from gpushare.placement.judge import Judge
from gpushare.placement.room import Room
from gpushare.runtime.clock import Clock

BUDGET_S: Final = 1.5
"""For all nodes of a question. A pod of several containers can be made so that its search is hard on each of them, and
must not hold the scheduler; one container is placed by sorting a few numbers, and nothing limits that."""

Fits = int
FITS: Final[Fits] = 0
"""What nodes cost is told by `controller.boards`."""
Answers = Mapping[NodeName, Fits | Refused]


class _Kept:
    """Verdicts for one kind of pod, without the choice of GPUs: thousands of these are kept."""

    def __init__(self) -> None:
        self.by_node: dict[NodeName, Fits | Refused] = {}
        """Of nodes that have not changed up to `sequence`. Nothing is taken out of it: others may be reading it."""
        self.sequence = 0
        self.lock = threading.Lock()


class NodeVerdicts:
    """Answers for kinds of pods. Safe for use by many threads."""

    def __init__(self, state: ClusterState, clock: Clock, *, part: int = 1) -> None:
        """Nothing is kept yet; `part` divides the limit, for a cache beside that of the scheduler's questions."""
        self._state = state
        self._clock = clock
        self._lock = threading.Lock()
        self._cache = ShapeCache(lambda _: _Kept(), part=part)
        self.background = Background(self._judge, lambda: list(state.index.ledgers()), clock)
        """To be run for the scheduler's questions."""

    def filter(
        self,
        shape: RequestShape,
        names: Sequence[NodeName],
        reserved: frozenset[NodeName] = frozenset(),
        known: NameList | None = None,
    ) -> FilterResult:
        """On which of the nodes the pod fits, and why not on the others.

        Args:
            shape: what the pod asks for, resolved.
            names: the scheduler's nodes.
            reserved: nodes where memory is set aside for this very pod by an earlier try; it fits there.
            known: the names, if they are a list that is kept.
        """
        if (mib := room.simple(shape)) and not reserved:
            return self._filter_simple(mib, names, known)
        if room.asks_one(shape) and not reserved:
            return self._filter_one(shape, names, known)
        return filtering.decide(names, self.answers(shape, names), reserved)

    def _filter_simple(self, mib: int, names: Sequence[NodeName], known: NameList | None) -> FilterResult:
        """By one look-up for each node."""
        cache = self._state.index
        if self._all_have(mib, known, None, cache.rooms.free_mib):
            return FilterResult(fits=names)
        sequence = cache.sequence
        found = filtering.decide_simple(names, mib, cache.rooms, self._state.resource_config.unit)
        if known is not None and len(found.fits) == len(names):
            known.least[None] = sequence, mib
        return found

    def _filter_one(self, shape: RequestShape, names: Sequence[NodeName], known: NameList | None) -> FilterResult:
        """Where one GPU surely has enough, memory decides by one look-up; only the other nodes are judged."""
        cache, percent = self._state.index, shape.containers[0].compute_percent
        mib = room.enough_mib(shape, cache.rooms.largest_mib)
        free_mib = cache.free_mib(percent)
        if self._all_have(mib, known, percent, free_mib):
            return FilterResult(fits=names)
        sequence = cache.sequence
        free = list(map(free_mib.get, names, itertools.repeat(NONE)))
        least = min(free, default=NONE)
        if known is not None:
            known.least[percent] = sequence, least
        if least >= mib:
            return FilterResult(fits=names)
        rest = [name for name, has in zip(names, free, strict=True) if has < mib]
        unit = self._state.resource_config.unit
        found = filtering.decide_one(rest, shape, cache.rooms, unit, partial(self.answers, shape))
        if len(rest) == len(names):
            return found
        if len(found.fits) == len(rest):
            return replace(found, fits=names)
        refused = set(rest).difference(found.fits)
        return replace(found, fits=[name for name in names if name not in refused])

    def _all_have(
        self, mib: int, known: NameList | None, percent: int | None, free_mib: Mapping[NodeName, int]
    ) -> bool:
        """Whether all nodes of a list surely have enough; where they had, only those that changed since are looked at.

        Args:
            mib: that a pod needs on one GPU.
            known: the list, if it is kept.
            percent: of compute that is left there; None for any.
            free_mib: of each node. Live.
        """
        before, least = (0, NONE) if known is None else known.least.get(percent, (0, NONE))
        if known is None or least < mib:
            return False
        changed = self._state.index.changed_since(before)
        if changed.names is None:
            return False
        least = min(itertools.chain([least], map(free_mib.get, changed.names, itertools.repeat(NONE))))
        known.least[percent] = changed.sequence, least
        return least >= mib

    def answers(self, shape: RequestShape, names: Iterable[NodeName]) -> Answers:
        """Fit or refusal of these nodes, as far as they are known.

        The result may be live, and tell of other nodes: look these up in it, and do not iterate over it.
        """
        with self._lock:
            kept = self._cache.of(shape)
        answers = self._answers(shape, kept, names)
        if not judge.can_judge(shape) and len(kept.by_node) < self._state.index.count:
            self.background.add(shape)
        return answers

    def _answers(self, shape: RequestShape, kept: _Kept, names: Iterable[NodeName]) -> Answers:
        known, sequence = self._catch_up(kept)
        if not (missing := [name for name in names if name not in known]):
            return known
        judged = self._quickly(shape, missing) if judge.can_judge(shape) else {}
        ledgers = self._state.index.ledgers([name for name in missing if name not in judged] if judged else missing)
        judged |= self._judged(shape, ledgers)
        self._keep(kept, judged, sequence)
        with self._lock:
            self._cache.weigh(shape)
        late = {name: _not_yet(name) for name in ledgers.keys() - judged.keys()}
        return {**known, **judged, **late}

    def _judge(self, shape: RequestShape, names: list[NodeName]) -> None:
        """Keep verdicts of these nodes, too, unless the kind of pod is forgotten by now."""
        with self._lock:
            kept = self._cache.of(shape) if shape in self._cache else None
        if kept is not None:
            self._answers(shape, kept, names)

    def snapshot(self, shape: RequestShape) -> dict[NodeName, Fits | Refused]:
        """Fit or refusal of every known node; a copy."""
        known = self._state.index.ledgers()
        answers = self.answers(shape, known)
        return {name: answer for name in known if (answer := answers.get(name)) is not None}

    def _catch_up(self, kept: _Kept) -> tuple[Answers, int]:
        """Forget verdicts of nodes that have changed. All others, and the number of the last change that was seen."""
        with kept.lock:
            if not kept.by_node:  # it need not know which ones
                kept.sequence = self._state.index.sequence
                return kept.by_node, kept.sequence
            changed = self._state.index.changed_since(kept.sequence)
            if changed.names is None:
                kept.by_node = {}
            elif changed.names:
                kept.by_node = kept.by_node.copy()
                for name in changed.names:
                    kept.by_node.pop(name, None)
            kept.sequence = changed.sequence
            return kept.by_node, kept.sequence

    def _keep(self, kept: _Kept, judged: Answers, sequence: int) -> None:
        """Keep verdicts, unless their nodes have changed since a sequence number: others may have caught up."""
        with kept.lock:
            changed = self._state.index.changed_since(sequence)
            if changed.names is not None:
                meanwhile = frozenset(changed.names)
                kept.by_node.update({name: each for name, each in judged.items() if name not in meanwhile})

    def _quickly(self, shape: RequestShape, names: Iterable[NodeName]) -> dict[NodeName, Fits | Refused]:
        """Verdicts of the nodes without those that need a closer look."""
        found: dict[NodeName, Fits | Refused] = {}
        rooms, fits = self._state.index.rooms.by_node, Judge(shape, self._state.resource_config.unit).fits
        for name in names:
            room = rooms.get(name)
            if type(room) is Room:
                verdict = fits(room)
                if verdict is True:
                    found[name] = FITS
                elif verdict:
                    found[name] = verdict
            elif isinstance(room, Refused) and not shape.only_cdi:
                found[name] = room
        return found

    def _judged(
        self, shape: RequestShape, ledgers: Mapping[NodeName, LedgerOrRefused]
    ) -> dict[NodeName, Fits | Refused]:
        """Verdicts of the nodes; of several containers, as far as there is time."""
        # Outside of every lock: no one waits for a cold start, and at worst two do the same.
        deadline = self._clock.monotonic() + BUDGET_S if len(shape.containers) > 1 else float("inf")
        judged: dict[NodeName, Fits | Refused] = {}
        for name, ledger in ledgers.items():
            if self._clock.monotonic() >= deadline:
                break
            verdict = self._state.verdict(shape, ledger)
            judged[name] = verdict if isinstance(verdict, Refused) else FITS
        return judged


def _not_yet(name: NodeName) -> Refused:
    message = f"the search for a fit on {name} takes long and has not ended yet; it goes on at the next try"
    return Refused(RefusalReason.SEARCH_TOO_LONG, message)
