"""A plan -> text for people, or JSON for programs. Pure."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from gpushare import units
from gpushare.cluster.node_ledger import LedgerOrRefused
from gpushare.identity import NodeName
from gpushare.model.allocation import Grant, Refused
from gpushare.model.gpu import Gpu, GpuHealth, label
from gpushare.model.ledger import NodeLedger
from gpushare.units import MemoryUnit
from gpushare.wire import fields
from gpushare.wire import pods as pods_wire
from gpushare_cli import console, schedulable, world
from gpushare_cli.simulate import summary, summary_text
from gpushare_cli.simulate.plan import Outcome, Plan, Row
from gpushare_cli.simulate.summary import Run


def text(plan: Plan, runs: Sequence[Run], unit: MemoryUnit, width: int, *, details: bool) -> str:
    """The summary, and below it the tables of pods and nodes if these are wanted."""
    parts = [summary_text.text(plan, runs, width)]
    if details:
        parts.append(table(plan, unit, width))
    return "\n".join(parts)


def table(plan: Plan, unit: MemoryUnit, width: int) -> str:
    """A line for each container of each pod, one for each node, and the sums."""
    ledgers = _ledgers(plan.ledgers)
    header = ("POD", "NODE", "CONTAINER", "GPU", "AMOUNT")
    pods = console.table([header, *(line for row in plan.rows for line in _lines(row, plan))], width) + "\n"
    nodes = console.table(list(_fill(ledgers, unit)), width)
    return (pods if plan.rows else "") + (nodes if ledgers else "") + f"{_sums(plan, ledgers, unit)}\n"


def overlooked(plan: Plan) -> list[str]:
    """What pods demand of a node that is not evaluated, with how many of them do."""
    found: dict[str, int] = {}
    for row in plan.rows:
        for what in not_evaluated(row.pod.value):
            found[what] = found.get(what, 0) + 1
    return [f"{what} (of {count} pod{'s' if count > 1 else ''})" for what, count in found.items()]


_FOLLOWED: Final = frozenset({"pod affinity", "topology spread constraints"})


def not_evaluated(pod: Mapping[str, Any]) -> list[str]:
    """What a pod demands, beside CPU and memory, that a simulation does not look at."""
    found = [what for what in schedulable.overlooked(pod) if what not in _FOLLOWED]
    others = "CPU, memory and other resources"
    if others not in found:
        return found
    rest = {resource for _, _, container in pods_wire.containers(pod) for resource in _resources(container)}
    named = ["other resources"] if rest - {"cpu", "memory", *schedulable.RESOURCES} else []
    return [*named, *(what for what in found if what != others)]


def _resources(container: Mapping[str, Any]) -> Iterator[str]:
    resources = fields.mapping(container, "resources", "container")
    for key in ("limits", "requests"):
        yield from fields.mapping(resources, key, "container.resources")


def as_json(plan: Plan, runs: Sequence[Run], unit: MemoryUnit, notes: Sequence[str]) -> dict[str, Any]:
    """The plan for programs. All memory is in MiB."""
    ledgers = _ledgers(plan.ledgers)
    used, total = _used_mib(ledgers.values()), _total_mib(ledgers.values())
    return {
        "unit": unit.name,
        "policy": runs[0].policy,
        "pods": [_json_row(row, plan) for row in plan.rows],
        "nodes": [_json_node(name, ledger) for name, ledger in plan.ledgers.items()],
        "summary": {
            "pods": len(plan.rows),
            "placed": _placed(plan),
            "totalMiB": total,
            "usedMiB": used,
            "usedPercent": units.percent(used, total),
            "refused": summary.refused(plan.rows),
            "gpus": [summary_text.stranded_json(each) for each in summary.stranded(plan)],
        },
        "runs": [summary_text.run_json(each) for each in runs],
        "notes": notes,
    }


def amount(grant: Grant) -> str:
    """What a container gets of each of its GPUs, in words."""
    each = " on each" if len(grant.gpus) > 1 else ""
    if grant.whole:
        return "whole"
    compute = f" and {grant.compute_percent}% of compute" if grant.compute_percent else ""
    return f"{units.memory(grant.memory_mib)}{compute}{each}"


def _lines(row: Row, plan: Plan) -> Iterator[tuple[str, ...]]:
    who = f"{row.pod.ref.namespace}/{row.pod.ref.name}"
    if row.outcome is not Outcome.PLACED or row.node is None:
        yield who, "-", "-", "-", f"{row.outcome.value.lower()}: {row.why}"
        return
    if not row.grants:
        yield who, row.node, "-", "-", "no GPU"
    for i, grant in enumerate(row.grants):
        pod, node = (who, row.node) if i == 0 else ("", "")
        gpus = ",".join(gpu.label for gpu in _gpus(grant, plan.ledgers[row.node]))
        yield pod, node, world.named(grant), gpus, amount(grant)


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
    marks = []
    if gpu.uuid in ledger.whole:
        marks.append("whole")
    elif percent := ledger.used_percent.get(gpu.uuid, 0):
        marks.append(f"{percent}% compute")
    if gpu.extra_mib:
        marks.append(f"of {unit.floor(gpu.grantable_mib)} oversubscribed")
    if gpu.health is not GpuHealth.HEALTHY:
        marks.append(gpu.health.value.lower())
    return f"{cell} {', '.join(marks)}" if marks else cell


def _sums(plan: Plan, ledgers: Mapping[NodeName, NodeLedger], unit: MemoryUnit) -> str:
    used, total = unit.ceil(_used_mib(ledgers.values())), _total_units(ledgers.values(), unit)
    counted = f"units of {unit.name}" if unit.name[0].isdigit() else unit.name
    memory = f"{used}/{total} {counted} ({units.percent(used, total)}%) of GPU memory in use"
    return f"{_placed(plan)} of {len(plan.rows)} pods placed; {memory}"


def _placed(plan: Plan) -> int:
    return sum(row.outcome is Outcome.PLACED for row in plan.rows)


def _ledgers(ledgers: Mapping[NodeName, LedgerOrRefused]) -> dict[NodeName, NodeLedger]:
    return {name: ledger for name, ledger in ledgers.items() if isinstance(ledger, NodeLedger)}


def _gpus(grant: Grant, ledger: LedgerOrRefused | None) -> list[Gpu]:
    if not isinstance(ledger, NodeLedger):
        return []
    inventory = ledger.inventory
    return sorted((inventory.by_uuid[inventory.resolve(uuid)] for uuid in grant.gpus), key=lambda gpu: gpu.index)


def _used_mib(ledgers: Iterable[NodeLedger]) -> int:
    """Held on GPUs that are listed; what is held on one that is gone fills no other."""
    return sum(ledger.used_mib.get(gpu.uuid, 0) for ledger in ledgers for gpu in ledger.inventory.gpus)


def _total_mib(ledgers: Iterable[NodeLedger]) -> int:
    return sum(ledger.inventory.unit.to_mib(ledger.inventory.total_units) for ledger in ledgers)


def _total_units(ledgers: Iterable[NodeLedger], unit: MemoryUnit) -> int:
    return sum(unit.floor(gpu.memory_mib) for ledger in ledgers for gpu in ledger.inventory.gpus)


def _json_row(row: Row, plan: Plan) -> dict[str, Any]:
    ledger = plan.ledgers[row.node] if row.node else None
    return {
        "namespace": row.pod.ref.namespace,
        "name": row.pod.ref.name,
        "of": row.pod.of or None,
        "outcome": row.outcome.value,
        "node": row.node,
        "containers": [_json_grant(grant, ledger) for grant in row.grants],
        "message": row.why or None,
        "nodes": [world.as_json(answer) for answer in row.answers],
        "notLookedAt": not_evaluated(row.pod.value),
    }


def _json_grant(grant: Grant, ledger: LedgerOrRefused | None) -> dict[str, Any]:
    return {
        "name": grant.container,
        "kind": grant.kind.value,
        "gpus": [{"index": gpu.index, "uuid": gpu.uuid} for gpu in _gpus(grant, ledger)],
        "memoryMiB": grant.memory_mib,
        "computePercent": grant.compute_percent,
        "whole": grant.whole,
    }


def _json_node(name: NodeName, ledger: LedgerOrRefused) -> dict[str, Any]:
    if isinstance(ledger, Refused):
        return {"name": name, "gpus": [], "totalMiB": 0, "usedMiB": 0, "problem": ledger.message}
    used, total = _used_mib([ledger]), _total_mib([ledger])
    return {
        "name": name,
        "gpus": [
            {
                "index": gpu.index,
                "uuid": gpu.uuid,
                "model": gpu.model,
                "health": gpu.health.value,
                "totalMiB": gpu.memory_mib,
                **({"grantableMiB": gpu.grantable_mib} if gpu.extra_mib else {}),
                "usedMiB": ledger.used_mib.get(gpu.uuid, 0),
                "usedPercent": units.percent(ledger.used_mib.get(gpu.uuid, 0), gpu.memory_mib),
                "computePercent": ledger.used_percent.get(gpu.uuid, 0),
                "whole": gpu.uuid in ledger.whole,
            }
            for gpu in ledger.inventory.gpus
        ],
        "totalMiB": total,
        "usedMiB": used,
        "problem": None,
    }
