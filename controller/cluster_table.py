"""What kube-scheduler asks of nodes, answered from the cluster as a table (`gpushare.placement.table`).

Binds and watches take the lock of the index alone, and only mark nodes there. A question takes the lock of the table,
and for a moment that of the index within it, never the reverse: it fetches the marked nodes, whose ledgers are
immutable, and writes their rows. Under it there is arithmetic on columns. Pods whose GPUs have to be searched for are
placed outside of every lock, and what is found is kept where the row is still the same.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from controller.state import ClusterState
from gpushare.cluster import node_ledger, node_records
from gpushare.identity import NodeName, PodUid
from gpushare.model.capacity import FreeHost
from gpushare.model.ledger import NodeLedger, Placed, RefusalReason, Refused, Verdict
from gpushare.model.request import RequestShape
from gpushare.placement import costs, explain, table
from gpushare.placement.columns import Nodes
from gpushare.placement.costs import Cost, Costs
from gpushare.placement.outlook import Outlook
from gpushare.placement.policies import Policies
from gpushare.placement.table import BY_PLACE, FITS, UNSEEN, Fits, Table
from gpushare.runtime.clock import Clock

FILTER_S: Final = 1.5
"""For all nodes of a question. A pod of several containers can be made so that its search is hard on each of them, and
must not hold the scheduler; one container is placed by sorting a few numbers, and nothing limits that."""
PRIORITIZE_S: Final = 0.5
MAX_BYTES: Final = 24 * 2**20
"""Of all that is kept for kube-scheduler's questions, about; for those of the chores a quarter."""
WARM: Final = 12  # kinds of pods whose costs are found before a new outlook is used
_TEXT: Final = 512  # bytes of a verdict in words, or of grants
_CHARACTER: Final = 8
"""Bytes of a kind of pod for each character in which Python writes it: selectors are as long as tenants like."""
_MOST: Final = 2**62


@dataclass(frozen=True, slots=True)
class PodKind:
    """Pods that cost the same everywhere."""

    shape: RequestShape | None  # resolved; None for a pod without GPUs
    takes: FreeHost


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterResult:
    """Every node that was asked about is in exactly one of the three."""

    fits: Sequence[NodeName]
    failed: Mapping[NodeName, str] = field(default_factory=dict)  # preemption may help there
    unresolvable: Mapping[NodeName, str] = field(default_factory=dict)  # preemption cannot help there


V = TypeVar("V", "_Kind", Costs)


class _Row(NamedTuple):
    of: Table
    row: int
    version: int
    code: int  # of `Fits`; UNSEEN where there is none
    ledger: NodeLedger
    host: FreeHost | None


class _Refused(NamedTuple):
    """A node on which a pod does not fit: its place in the question, and what the table says."""

    at: int
    row: int
    code: int
    build: int
    ledger: NodeLedger | Refused | None


class _Kind:
    def __init__(self, shape: RequestShape) -> None:
        self.fits = Fits(shape)
        self.placed: dict[int, tuple[NodeLedger, int, Verdict]] = {}
        """By row: the ledger and the epoch of the outlook, and what `place` said."""
        self.around: dict[int, tuple[str, str]] = {}
        """By `table.BUILD`: what is said around the name of a node without GPUs that the pod may have."""

    @property
    def nbytes(self) -> int:
        return self.fits.codes.nbytes + _TEXT * (len(self.placed) + len(self.around))


class _Kept:
    """What was used last, as much of it as there is memory for."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.nbytes = 0
        self.values: OrderedDict[RequestShape | PodKind, _Kind | Costs] = OrderedDict()
        self._weights: dict[RequestShape | PodKind, tuple[int, int]] = {}  # bytes of the key and of the value

    def kind(self, shape: RequestShape) -> _Kind:
        found = self.values.get(shape)
        return found if isinstance(found, _Kind) else self.put(shape, _Kind(shape))

    def put(self, key: RequestShape | PodKind, value: V) -> V:
        self.values[key] = value
        self._weights[key] = _CHARACTER * len(repr(key)), 0
        self.nbytes += self._weights[key][0]
        return value

    def used(self, key: RequestShape | PodKind) -> None:
        """Something was used, and may have grown."""
        own, before = self._weights[key]
        self.values.move_to_end(key)
        self._weights[key] = own, self.values[key].nbytes
        self.nbytes += self.values[key].nbytes - before
        while self.nbytes > self.most and len(self.values) > 2:
            self.drop(next(iter(self.values)))

    def drop(self, key: RequestShape | PodKind) -> None:
        del self.values[key]
        self.nbytes -= sum(self._weights.pop(key))


class ClusterTable:
    """Answers for kinds of pods. Safe for use by many threads."""

    def __init__(self, state: ClusterState, clock: Clock) -> None:
        self._state = state
        self._clock = clock
        self._lock = threading.Lock()
        self._table = Table()
        self._kept = _Kept(MAX_BYTES)
        self._chores = _Kept(MAX_BYTES // 4)
        self._words: dict[tuple[bool, bool, bool], dict[int, tuple[NodeLedger, str]]] = {}
        """What is free on nodes in the words of a refusal, by how a pod asks and whether it could ever fit, and row."""

    # Questions.

    def filter(self, shape: RequestShape, names: Sequence[NodeName], pod: PodUid | None = None) -> FilterResult:
        """On which of the nodes the pod fits, and why not on the others; its shape is resolved.

        It fits where memory is set aside for this very `pod` by an earlier try.
        """
        told = self._told(self._kept, shape, names)
        if told and pod is not None:
            for name in self._state.index.reserved_on(pod):
                told.pop(name, None)
        return FilterResult(
            fits=[name for name in names if name not in told] if told else names,
            failed={name: refused.message for name, refused in told.items() if not refused.permanent},
            unresolvable={name: refused.message for name, refused in told.items() if refused.permanent},
        )

    def verdicts(self, shape: RequestShape) -> dict[NodeName, Refused | None]:
        """Why a pod does not fit, for every known node; None where it does. For chores."""
        with self._current() as current:
            names = list(current.rows)
        told = self._told(self._chores, shape, names)
        return {name: told.get(name) for name in names}

    def grades(self, kind: PodKind, names: Sequence[NodeName], pod: PodUid | None = None) -> NDArray[np.uint8]:
        """What kube-scheduler is told of each of these nodes (`costs.grades`).

        For pods without GPUs all nodes without GPUs are the best, and those that take no pods with GPUs; for others
        those where memory is set aside for this very `pod` by an earlier try.
        """
        shape, reserved = kind.shape, self._state.index.reserved_on(pod) if pod is not None else frozenset()
        with self._current() as current:
            policies, known = self._state.policies, self._kind(self._kept, shape) if shape is not None else None
            cost, rows = self._costs(current, kind, known), table.rows_named(current, names)
            found, fits = cost.costs[rows], cost.known[rows]
            if known is None:
                state = current.facts[table.STATE, rows]
                best = np.flatnonzero((state != table.UNKNOWN) & (current.facts[table.GPUS, rows] == 0)).tolist()
                todo = np.flatnonzero((state == table.WIDE) & ~fits)
            else:
                codes = known.fits.codes[rows]
                best = [at for at, name in enumerate(names) if name in reserved] if reserved else []
                todo = np.flatnonzero((codes == UNSEEN) | ((codes == FITS) & ~fits))
            asked = {at: _row(current, int(rows[at])) for at in todo.tolist()}
        if asked:
            placed = self._placed(known, asked, policies, self._clock.monotonic() + PRIORITIZE_S)
            changes = {
                at: costs.change_of(verdict.grants, row.ledger, host=row.host, takes=kind.takes)
                for at, row in asked.items()
                if isinstance(verdict := placed.get(at), Placed)
            }
            if changes:
                values = costs.costs_of(list(changes.values()), policies.ranking(kind.shape))
                found[list(changes)], fits[list(changes)] = values, True
                self._keep_costs(kind, policies, zip(map(asked.__getitem__, changes), values, strict=True))
            late = list(asked.keys() - placed.keys())  # there was no time for them: worse than all others
            found[late, 0], fits[late] = found[fits, 0].max(initial=-_MOST) + 1, True
        return costs.grades(found, fits, names, best)

    def sharing(self) -> tuple[Nodes, Nodes]:
        """Nodes with GPUs that take pods, as if no pod were there, and as they are; copies."""
        with self._current() as current:
            return current.sharing()

    def publish(self, outlook: Outlook, in_turn: Callable[[list[PodKind]], Iterable[PodKind]]) -> None:
        """Use a new outlook, once the costs that were used last are known under it.

        Kinds of pods are looked at `in_turn`, with pauses in which requests are answered.
        """
        policies = Policies(self._state.policies.default, outlook)
        with self._lock:
            used, table = [key for key in reversed(self._kept.values) if isinstance(key, PodKind)][:WARM], self._table
        fresh: dict[PodKind, Costs] = {}
        for kind in in_turn(used):
            with self._current() as current:
                if current is not table:  # what was computed on rows of the former one would never change again
                    fresh, table = {}, current
                known = self._kind(self._kept, kind.shape) if kind.shape is not None else None
                fresh[kind] = Costs(kind.takes, policies.ranking(kind.shape))
                fresh[kind].update(current, known.fits if known is not None else None)
        with self._lock:
            if self._table is not table:
                fresh = {}
            for key in [key for key in self._kept.values if isinstance(key, PodKind)]:
                self._kept.drop(key)
            for kind in reversed(fresh):
                self._kept.put(kind, fresh[kind])
                self._kept.used(kind)
            self._state.policies = policies

    # Under the lock.

    @contextmanager
    def _current(self) -> Iterator[Table]:
        """The table with all that has changed by now."""
        with self._lock:
            changed = self._state.index.take_changed()
            try:
                for name, ledger, left, has in changed:
                    if ledger is not None:
                        self._table.set(name, ledger, left, has)
                    elif (row := self._table.rows.get(name)) is not None:
                        self._table.remove(name)
                        for words in list(self._words.values()):  # requests that say why add some without the lock
                            words.pop(row, None)
            except Exception:
                self._state.index.mark_changed(name for name, *_ in changed)
                raise
            if changed and self._table.is_bloated():
                self._table, self._words = self._table.again(), {}
                self._kept, self._chores = _Kept(MAX_BYTES), _Kept(MAX_BYTES // 4)
            yield self._table

    def _kind(self, kept: _Kept, shape: RequestShape) -> _Kind:
        kind = kept.kind(shape)
        kind.fits.update(self._table)
        kept.used(shape)
        return kind

    def _costs(self, current: Table, kind: PodKind, known: _Kind | None) -> Costs:
        found = self._kept.values.get(kind)
        if not isinstance(found, Costs):
            found = self._kept.put(kind, Costs(kind.takes, self._state.policies.ranking(kind.shape)))
        found.update(current, known.fits if known is not None else None)
        self._kept.used(kind)
        return found

    # Outside of it.

    def _told(self, kept: _Kept, shape: RequestShape, names: Sequence[NodeName]) -> dict[NodeName, Refused]:
        """Nodes on which a pod does not fit, and why."""
        with self._current() as current:
            kind, rows = self._kind(kept, shape), table.rows_named(current, names)
            codes = kind.fits.codes[rows]
            places = np.flatnonzero(codes)
            if not len(places):
                return {}
            rows = rows[places]
            builds = current.facts[table.BUILD, rows].tolist()
            ledgers = [current.ledgers[row] for row in rows.tolist()]
            refused = list(map(_Refused, places.tolist(), rows.tolist(), codes[places].tolist(), builds, ledgers))
            asked = {
                each.at: _row(current, each.row, each.code)
                for each in refused
                if each.code & BY_PLACE and isinstance(each.ledger, NodeLedger)
            }
        deadline = self._clock.monotonic() + FILTER_S if len(shape.containers) > 1 else float("inf")
        placed = self._placed(kind, asked, None, deadline)
        needs = explain.needs(shape, self._state.resource_config.unit)
        said = ((name := names[each.at], self._said(kind, name, each, placed.get(each.at), needs)) for each in refused)
        public = self._state.public(shape)
        return {name: public(why) for name, why in said if why is not None}

    def _said(
        self, kind: _Kind, name: NodeName, refused: _Refused, placed: Verdict | None, needs: str
    ) -> Refused | None:
        """Why a pod does not fit on a node; None if it turns out that it does."""
        ledger, shape = refused.ledger, kind.fits.shape
        if ledger is None:
            return Refused(RefusalReason.NO_INVENTORY, node_records.unknown(name))
        if isinstance(ledger, NodeLedger) and not refused.code & BY_PLACE:
            reason, permanent = table.refusal(refused.code)
            if reason is RefusalReason.NO_MATCHING_GPU:
                if refused.build not in kind.around:
                    around = explain.around_the_node(shape, shape.containers[0], ledger.inventory)
                    kind.around[refused.build] = around
                return Refused(reason, name.join(kind.around[refused.build]), permanent)
            left = self._left(shape, refused.row, ledger, never=permanent)
            return Refused(reason, needs + left, permanent)
        answer = ledger if isinstance(ledger, Refused) else placed
        if answer is None:
            message = f"the search for a fit on {name} takes long and has not ended yet; it goes on at the next try"
            return Refused(RefusalReason.SEARCH_TOO_LONG, message)
        return answer if isinstance(answer, Refused) else None

    def _left(self, shape: RequestShape, row: int, ledger: NodeLedger, *, never: bool) -> str:
        """How a refusal goes on behind what the pod needs."""
        [request] = shape.containers
        words = self._words.setdefault((request.whole, request.compute_percent > 0, never), {})
        known = words.get(row)
        if known is None or known[0] is not ledger:
            known = words[row] = ledger, explain.left(shape, ledger, {}, never=never)
        return known[1]

    def _placed(
        self, kind: _Kind | None, asked: Mapping[int, _Row], policies: Policies | None, deadline: float
    ) -> dict[int, Verdict]:
        """What `place` says of these rows, by their keys, as far as there is time.

        Under these policies; None for any, as whether a pod fits depends on none.
        """
        if kind is None:
            return dict.fromkeys(asked, Placed(()))
        found: dict[int, Verdict] = {}
        fresh: list[tuple[_Row, Verdict]] = []
        for at, row in asked.items():
            known = kind.placed.get(row.row)
            if known is None or known[0] is not row.ledger or (policies and known[1] != policies.outlook.epoch):
                if self._clock.monotonic() >= deadline:
                    continue
                under = policies or self._state.policies
                verdict = node_ledger.verdict(kind.fits.shape, row.ledger, under)
                known = kind.placed[row.row] = row.ledger, under.outlook.epoch, verdict
            found[at] = known[2]
            if row.code == UNSEEN:
                fresh.append((row, known[2]))
        with self._lock:
            for row, verdict in fresh:
                if self._is_as_it_was(row):
                    kind.fits.keep(row.row, verdict)
        return found

    def _keep_costs(self, kind: PodKind, policies: Policies, found: Iterable[tuple[_Row, Cost]]) -> None:
        with self._lock:
            kept = self._kept.values.get(kind)
            if isinstance(kept, Costs) and self._state.policies is policies:
                for row, cost in found:
                    if self._is_as_it_was(row):
                        kept.keep(row.row, cost)

    def _is_as_it_was(self, row: _Row) -> bool:
        return row.of is self._table and row.of.facts[table.VERSION, row.row] == row.version


def _row(current: Table, row: int, code: int = UNSEEN) -> _Row:
    ledger = current.ledgers[row]
    assert isinstance(ledger, NodeLedger)  # noqa: S101 - for the type checker: columns tell of all others
    return _Row(current, row, int(current.facts[table.VERSION, row]), code, ledger, current.host(row))
