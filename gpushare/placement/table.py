"""The cluster as a table: rows are nodes, and columns follow its changes. Pure.

The columns are `Fits` and those of `costs`. Nothing here locks.
"""

import itertools
import weakref
from collections.abc import Sequence
from typing import Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from gpushare.identity import GpuUuid, NodeName
from gpushare.model.capacity import FreeGpu, FreeHost
from gpushare.model.gpu import Gpu, GpuHealth, HandOver, MigInstance, NodeInventory
from gpushare.model.ledger import NodeLedger, RefusalReason, Refused, Verdict
from gpushare.model.request import ANY_GPU, RequestShape
from gpushare.placement.columns import ENOUGH, MOST_MIB, Bools, Ints, Nodes, cell, gpus_of, of_host

MOST_PLACES: Final = 64  # GPUs of a node in columns; one node with more would widen the rows of all
_STEP: Final = 8
_SPARE: Final = 64
# Of `Table.cells`, by number: first as `Gpus`, then which hardware it is.
TOTAL, FREE, PERCENT, MIG, EXTRA, UNTOUCHED, HARDWARE = range(7)
# Of `Table.facts`.
VERSION, STATE, GPUS, ODD, CDI, BUILD, MODEL, CPU, MEMORY, HAS_CPU, HAS_MEMORY = range(11)
UNKNOWN, REFUSED, WIDE, KNOWN = range(4)
"""No such node; one that takes no GPU pods; one with more GPUs than MOST_PLACES; any other."""

Rows = Ints | slice
T = TypeVar("T", bound=np.generic)


class Table:
    """Nodes by rows. Row 0 is of all nodes that are not known."""

    def __init__(self) -> None:
        self.now = 0
        """Number of the last change."""
        self.layout = 0
        """Changes whenever a name gets or loses its row."""
        self.rows: dict[NodeName, int] = {}
        self.ledgers: list[NodeLedger | Refused | None] = [None]
        self.hardware: list[Gpu] = [Gpu(uuid=GpuUuid(""), index=0, model="", memory_mib=0)]
        """What GPUs are, as far as pods may ask, by number; 0 is none."""
        self.models: list[str] = [""]
        self.cells: NDArray[np.int32] = np.zeros((HARDWARE + 1, _SPARE, _STEP), np.int32)
        """Of GPUs that take pods: `[field, row, place]`, of a row in the order in which `place` prefers equals."""
        self.facts: Ints = np.zeros((HAS_MEMORY + 1, _SPARE), np.int64)
        """Of nodes: `[field, row]`."""
        self._spare: list[int] = []
        self._hardware_ids: dict[Gpu, int] = {}
        self._model_ids: dict[str, int] = {"": 0}
        self._builds: dict[tuple[tuple[int, int], ...], int] = {}
        self._inventories: dict[int, tuple[NodeInventory, Sequence[tuple[Gpu, int]], Sequence[int]]] = {}
        """By row: the inventory, its GPUs that take pods and which hardware these are, and facts from ODD to MODEL."""

    def set(self, name: NodeName, ledger: NodeLedger | Refused, left: FreeHost | None, has: FreeHost | None) -> None:
        """A node came or changed: its ledger, what pods leave of its CPU and memory, and what it has of them."""
        hosts = (*of_host(left), *of_host(has))
        row = self.rows.get(name)
        if row is None:
            row = self._new(name)
        before = self.ledgers[row]
        if ledger is before and tuple(self.facts[CPU:, row].tolist()) == hosts:
            return
        self.ledgers[row] = None  # until all is written: after an error, the next try begins again
        if ledger is not before:
            self._write(row, ledger)
        self.now += 1
        self.facts[CPU:, row] = hosts
        self.facts[VERSION, row] = self.now
        self.ledgers[row] = ledger

    def remove(self, name: NodeName) -> None:
        row = self.rows.pop(name)
        self.layout += 1
        self.now += 1
        self.cells[:, row] = 0
        self.facts[:, row] = 0
        self.facts[VERSION, row] = self.now
        self.ledgers[row] = None
        self._inventories.pop(row, None)
        self._spare.append(row)

    def is_bloated(self) -> bool:
        """Whether it remembers mostly hardware of the past: then a fresh one takes its place (`again`)."""
        known = len(self.hardware) + len(self.models) + len(self._builds)
        if known <= 4 * (len(self.rows) + _SPARE):
            return False
        return known > 2 * (len(np.unique(self.cells[HARDWARE])) + 2 * len(self.rows)) + _SPARE

    def again(self) -> "Table":
        """The same without what is no longer needed."""
        fresh = Table()
        for name, row in self.rows.items():
            ledger = self.ledgers[row]
            assert ledger is not None  # noqa: S101 - for the type checker: `rows` has no others
            fresh.set(name, ledger, self.host(row), _host(self.facts[HAS_CPU:, row]))
        return fresh

    def host(self, row: int) -> FreeHost | None:
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
        untouched = (
            FreeGpu(gpu.grantable_mib, gpu.grantable_mib, mig=gpu.mig is not None, extra_mib=gpu.extra_mib)
            for gpu in self.hardware
        )
        empty = np.array([cell(gpu) for gpu in untouched], np.int32).T
        cells[:HARDWARE] = np.where(cells[HARDWARE] > 0, empty[:, cells[HARDWARE]], 0)
        cpu, memory = self.facts[HAS_CPU, rows], self.facts[HAS_MEMORY, rows]
        return Nodes(gpus_of(cells), now.model, cpu, memory, now.models), now

    def _new(self, name: NodeName) -> int:
        if self._spare:
            row = self._spare.pop()
        else:
            row = len(self.ledgers)
            self.ledgers.append(None)
            if row >= self.facts.shape[1]:
                self.facts = np.pad(self.facts, ((0, 0), (0, row)))
                self.cells = np.pad(self.cells, ((0, 0), (0, row), (0, 0)))
        self.rows[name] = row
        self.layout += 1
        return row

    def _write(self, row: int, ledger: NodeLedger | Refused) -> None:
        self.cells[:, row] = 0
        if isinstance(ledger, Refused):
            self.facts[STATE : MODEL + 1, row] = REFUSED, 0, 0, 0, 0, 0
            return
        known = self._inventories.get(row)
        if known is None or known[0] is not ledger.inventory:
            known = self._inventories[row] = self._read(ledger.inventory)
        _, healthy, facts = known
        state = WIDE if len(healthy) > MOST_PLACES else KNOWN
        if healthy and state == KNOWN:
            places = sorted([(FreeGpu.of(gpu, ledger), gpu.index, number) for gpu, number in healthy])
            if (missing := len(places) - self.cells.shape[2]) > 0:
                self.cells = np.pad(self.cells, ((0, 0), (0, 0), (0, -(-missing // _STEP) * _STEP)))
            self.cells[:, row, : len(places)] = np.array([(*cell(free), number) for free, _, number in places]).T
        self.facts[STATE : MODEL + 1, row] = state, len(healthy), *facts

    def _read(self, inventory: NodeInventory) -> tuple[NodeInventory, Sequence[tuple[Gpu, int]], Sequence[int]]:
        gpus = inventory.gpus
        healthy = [(gpu, self._hardware_id(gpu)) for gpu in gpus if gpu.health is GpuHealth.HEALTHY]
        odd = len(healthy) < len(gpus) or any(gpu.mig for gpu in gpus)
        model = self._model_ids.setdefault(name := gpus[0].model if gpus else "", len(self._model_ids))
        if model == len(self.models):
            self.models.append(name)
        return (
            inventory,
            healthy,
            (odd, inventory.hand_over is HandOver.CDI, 0 if odd else self._build(inventory), model),
        )

    def _hardware_id(self, gpu: Gpu) -> int:
        this = Gpu(
            uuid=GpuUuid(""),
            index=0,
            model=gpu.model,
            memory_mib=gpu.memory_mib,
            extra_mib=gpu.extra_mib,
            limit=gpu.limit,
            mig=gpu.mig and MigInstance(gpu=0, number=0, profile=""),
        )
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


class NodeNames(list[NodeName]):
    """Names that are asked about again and again, and do not change: their rows are looked up once."""

    _rows: tuple[weakref.ref[Table], int, Ints] | None = None

    def rows(self, of: Table) -> Ints:
        known = self._rows
        if known is None or known[0]() is not of or known[1] != of.layout:
            found = map(of.rows.get, self, itertools.repeat(0))
            known = self._rows = weakref.ref(of), of.layout, np.fromiter(found, np.int64, len(self))
        return known[2]


def rows_named(table: Table, names: Sequence[NodeName]) -> Ints:
    return (names if isinstance(names, NodeNames) else NodeNames(names)).rows(table)


def with_gpus(table: Table, rows: Rows) -> Ints:
    index = np.arange(table.facts.shape[1])[rows] if isinstance(rows, slice) else rows
    able: Ints = index[(table.facts[STATE, index] == KNOWN) & (table.facts[GPUS, index] > 0)]
    return able


def grown(column: NDArray[T], table: Table, fill: int = 0) -> NDArray[T]:
    rows = table.facts.shape[1]
    if len(column) >= rows:
        return column
    found = np.full((rows, *column.shape[1:]), fill, column.dtype)
    found[: len(column)] = column
    return found


Codes = NDArray[np.uint8]
FITS: Final = 0
UNSEEN: Final = 255  # `place` has to tell
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

    def know(self, hardware: Sequence[Gpu]) -> None:
        if len(hardware) > len(self.open):
            found = [self._ask(each) for each in hardware[len(self.open) :]]
            self.open = np.append(self.open, [is_open for is_open, _, _ in found])
            self.need = np.append(self.need, np.array([need for _, need, _ in found], np.int32))
            self.large = np.append(self.large, [large for _, _, large in found])

    def _ask(self, gpu: Gpu) -> tuple[bool, int, bool]:
        need = self._request.need(gpu).memory_mib
        is_open = self._shape.takes(self._request, gpu) and not self._shape.why_not(gpu)
        return is_open, min(need, MOST_MIB + 1), is_open and gpu.memory_mib >= need

    def of(self, cells: NDArray[np.int32]) -> tuple[Bools, NDArray[np.int32], Bools, Bools]:
        """Which GPUs it may have, what it takes of them, which have the memory, and which have room for it."""
        hardware = cells[HARDWARE]
        is_open, need = self.open[hardware], self.need[hardware]
        roomy = is_open & (np.minimum(cells[FREE], cells[TOTAL] - cells[EXTRA]) >= need)
        fits = roomy & (cells[PERCENT] >= self.percent) if self.percent else roomy
        if self.whole:
            fits = fits & (cells[UNTOUCHED] > 0)
        return is_open, need, roomy, fits


class Fits:
    """On which nodes a pod fits: no policy and no outlook changes that.

    `place` is the reference, also for the words of a refusal. Pods of several containers, of chosen UUIDs or of an
    affinity, and nodes with very many GPUs are placed one by one; the column keeps what was found.
    """

    def __init__(self, shape: RequestShape) -> None:
        self.shape = shape
        is_columnar = len(shape.containers) == 1 and shape.affinity is None and shape.gpus.uuids == ANY_GPU.uuids
        self.rules = Rules(shape) if is_columnar else None
        """None for pods that are placed one by one."""
        self.codes: Codes = np.zeros(0, np.uint8)
        """FITS, UNSEEN, or why not: see `refusal`."""
        self.seen = 0

    def update(self, of: Table) -> None:
        self.codes = grown(self.codes, of, _NO_LEDGER)
        rows = of.changed(self.seen)
        self.seen = of.now
        if isinstance(rows, slice) or len(rows):
            self.codes[rows] = self._codes(of, rows)

    def keep(self, row: int, said: Verdict) -> None:
        """What `place` has said of a row as it is."""
        self.codes[row] = FITS
        if isinstance(said, Refused):
            self.codes[row] = _CODES[said.reason] + PERMANENT * said.permanent + BY_PLACE

    def _codes(self, of: Table, rows: Rows) -> Codes:
        facts, rules = of.facts[:, rows], self.rules
        state = facts[STATE]
        if rules is None:
            return np.where(state >= WIDE, UNSEEN, _NO_LEDGER).astype(np.uint8)
        rules.know(of.hardware)
        cells, gpus = of.cells[:, rows], rules.gpus
        is_open, _, roomy, fits = rules.of(cells)
        found = np.where(np.count_nonzero(fits, axis=1) >= gpus, FITS, UNSEEN).astype(np.uint8)
        full = np.flatnonzero((found == UNSEEN) & (state == KNOWN))
        if len(full):
            found[full] = self._why(rules, facts[:, full], is_open[full], roomy[full], cells[HARDWARE][full])
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
