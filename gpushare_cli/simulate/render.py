"""Plans -> text for people, values for programs, lines of a plot. Pure."""

import itertools
import statistics
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from gpushare import units
from gpushare.identity import NodeName
from gpushare.model.capacity import Ask, FreeGpu, NodeCapacity
from gpushare.model.gpu import Gpu, GpuHealth, label
from gpushare.model.ledger import Grant, LedgerOrRefused, NodeLedger, Refused
from gpushare.units import MemoryUnit, ResourceConfig
from gpushare.wire import pods as pods_wire
from gpushare_cli import console, schedulable, world
from gpushare_cli.plot import Line, Plot, Point
from gpushare_cli.simulate import plan as plans
from gpushare_cli.simulate.plan import AllocationSeries, Plan, Row
from gpushare_cli.simulate.workloads import Outcome, Pod

_FOLLOWED: Final = frozenset({"pod affinity", "topology spread constraints"})
_STEPS: Final = 200  # points of a line that is a mean


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    policy: str
    seed: int
    placed: int
    series: AllocationSeries

    @classmethod
    def of(cls, policy: str, seed: int, plan: Plan) -> "Run":
        return cls(policy=policy, seed=seed, placed=plan.placed, series=plan.series)


def text(plan: Plan, runs: Sequence[Run], unit: MemoryUnit, width: int, *, details: bool) -> str:
    """A line for each policy, why pods are on no node, which GPUs are left; then, if wanted, all pods and nodes."""
    header = ("POLICY", "SEEDS", "PODS PLACED", "GPU MEMORY", "ASKED FOR")
    rows = (_policy(name, found, len(plan.rows)) for name, found in _by_policy(runs).items())
    parts = [console.table([header, *rows], width)]
    if reasons := _refused(plan.rows):
        counted = [(reason, str(count)) for reason, count in reasons.items()]
        parts.append(console.table([("NOT PLACED BECAUSE OF", "PODS"), *counted], width))
    if found := _left_over(plan):
        columns = ("MODEL", "GPUS", "ALLOCATED", "FREE", "TOO SMALL", "NO CPU OR MEMORY")
        lines = []
        for model, left in found.items():
            gpus, *memory = left.values()
            lines.append((model, str(gpus), *(f"{part:.1f}" for part in memory)))
        parts.append(console.table([columns, *lines], width))
    return "\n".join([*parts, *([_table(plan, unit, width)] if details else [])])


def _policy(policy: str, runs: Sequence[Run], pods: int) -> tuple[str, str, str, str, str]:
    placed = _mean_of([run.placed for run in runs], 0)
    allocated = _mean_of([run.series.allocated_percent for run in runs], 1)
    asked = statistics.mean(run.series.asked_percent for run in runs)
    return policy, str(len(runs)), f"{placed} of {pods}", f"{allocated} %", f"{asked:.1f} %"


def _mean_of(values: Sequence[float], digits: int) -> str:
    """With the deviation of the sample, if there are several."""
    mean = f"{statistics.mean(values):.{digits}f}"
    return f"{mean} ± {statistics.stdev(values):.{digits + 1}f}" if len(values) > 1 else mean


def _by_policy(runs: Iterable[Run]) -> dict[str, list[Run]]:
    return {policy: list(of_it) for policy, of_it in itertools.groupby(runs, lambda run: run.policy)}


def _refused(rows: Iterable[Row]) -> dict[str, int]:
    """How many pods are on no node, by what the node lacks that comes closest, the most frequent first."""
    counts = Counter(_reason(row) for row in rows if row.outcome is not Outcome.PLACED)
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def _reason(row: Row) -> str:
    if row.outcome is Outcome.REFUSED:
        return "RefusedByWebhook"
    return "NotReady" if row.pod.problem else plans.reason(row.answers)


def _left_over(plan: Plan) -> dict[str, dict[str, float]]:
    """By model, in GPUs: the memory of all of them, and what of it is free at the end.

    Of that, what is in remainders that no pod of the input fits in, and where one would fit, were there more CPU and
    memory on the node.
    """
    signatures = {row.pod.signature for row in plan.rows if row.pod.signature is not None}
    asks = {signature.ask for signature in signatures if signature.ask.gpus}
    by_model: dict[str, list[float]] = {}
    for room, count in Counter(plan.rooms).items():
        for gpu in room.gpus:
            free = gpu.free_mib / max(gpu.total_mib, 1)
            sums = by_model.setdefault(room.model, [0.0] * 4)
            for i, value in enumerate((1.0, free, *_lost(room, gpu, asks, free))):
                sums[i] += count * value
    return {
        model: {
            "gpus": round(gpus),
            "allocated": gpus - free,
            "free": free,
            "freeTooSmall": too_small,
            "freeWithoutHost": no_host,
        }
        for model, (gpus, free, too_small, no_host) in sorted(by_model.items())
    }


def _lost(room: NodeCapacity, gpu: FreeGpu, asks: Collection[Ask], free: float) -> tuple[float, float]:
    """Of one GPU: free in a remainder that is too small, and free without CPU and memory beside it."""
    fitting = [ask for ask in asks if ask.fits(gpu)]
    if not fitting:
        return (free if asks else 0.0), 0.0
    return 0.0, 0.0 if any(room.host is None or ask.host.fits(room.host) for ask in fitting) else free


def _table(plan: Plan, unit: MemoryUnit, width: int) -> str:
    ledgers = _ledgers(plan.ledgers)
    header = ("POD", "NODE", "CONTAINER", "GPU", "AMOUNT")
    pods = console.table([header, *(line for row in plan.rows for line in _lines(row, ledgers))], width) + "\n"
    nodes = console.table(list(_fill(ledgers, unit)), width)
    used, total = unit.ceil(_used_mib(ledgers.values())), _total_units(ledgers.values(), unit)
    counted = f"units of {unit.name}" if unit.name[0].isdigit() else unit.name
    sums = f"{used}/{total} {counted} ({units.percent(used, total)}%) of GPU memory in use"
    placed = f"{plan.placed} of {len(plan.rows)} pods placed; {sums}\n"
    return (pods if plan.rows else "") + (nodes if ledgers else "") + placed


def _lines(row: Row, ledgers: Mapping[NodeName, NodeLedger]) -> Iterator[tuple[str, ...]]:
    who = f"{row.pod.ref.namespace}/{row.pod.ref.name}"
    if row.node is None:
        yield who, "-", "-", "-", f"{row.outcome.value.lower()}: {row.why}"
        return
    if not row.grants:
        yield who, row.node, "-", "-", "no GPU"
    for i, grant in enumerate(row.grants):
        pod, node = (who, row.node) if i == 0 else ("", "")
        gpus = ",".join(gpu.label for gpu in _gpus(grant, ledgers[row.node]))
        yield pod, node, world.named(grant), gpus, _amount(grant)


def _amount(grant: Grant) -> str:
    if grant.whole:
        return "whole"
    compute = f" and {grant.compute_percent}% of compute" if grant.compute_percent else ""
    return f"{units.memory(grant.memory_mib)}{compute}{' on each' if len(grant.gpus) > 1 else ''}"


def _fill(ledgers: Mapping[NodeName, NodeLedger], unit: MemoryUnit) -> Iterator[Sequence[str]]:
    columns = console.gpu_columns(gpu.index for ledger in ledgers.values() for gpu in ledger.inventory.gpus)
    yield "NODE", *(f"GPU{label(i)}" for i in columns), f"MEMORY({unit.name})"
    for name, ledger in ledgers.items():
        by_index = {gpu.index: gpu for gpu in ledger.inventory.gpus}
        cells = [_cell(by_index[i], ledger, unit) if i in by_index else "-" for i in columns]
        used, total = unit.ceil(_used_mib([ledger])), _total_units([ledger], unit)
        yield name, *cells, f"{used}/{total} ({units.percent(used, total)}%)"


def _cell(gpu: Gpu, ledger: NodeLedger, unit: MemoryUnit) -> str:
    cell = f"{unit.ceil(ledger.used_mib.get(gpu.uuid, 0))}/{unit.floor(gpu.memory_mib)}"
    percent = ledger.used_percent.get(gpu.uuid, 0)
    marks = (
        "whole" if gpu.uuid in ledger.whole else f"{percent}% compute" if percent else "",
        f"of {unit.floor(gpu.grantable_mib)} oversubscribed" if gpu.extra_mib else "",
        gpu.health.value.lower() if gpu.health is not GpuHealth.HEALTHY else "",
    )
    return f"{cell} {', '.join(filter(None, marks))}".rstrip()


def _ledgers(ledgers: Mapping[NodeName, LedgerOrRefused]) -> dict[NodeName, NodeLedger]:
    return {name: ledger for name, ledger in ledgers.items() if isinstance(ledger, NodeLedger)}


def _gpus(grant: Grant, ledger: NodeLedger) -> list[Gpu]:
    inventory = ledger.inventory
    return sorted((inventory.by_uuid[inventory.resolve(uuid)] for uuid in grant.gpus), key=lambda gpu: gpu.index)


def _used_mib(ledgers: Iterable[NodeLedger]) -> int:
    """Held on GPUs that are listed; what is held on one that is gone fills no other."""
    return sum(ledger.used_mib.get(gpu.uuid, 0) for ledger in ledgers for gpu in ledger.inventory.gpus)


def _total_mib(ledgers: Iterable[NodeLedger]) -> int:
    return sum(ledger.inventory.unit.to_mib(ledger.inventory.total_units) for ledger in ledgers)


def _total_units(ledgers: Iterable[NodeLedger], unit: MemoryUnit) -> int:
    return sum(unit.floor(gpu.memory_mib) for ledger in ledgers for gpu in ledger.inventory.gpus)


def overlooked(plan: Plan) -> list[str]:
    found = Counter(what for row in plan.rows for what in _not_evaluated(row.pod))
    return [f"{what} (of {count} pod{'s' if count > 1 else ''})" for what, count in found.items()]


def _not_evaluated(pod: Pod) -> list[str]:
    followed = pod.request is not None and not pods_wire.needs_gpu(pod.value, ResourceConfig(whole_gpus=True))
    found = [what for what in schedulable.overlooked(pod.value, with_host=True) if what not in _FOLLOWED]
    return [
        f"selectors and constraints of {what}" if followed and what == schedulable.CLAIMS else what for what in found
    ]


def as_json(plan: Plan, runs: Sequence[Run], unit: MemoryUnit, notes: Sequence[str]) -> dict[str, Any]:
    ledgers = _ledgers(plan.ledgers)
    used, total = _used_mib(ledgers.values()), _total_mib(ledgers.values())
    return {
        "unit": unit.name,
        "policy": runs[0].policy,
        "pods": [_json_row(row, ledgers) for row in plan.rows],
        "nodes": [_json_node(name, ledger) for name, ledger in plan.ledgers.items()],
        "summary": {
            "pods": len(plan.rows),
            "placed": plan.placed,
            "totalMiB": total,
            **_granted(used, total),
            "refused": _refused(plan.rows),
            "gpus": [
                {"model": model, **{key: round(value, 3) for key, value in found.items()}}
                for model, found in _left_over(plan).items()
            ],
        },
        "runs": [
            {
                "policy": run.policy,
                "seed": run.seed,
                "pods": len(plan.rows),
                "placed": run.placed,
                "allocatedPercent": run.series.allocated_percent,
                "askedPercent": run.series.asked_percent,
            }
            for run in runs
        ],
        "notes": notes,
    }


def _json_row(row: Row, ledgers: Mapping[NodeName, NodeLedger]) -> dict[str, Any]:
    return {
        "namespace": row.pod.ref.namespace,
        "name": row.pod.ref.name,
        "of": row.pod.workload and str(row.pod.workload),
        "outcome": row.outcome.value,
        "node": row.node,
        "containers": [
            {
                "name": grant.container,
                "kind": grant.kind.value,
                "gpus": [{"index": gpu.index, "uuid": gpu.uuid} for gpu in _gpus(grant, ledgers[row.node])],
                "memoryMiB": grant.memory_mib,
                "computePercent": grant.compute_percent,
                "whole": grant.whole,
            }
            for grant in row.grants
            if row.node
        ],
        "message": row.why or None,
        "nodes": [world.as_json(answer) for answer in row.answers],
        "notLookedAt": _not_evaluated(row.pod),
    }


def _json_node(name: NodeName, ledger: LedgerOrRefused) -> dict[str, Any]:
    if isinstance(ledger, Refused):
        return {"name": name, "gpus": [], "totalMiB": 0, "grantedMiB": 0, "usedMiB": 0, "problem": ledger.message}
    gpus = [
        {
            "index": gpu.index,
            "uuid": gpu.uuid,
            "model": gpu.model,
            "health": gpu.health.value,
            "totalMiB": gpu.memory_mib,
            **({"grantableMiB": gpu.grantable_mib} if gpu.extra_mib else {}),
            **_granted(ledger.used_mib.get(gpu.uuid, 0), gpu.memory_mib),
            "computePercent": ledger.used_percent.get(gpu.uuid, 0),
            "whole": gpu.uuid in ledger.whole,
        }
        for gpu in ledger.inventory.gpus
    ]
    used = _used_mib([ledger])
    sums = {"totalMiB": _total_mib([ledger]), "grantedMiB": used, "usedMiB": used}
    return {"name": name, "gpus": gpus, **sums, "problem": None}


def _granted(mib: int, total: int) -> dict[str, int]:
    """Under the names of the version before, too."""
    percent = units.percent(mib, total)
    return {"grantedMiB": mib, "grantedPercent": percent, "usedMiB": mib, "usedPercent": percent}


def plot(runs: Sequence[Run]) -> Plot:
    """How much of the GPUs is allocated, a line for each policy: the mean over its seeds. Some pod must have come."""
    over_time = any(run.series.ends for run in runs)
    lines = []
    for policy, found in _by_policy(runs).items():
        points = _mean([run.series.points for run in found])
        lines.append(Line(name=policy, points=points, note=f"{points[-1][1]:.1f} %"))
    ends = "; ".join(f"{line.name} {line.note}" for line in lines)
    return Plot(
        title="GPU memory that pods get",
        description=f"Allocated part of all GPU memory while pods come. At the end: {ends}.",
        x_label="hours since the first pod" if over_time else "asked for by pods, % of all GPU memory",
        y_label="allocated, % of all GPU memory",
        lines=lines,
    )


def _mean(curves: Sequence[Sequence[Point]]) -> Sequence[Point]:
    """Of several curves, at the same places; a curve stays where it was between its points."""
    if len(curves) == 1:
        return curves[0]
    filled = [np.array(curve).T for curve in curves]
    places = np.linspace(max(xs[0] for xs, _ in filled), min(xs[-1] for xs, _ in filled), _STEPS + 1)
    found = [ys[np.maximum(np.searchsorted(xs, places, side="right") - 1, 0)] for xs, ys in filled]
    return list(zip(places.tolist(), np.mean(found, axis=0).tolist(), strict=True))
