"""On which nodes of the table a pod fits, as a column that follows it. Pure.

`place` is the reference, also for the words of a refusal. Pods of several containers, of chosen UUIDs or of an
affinity, and nodes with very many GPUs are placed one by one; the column keeps what was found.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from gpushare.model.gpu import Gpu
from gpushare.model.ledger import RefusalReason, Refused, Verdict
from gpushare.model.request import ANY_GPU, RequestShape
from gpushare.placement import table
from gpushare.placement.columns import MOST_MIB, Bools, Ints
from gpushare.placement.place import barred_by_kind
from gpushare.placement.table import Rows, Table

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
        is_open = self._shape.takes(self._request, gpu) and not barred_by_kind(self._shape, [gpu])
        return is_open, min(need, MOST_MIB + 1), is_open and gpu.memory_mib >= need

    def of(self, cells: NDArray[np.int32]) -> tuple[Bools, NDArray[np.int32], Bools, Bools]:
        """Which GPUs it may have, what it takes of them, which have the memory, and which have room for it."""
        hardware = cells[table.HARDWARE]
        is_open, need = self.open[hardware], self.need[hardware]
        roomy = is_open & (np.minimum(cells[table.FREE], cells[table.TOTAL] - cells[table.EXTRA]) >= need)
        fits = roomy & (cells[table.PERCENT] >= self.percent) if self.percent else roomy
        if self.whole:
            fits = fits & (cells[table.UNTOUCHED] > 0)
        return is_open, need, roomy, fits


class Fits:
    """On which nodes a pod fits: no policy and no outlook changes that."""

    def __init__(self, shape: RequestShape) -> None:
        self.shape = shape
        is_columnar = len(shape.containers) == 1 and shape.affinity is None and shape.gpus.uuids == ANY_GPU.uuids
        self.rules = Rules(shape) if is_columnar else None
        """None for pods that are placed one by one."""
        self.codes: Codes = np.zeros(0, np.uint8)
        """FITS, UNSEEN, or why not: see `refusal`."""
        self.seen = 0

    def update(self, of: Table) -> None:
        if len(self.codes) < of.facts.shape[1]:
            missing = of.facts.shape[1] - len(self.codes)
            self.codes = np.append(self.codes, np.full(missing, _NO_LEDGER, np.uint8))
        rows = of.changed(self.seen)
        self.seen = of.now
        if isinstance(rows, slice) or len(rows):
            self.codes[rows] = self._codes(of, rows)

    @property
    def nbytes(self) -> int:
        return self.codes.nbytes

    def keep(self, row: int, said: Verdict) -> None:
        """What `place` has said of a row as it is."""
        self.codes[row] = FITS
        if isinstance(said, Refused):
            self.codes[row] = _CODES[said.reason] + PERMANENT * said.permanent + BY_PLACE

    def _codes(self, of: Table, rows: Rows) -> Codes:
        facts, rules = of.facts[:, rows], self.rules
        state = facts[table.STATE]
        if rules is None:
            return np.where(state >= table.WIDE, UNSEEN, _NO_LEDGER).astype(np.uint8)
        rules.know(of.hardware)
        cells, gpus = of.cells[:, rows], rules.gpus
        is_open, _, roomy, fits = rules.of(cells)
        found = np.where(np.count_nonzero(fits, axis=1) >= gpus, FITS, UNSEEN).astype(np.uint8)
        full = np.flatnonzero((found == UNSEEN) & (state == table.KNOWN))
        if len(full):
            found[full] = self._why(rules, facts[:, full], is_open[full], roomy[full], cells[table.HARDWARE][full])
        found[state == table.WIDE] = UNSEEN
        found[state <= table.REFUSED] = _NO_LEDGER
        if self.shape.only_cdi:
            found[(state >= table.WIDE) & (facts[table.CDI] == 0)] = _NEVER_HANDED
        return found

    @staticmethod
    def _why(rules: Rules, facts: Ints, is_open: Bools, roomy: Bools, hardware: NDArray[np.int32]) -> Codes:
        """In the order of `place`."""
        n_open, odd = np.count_nonzero(is_open, axis=1), facts[table.ODD] > 0
        never = np.count_nonzero(rules.large[hardware], axis=1) < rules.gpus
        lacking: int | Codes = _CODES[RefusalReason.NO_UNTOUCHED_GPU]
        if not rules.whole:
            enough = np.count_nonzero(roomy, axis=1) >= rules.gpus
            memory, compute = RefusalReason.INSUFFICIENT_GPU_MEMORY, RefusalReason.INSUFFICIENT_GPU_COMPUTE
            lacking = np.where(enough, _CODES[compute], _CODES[memory])
        others = odd | (n_open < facts[table.GPUS])
        found: Codes = np.select(
            [facts[table.GPUS] == 0, facts[table.GPUS] < rules.gpus, n_open < rules.gpus],
            [np.full(len(odd), _NONE_HEALTHY), np.full(len(odd), _TOO_FEW), _NO_MATCH + BY_PLACE * odd],
            lacking + PERMANENT * never + BY_PLACE * others,
        ).astype(np.uint8)
        return found


def refusal(code: int) -> tuple[RefusalReason, bool]:
    """Why a pod does not fit, and whether that is for good."""
    return _REASONS[code % BY_PLACE - 1], code >= PERMANENT
