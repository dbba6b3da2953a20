"""The cluster as a table: rows are nodes, and columns that follow its changes tell what pods find there. Pure.

`place` is the reference: where a column says whether a pod fits and what a node costs, it is what `place` says, and
which GPUs it would choose. Pods of several containers, of chosen UUIDs or of an affinity, and nodes with very many GPUs
are placed one by one; the columns keep what was found (`Fits.keep`, `Costs.keep`).

Nothing here locks.
"""

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from gpushare.identity import GpuUuid, NodeName
from gpushare.model.allocation import RefusalReason, Refused
from gpushare.model.capacity import FreeGpu, FreeHost
from gpushare.model.gpu import Gpu, GpuHealth, HandOver, Limit, MigInstance, NodeInventory
from gpushare.model.ledger import NodeLedger
from gpushare.model.request import RequestShape
from gpushare.model.selector import ANY_GPU
from gpushare.placement import candidates
from gpushare.placement.columns import ENOUGH, MOST_MIB, Bools, Ints, Nodes, cell, clipped, gpus_of, of_host
from gpushare.placement.costs import Cost, rows_of
from gpushare.placement.policies import Scoring

MOST_PLACES: Final = 64
"""GPUs of a node in columns; one node with more would widen the rows of all."""
_STEP: Final = 8
_SPARE: Final = 64
# Of `Table.cells`, by number: first as `Gpus`, then which hardware it is.
_TOTAL, _FREE, _PERCENT, _MIG, _EXTRA, _UNTOUCHED, _HARDWARE = range(7)
# Of `Table.facts`.
VERSION, STATE, GPUS, ODD, CDI, BUILD, MODEL, CPU, MEMORY, HAS_CPU, HAS_MEMORY = range(11)
UNKNOWN, REFUSED, WIDE, KNOWN = range(4)
"""No such node; one that takes no GPU pods; one with more GPUs than MOST_PLACES; any other."""

Rows = Ints | slice
T = TypeVar("T", bound=np.generic)
Codes = NDArray[np.uint8]
FITS: Final = 0
UNSEEN: Final = 255
"""`place` has to tell."""
PERMANENT: Final = 128
BY_PLACE: Final = 64
"""The words of the refusal are those of `place`; without it, they are what is free of each GPU."""
_REASONS: Final = tuple(RefusalReason)
_CODES: Final = {reason: code for code, reason in enumerate(_REASONS, 1)}
_NEVER_HANDED = _CODES[RefusalReason.OTHER_HAND_OVER] + PERMANENT + BY_PLACE
_NONE_HEALTHY = _CODES[RefusalReason.NO_HEALTHY_GPU] + PERMANENT + BY_PLACE
_TOO_FEW = _CODES[RefusalReason.TOO_FEW_GPUS] + PERMANENT + BY_PLACE
_NO_MATCH = _CODES[RefusalReason.NO_MATCHING_GPU] + PERMANENT
_NO_LEDGER = _CODES[RefusalReason.NO_INVENTORY] + BY_PLACE
_TOO_MUCH: Final = 2**62


class Hardware(NamedTuple):
    """What a GPU is, as far as requests may ask."""

    model: str
    memory_mib: int
    extra_mib: int
    limit: Limit
    mig: bool

    def gpu(self) -> Gpu:
        """Such a GPU."""
        mig = MigInstance(gpu=0, number=0, profile="") if self.mig else None
        return Gpu(
            uuid=GpuUuid(""),
            index=0,
            model=self.model,
            memory_mib=self.memory_mib,
            extra_mib=self.extra_mib,
            limit=self.limit,
            mig=mig,
        )


class Table:
    """Nodes by rows. Row 0 is of all nodes that are not known."""

    def __init__(self) -> None:
        self.now = 0
        """Number of the last change."""
        self.layout = 0
        """Changes whenever a name gets or loses its row."""
        self.rows: dict[NodeName, int] = {}
        self.ledgers: list[NodeLedger | Refused | None] = [None]
        self.hardware: list[Hardware] = [Hardware("", 0, 0, Limit.ADVISORY, mig=False)]
        """By number; 0 is none."""
        self.models: list[str] = [""]
        self.cells: NDArray[np.int32] = np.zeros((7, _SPARE, _STEP), np.int32)
        """Of GPUs that take pods: `[field, row, place]`, of a row in the order in which `place` prefers equals."""
        self.facts: Ints = np.zeros((11, _SPARE), np.int64)
        """Of nodes: `[field, row]`."""
        self._names: list[NodeName] = [NodeName("")]
        self._spare: list[int] = []
        self._hardware_ids: dict[Hardware, int] = {}
        self._model_ids: dict[str, int] = {"": 0}
        self._builds: dict[tuple[tuple[int, int], ...], int] = {}

    def set(self, name: NodeName, ledger: NodeLedger | Refused, left: FreeHost | None, has: FreeHost | None) -> None:
        """A node came or changed: its ledger, what pods leave of its CPU and memory, and what it has of them."""
        hosts = (*of_host(left), *of_host(has))
        row = self.rows.get(name)
        if row is None:
            row = self._new(name)
        if ledger is not self.ledgers[row]:
            self._write(row, ledger)
        elif tuple(self.facts[CPU:, row].tolist()) == hosts:
            return
        self.now += 1
        self.facts[CPU:, row] = hosts
        self.facts[VERSION, row] = self.now

    def remove(self, name: NodeName) -> None:
        """A node is gone."""
        row = self.rows.pop(name, None)
        if row is not None:
            self.now += 1
            self.layout += 1
            self.cells[:, row] = 0
            self.facts[:, row] = 0
            self.facts[VERSION, row] = self.now
            self.ledgers[row] = None
            self._spare.append(row)

    def is_bloated(self) -> bool:
        """Whether it remembers mostly hardware of the past: then a fresh one takes its place (`again`)."""
        known = len(self.hardware) + len(self.models) + len(self._builds)
        if known <= 4 * (len(self.rows) + _SPARE):
            return False
        return known > 2 * (len(np.unique(self.cells[_HARDWARE])) + 2 * len(self.rows)) + _SPARE

    def again(self) -> "Table":
        """The same without what is not needed any more."""
        fresh = Table()
        for name, row in self.rows.items():
            ledger = self.ledgers[row]
            assert ledger is not None  # noqa: S101 - for the type checker: `rows` has no others
            fresh.set(name, ledger, self.host(row), _host(self.facts[HAS_CPU:, row]))
        return fresh

    def name(self, row: int) -> NodeName:
        """Of a node."""
        return self._names[row]

    def host(self, row: int) -> FreeHost | None:
        """What pods leave of a host."""
        return _host(self.facts[CPU : MEMORY + 1, row])

    def changed(self, seen: int) -> Rows:
        """Rows that have changed after a number, all of them if most have."""
        if seen == self.now:
            return np.zeros(0, np.int64)
        found = np.flatnonzero(self.facts[VERSION] > seen)
        return slice(0, self.facts.shape[1]) if 2 * len(found) > self.facts.shape[1] else found

    def nodes(self, rows: Rows) -> Nodes:
        """Some of them as they are; a copy."""
        return Nodes(
            gpus_of(self.cells[:, rows]),
            self.facts[MODEL, rows].copy(),
            self.facts[CPU, rows].copy(),
            self.facts[MEMORY, rows].copy(),
            tuple(self.models),
        )

    def sharing(self) -> tuple[Nodes, Nodes]:
        """Nodes with GPUs that take pods, as if no pod were there, and as they are; copies."""
        rows = np.flatnonzero((self.facts[STATE] == KNOWN) & (self.facts[GPUS] > 0))
        now, cells = self.nodes(rows), self.cells[:, rows]
        has = np.array([min(each.memory_mib + each.extra_mib, MOST_MIB) for each in self.hardware], np.int32)
        extra = np.array([min(each.extra_mib, MOST_MIB) for each in self.hardware], np.int32)
        is_gpu = cells[_HARDWARE] > 0
        cells[_TOTAL] = cells[_FREE] = has[cells[_HARDWARE]]
        cells[_EXTRA] = extra[cells[_HARDWARE]]
        cells[_PERCENT], cells[_UNTOUCHED] = 100 * is_gpu, is_gpu
        cpu, memory = self.facts[HAS_CPU, rows], self.facts[HAS_MEMORY, rows]
        return Nodes(gpus_of(cells), now.model, cpu, memory, now.models), now

    def _new(self, name: NodeName) -> int:
        self.layout += 1
        if self._spare:
            row = self._spare.pop()
            self._names[row] = name
        else:
            row = len(self._names)
            self._names.append(name)
            self.ledgers.append(None)
            if row >= self.facts.shape[1]:
                self.facts = np.pad(self.facts, ((0, 0), (0, row)))
                self.cells = np.pad(self.cells, ((0, 0), (0, row), (0, 0)))
        self.rows[name] = row
        return row

    def _write(self, row: int, ledger: NodeLedger | Refused) -> None:
        self.ledgers[row] = ledger
        self.cells[:, row] = 0
        if isinstance(ledger, Refused):
            self.facts[STATE : MODEL + 1, row] = REFUSED, 0, 0, 0, 0, 0
            return
        gpus = ledger.inventory.gpus
        healthy = [gpu for gpu in gpus if gpu.health is GpuHealth.HEALTHY]
        state = WIDE if len(healthy) > MOST_PLACES else KNOWN
        if healthy and state == KNOWN:
            places = sorted((FreeGpu.of(gpu, ledger), gpu.index, self._hardware_id(gpu)) for gpu in healthy)
            self._widen(len(places))
            self.cells[:, row, : len(places)] = np.array([(*cell(free), number) for free, _, number in places]).T
        odd = len(healthy) < len(gpus) or any(gpu.mig for gpu in gpus)
        self.facts[STATE : MODEL + 1, row] = (
            state,
            len(healthy),
            odd,
            ledger.inventory.hand_over is HandOver.CDI,
            0 if odd else self._build(ledger.inventory),
            self._model_ids.setdefault(model := gpus[0].model if gpus else "", len(self._model_ids)),
        )
        if len(self._model_ids) > len(self.models):
            self.models.append(model)

    def _widen(self, places: int) -> None:
        missing = places - self.cells.shape[2]
        if missing > 0:
            self.cells = np.pad(self.cells, ((0, 0), (0, 0), (0, -(-missing // _STEP) * _STEP)))

    def _hardware_id(self, gpu: Gpu) -> int:
        this = Hardware(gpu.model, gpu.memory_mib, gpu.extra_mib, gpu.limit, gpu.mig is not None)
        known = self._hardware_ids.get(this)
        if known is None:
            known = self._hardware_ids[this] = len(self.hardware)
            self.hardware.append(this)
        return known

    def _build(self, inventory: NodeInventory) -> int:
        """A number for nodes with the same GPUs."""
        gpus = tuple((gpu.index, self._hardware_id(gpu)) for gpu in inventory.gpus)
        return self._builds.setdefault(gpus, len(self._builds))


def _host(amounts: Ints) -> FreeHost | None:
    cpu, memory = amounts.tolist()
    return None if cpu == ENOUGH else FreeHost(cpu, memory)


class Rules:
    """What one container asks for, found once for each hardware."""

    def __init__(self, shape: RequestShape) -> None:
        self._shape = shape
        request = self._request = shape.containers[0]
        self.gpus, self.whole = request.gpu_count, request.whole
        self.percent = 100 if request.whole else request.compute_percent
        self.open: Bools = np.zeros(1, np.bool_)
        """Whether the container may have it. As the next ones, by the number of the hardware."""
        self.need: NDArray[np.int32] = np.zeros(1, np.int32)
        """MiB that it takes."""
        self.large: Bools = np.zeros(1, np.bool_)
        """Whether all of its memory would be enough."""

    def know(self, hardware: Sequence[Hardware]) -> None:
        """There is this hardware."""
        if len(hardware) > len(self.open):
            found = [self._ask(each) for each in hardware[len(self.open) :]]
            self.open = np.append(self.open, [is_open for is_open, _, _ in found])
            self.need = np.append(self.need, np.array([need for _, need, _ in found], np.int32))
            self.large = np.append(self.large, [large for _, _, large in found])

    def _ask(self, hardware: Hardware) -> tuple[bool, int, bool]:
        gpu, shape = hardware.gpu(), self._shape
        need = self._request.need(gpu).memory_mib
        is_open = candidates.takes(shape, self._request, gpu) and not candidates.by_kind(shape, [gpu])
        return is_open, clipped(need, MOST_MIB + 1), is_open and gpu.memory_mib >= need

    def of(self, cells: NDArray[np.int32]) -> tuple[Bools, NDArray[np.int32], Bools, Bools]:
        """Which GPUs it may have, what it takes of them, which have the memory, and which have room for it."""
        hardware = cells[_HARDWARE]
        is_open, need = self.open[hardware], self.need[hardware]
        roomy = is_open & (np.minimum(cells[_FREE], cells[_TOTAL] - cells[_EXTRA]) >= need)
        fits = roomy & (cells[_PERCENT] >= self.percent) if self.percent else roomy
        if self.whole:
            fits = fits & (cells[_UNTOUCHED] > 0)
        return is_open, need, roomy, fits


def is_columnar(shape: RequestShape) -> bool:
    """Whether columns tell where a pod fits and which GPUs it gets there. The shape is resolved."""
    return len(shape.containers) == 1 and shape.affinity is None and shape.gpus.uuids == ANY_GPU.uuids


class Fits:
    """On which nodes a pod fits: no policy and no outlook changes that."""

    def __init__(self, shape: RequestShape) -> None:
        self.shape = shape
        self.rules = Rules(shape) if is_columnar(shape) else None
        self.codes: Codes = np.zeros(0, np.uint8)
        """FITS, UNSEEN, or why not: see `refusal`."""
        self.texts: dict[int, Refused] = {}
        """By row, what `place` has said, as far as it was asked."""
        self.seen = 0

    def update(self, table: Table) -> None:
        """Follow the table."""
        if len(self.codes) < table.facts.shape[1]:
            missing = table.facts.shape[1] - len(self.codes)
            self.codes = np.append(self.codes, np.full(missing, _NO_LEDGER, np.uint8))
        rows = table.changed(self.seen)
        self.seen = table.now
        if isinstance(rows, slice) or len(rows):
            self._forget(rows)
            self.codes[rows] = self._codes(table, rows)

    def _forget(self, rows: Rows) -> None:
        if isinstance(rows, slice):
            self.texts.clear()
        elif self.texts:
            for row in rows.tolist():
                self.texts.pop(row, None)

    def keep(self, row: int, refused: Refused | None) -> None:
        """What `place` has said of a row as it is."""
        self.codes[row] = FITS
        if refused is not None:
            self.codes[row] = _CODES[refused.reason] + PERMANENT * refused.permanent + BY_PLACE
            self.texts[row] = refused

    def _codes(self, table: Table, rows: Rows) -> Codes:
        facts, rules = table.facts[:, rows], self.rules
        state = facts[STATE]
        if rules is None:
            return np.where(state >= WIDE, UNSEEN, _NO_LEDGER).astype(np.uint8)
        rules.know(table.hardware)
        cells, gpus = table.cells[:, rows], rules.gpus
        is_open, _, roomy, fits = rules.of(cells)
        found = np.where(np.count_nonzero(fits, axis=1) >= gpus, FITS, UNSEEN).astype(np.uint8)
        full = np.flatnonzero((found == UNSEEN) & (state == KNOWN))
        if len(full):
            found[full] = self._why(rules, facts[:, full], is_open[full], roomy[full], cells[_HARDWARE][full])
        found[state == WIDE] = UNSEEN
        found[state <= REFUSED] = _NO_LEDGER
        if self.shape.only_cdi:
            found[(state >= WIDE) & (facts[CDI] == 0)] = _NEVER_HANDED
        return found

    @staticmethod
    def _why(rules: Rules, facts: Ints, is_open: Bools, roomy: Bools, hardware: NDArray[np.int32]) -> Codes:
        """In the order of `place`."""
        n_open, odd = np.count_nonzero(is_open, axis=1), facts[ODD] > 0
        never = np.count_nonzero(rules.large[hardware], axis=1) < rules.gpus
        lacking: int | Codes = _CODES[RefusalReason.NO_UNTOUCHED_GPU]
        if not rules.whole:
            enough = np.count_nonzero(roomy, axis=1) >= rules.gpus
            memory, compute = RefusalReason.INSUFFICIENT_GPU_MEMORY, RefusalReason.INSUFFICIENT_GPU_COMPUTE
            lacking = np.where(enough, _CODES[compute], _CODES[memory])
        others = odd | (n_open < facts[GPUS])
        found: Codes = np.select(
            [facts[GPUS] == 0, facts[GPUS] < rules.gpus, n_open < rules.gpus],
            [np.full(len(odd), _NONE_HEALTHY), np.full(len(odd), _TOO_FEW), _NO_MATCH + BY_PLACE * odd],
            lacking + PERMANENT * never + BY_PLACE * others,
        ).astype(np.uint8)
        return found


def refusal(code: int) -> tuple[RefusalReason, bool]:
    """Why a pod does not fit, and whether that is for good."""
    return _REASONS[code % BY_PLACE - 1], code >= PERMANENT


class Worth:
    """What nodes are worth to a policy as they are, shared by all kinds of pods."""

    def __init__(self, policy: Scoring) -> None:
        self.policy = policy
        self.worth: Ints = np.zeros((0, 2), np.int64)
        self._seen = 0

    def update(self, table: Table) -> None:
        """Follow the table."""
        self.worth = _grown(self.worth, table)
        rows = _able(table, table.changed(self._seen))
        self._seen = table.now
        if len(rows):
            self.worth[rows] = self.policy.worth(table.nodes(rows))


class Costs:
    """What nodes cost a pod, under one outlook."""

    def __init__(self, takes: FreeHost, worth: Worth) -> None:
        """Of pods that take so much CPU and memory."""
        self.takes, self._worth = takes, worth
        self.costs: Ints = np.zeros((0, 3), np.int64)
        """As of `costs.costs_of`, where `known`."""
        self.known: Bools = np.zeros(0, np.bool_)
        """Of nodes with GPUs on which the pod fits, if it asks for any."""
        self._seen = 0

    @property
    def nbytes(self) -> int:
        return self.costs.nbytes + self.known.nbytes

    def update(self, table: Table, fits: Fits | None) -> None:
        """Follow the table, as `fits` has done before: where the pod fits; None for pods without GPUs."""
        self.costs, self.known = _grown(self.costs, table), _grown(self.known, table)
        rows = table.changed(self._seen)
        if self._seen == table.now:
            return
        self._seen = table.now
        self.known[rows] = False
        self._worth.update(table)
        able = _able(table, rows)
        if fits is not None:
            able = able[fits.codes[able] == FITS] if fits.rules is not None else able[:0]
        if len(able):
            self.costs[able] = self._found(table, able, None if fits is None else fits.rules)
            self.known[able] = True

    def keep(self, row: int, cost: Cost) -> None:
        """What was found of a row as it is."""
        self.costs[row] = cost
        self.known[row] = True

    def _found(self, table: Table, rows: Ints, rules: Rules | None) -> Ints:
        now, policy = table.nodes(rows), self._worth.policy
        before = now.at_least(self.takes)
        chosen, mib, percent = np.zeros((len(rows), 0), np.int64), np.zeros((len(rows), 0), np.int64), 0
        if rules is not None:
            percent = rules.percent
            _, need, _, fits = rules.of(table.cells[:, rows])
            takes = before.gpus.total if rules.whole else need.astype(np.int64)
            lost = np.where(fits, policy.gpu_costs(before.gpus, takes, percent), _TOO_MUCH)
            if rules.gpus == 1:
                chosen = lost.argmin(axis=1)[:, None]
            else:
                chosen = lost.argsort(axis=1, kind="stable")[:, : rules.gpus]
            mib = np.take_along_axis(takes, chosen, 1)
            if not rules.whole:  # of GPUs that differ, all give what the smallest does
                mib = mib.min(axis=1, keepdims=True)
        after = before.after(chosen, mib, percent, self.takes)
        worth: Ints = self._worth.worth[rows]
        lifted = (before.cpu != now.cpu) | (before.memory != now.memory)
        if lifted.any():
            worth[lifted] = policy.worth(before.rows(lifted))
        return rows_of(policy.first(before, after), worth - policy.worth(after))


def _able(table: Table, rows: Rows) -> Ints:
    """Those that have GPUs."""
    index = np.arange(table.facts.shape[1])[rows] if isinstance(rows, slice) else rows
    able: Ints = index[(table.facts[STATE, index] == KNOWN) & (table.facts[GPUS, index] > 0)]
    return able


def _grown(column: NDArray[T], table: Table) -> NDArray[T]:
    missing = table.facts.shape[1] - len(column)
    return np.pad(column, ((0, missing), *(((0, 0),) * (column.ndim - 1)))) if missing > 0 else column


def rows_named(table: Table, names: Iterable[NodeName]) -> Ints:
    """The row of each name."""
    find = table.rows.get
    return np.array([find(name, 0) for name in names], np.int64)
