"""What plans come to, in a few numbers. Pure."""

import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gpushare.model.capacity import Ask, FreeGpu, NodeCapacity
from gpushare_cli.simulate import refusals
from gpushare_cli.simulate.curve import Curve
from gpushare_cli.simulate.plan import Outcome, Plan, Row


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One policy with one seed."""

    policy: str
    seed: int
    pods: int
    placed: int
    curve: Curve


@dataclass(frozen=True, slots=True)
class Spread:
    """A number over several seeds."""

    mean: float
    deviation: float
    """Of the sample; 0 for one seed."""

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """Of at least one number."""
        return cls(statistics.mean(values), statistics.stdev(values) if len(values) > 1 else 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stranded:
    """Free memory of all GPUs of a model, in GPUs."""

    model: str
    gpus: int
    allocated: float
    free: float
    too_small: float
    """Of it in remainders that no pod of the input fits in."""
    no_host: float
    """Of it where one would fit, were there more CPU and memory on the node."""


def refused(rows: Iterable[Row]) -> dict[str, int]:
    """How many pods are on no node, by what the node lacks that comes closest, the most frequent first."""
    counts = Counter(_reason(row) for row in rows if row.outcome is not Outcome.PLACED)
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def stranded(plan: Plan) -> list[Stranded]:
    """By model, what is free at the end and which of it no pod of the input could use."""
    asks = list(dict.fromkeys(kind.ask for kind in plan.kinds if kind.ask.gpus))
    by_model: dict[str, list[float]] = {}
    for room, count in Counter(plan.rooms).items():
        if not room.gpus:
            continue
        sums = by_model.setdefault(room.model, [0.0] * 4)
        for gpu in room.gpus:
            free = gpu.free_mib / max(gpu.total_mib, 1)
            found = (1.0, free, *_lost(room, gpu, asks, free))
            for i, value in enumerate(found):
                sums[i] += count * value
    return [
        Stranded(
            model=model,
            gpus=round(gpus),
            allocated=gpus - free,
            free=free,
            too_small=too_small,
            no_host=no_host,
        )
        for model, (gpus, free, too_small, no_host) in sorted(by_model.items())
    ]


def by_policy(runs: Iterable[Run]) -> dict[str, list[Run]]:
    """In their order."""
    found: dict[str, list[Run]] = {}
    for run in runs:
        found.setdefault(run.policy, []).append(run)
    return found


def _lost(room: NodeCapacity, gpu: FreeGpu, asks: Sequence[Ask], free: float) -> tuple[float, float]:
    """Of one GPU: free in a remainder that is too small, and free without CPU and memory beside it."""
    if not free or not asks:
        return 0.0, 0.0
    fitting = [ask for ask in asks if ask.fits(gpu)]
    if not fitting:
        return free, 0.0
    return 0.0, 0.0 if any(ask.fits_host(room.host) for ask in fitting) else free


def _reason(row: Row) -> str:
    if row.outcome is Outcome.REFUSED:
        return "RefusedByWebhook"
    return "NotReady" if row.pod.problem else refusals.reason(row.answers)
