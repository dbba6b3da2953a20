"""Report -> text for people, byte for byte as Aliyun's `kubectl inspect gpushare` prints it, or JSON for programs."""

from collections.abc import Sequence
from typing import Any

from gpushare import units
from gpushare.model.gpu import label
from gpushare.units import MemoryUnit
from gpushare_cli import limits, tables, tabwriter, yamls
from gpushare_cli.limits import LimitRow
from gpushare_cli.report import NodeRow, PodRow, Report


def summary(report: Report) -> str:
    """One line for each node, then the cluster's total."""
    unit = report.unit
    columns = tables.gpu_columns(row.gpu.index for node in report.nodes for row in node.gpus)
    has_pending = any(node.pending_mib for node in report.nodes)
    header = ["NAME", "IPADDRESS", *(f"GPU{label(i)}(Allocated/Total)" for i in columns)]
    header += ["PENDING(Allocated)"] if has_pending else []
    lines = ["\t".join([*header, f"GPU Memory({unit.name})"])]
    lines += [_summary_row(node, unit, columns=columns, has_pending=has_pending) for node in report.nodes]
    lines += ["-" * (len(lines[1]) + 1 + 20 if report.nodes else 20)]  # + 1: the row's newline counts
    lines += ["Allocated/Total GPU Memory In Cluster:", f"{_total(report)}\t", *_beyond_memory(report), ""]
    return tabwriter.layout("\n".join(lines))


def detail(report: Report) -> str:
    """A block for each node with a line for each pod, then the cluster's total."""
    unit = report.unit
    lines: list[str] = []
    dashes = ""
    for node in report.nodes:
        has_pending = bool(node.pending_mib)
        columns = tables.gpu_columns(row.gpu.index for row in node.gpus)
        header = ["NAME", "NAMESPACE", *(f"GPU{label(i)}(Allocated)" for i in columns)]
        header += ["Pending(Allocated)"] if has_pending else []
        rows = [_detail_row(pod, unit, columns=columns, has_pending=has_pending) for pod in node.pods]
        dashes = dashes or "-" * (sum(len(row) + 1 for row in rows) + 10)  # + 1: newlines count
        used, total = unit.ceil(node.used_mib), unit.floor(node.total_mib)
        lines += ["", f"NAME:\t{node.name}", f"IPADDRESS:\t{node.address}", ""]
        lines += ["\t".join(header) + "\t", *rows]
        lines += [f"Allocated :\t{used} ({units.percent(used, total)}%)\t", f"Total :\t{total}\t", dashes]
    lines += ["", "", f"Allocated/Total GPU Memory In Cluster:\t{_total(report)}\t", *_beyond_memory(report), ""]
    return tabwriter.layout("\n".join(lines))


def as_json(report: Report, rows: Sequence[LimitRow] | None = None) -> str:
    """The report for programs, with limits if they were asked for. All memory is in MiB."""
    value = {
        "unit": report.unit.name,
        "totalMiB": report.total_mib,
        "usedMiB": report.used_mib,
        "nodes": [_json_node(node) for node in report.nodes],
        "notes": report.notes,
        **({} if rows is None else {"limits": [limits.as_json(row) for row in rows]}),
    }
    return yamls.dump_json(value)


def _summary_row(node: NodeRow, unit: MemoryUnit, *, columns: Sequence[int], has_pending: bool) -> str:
    by_index = {row.gpu.index: row for row in node.gpus}
    cells = [node.name, node.address]
    for i in columns:
        row = by_index.get(i)
        cells.append(f"{unit.ceil(row.used_mib)}/{unit.floor(row.total_mib)}" if row else "0/0")
    if has_pending:
        cells.append(str(unit.ceil(node.pending_mib)) if node.pending_mib else "")
    cells.append(f"{unit.ceil(node.used_mib)}/{unit.floor(node.total_mib)}")
    return "\t".join(cells)


def _detail_row(pod: PodRow, unit: MemoryUnit, *, columns: Sequence[int], has_pending: bool) -> str:
    cells = [pod.name, pod.namespace, *(str(unit.ceil(pod.on(i).memory_mib)) for i in columns)]
    cells += [str(unit.ceil(pod.pending_mib))] if has_pending else []
    return "\t".join(cells) + "\t"


def _beyond_memory(report: Report) -> list[str]:
    """What Aliyun's layout has no place for: a table of its own, if there is any of it."""
    rows = [
        f"{node.name}\t{row.gpu.label}\t{row.compute_percent}%\t{', '.join(row.whole)}"
        for node in report.nodes
        for row in node.gpus
        if row.compute_percent or row.whole
    ]
    tables_ = ["", "NAME\tGPU\tCompute(Allocated)\tWhole GPU Of", *rows] if rows else []
    unit = report.unit
    oversubscribed = [
        f"{node.name}\t{row.gpu.label}\t{row.gpu.factor}\t"
        f"{unit.ceil(row.used_mib)}/{unit.floor(row.grantable_mib)}/{unit.floor(row.total_mib)}"
        for node in report.nodes
        for row in node.gpus
        if row.gpu.extra_mib
    ]
    if oversubscribed:
        tables_ += ["", "NAME\tGPU\tOversubscription\tAllocated/Grantable/Total", *oversubscribed]
    return tables_


def _total(report: Report) -> str:
    used, total = report.unit.ceil(report.used_mib), report.unit.floor(report.total_mib)
    return f"{used}/{total} ({units.percent(used, total)}%)"


def _json_node(node: NodeRow) -> dict[str, Any]:
    return {
        "name": node.name,
        "address": node.address,
        "unit": node.unit.name,
        "totalMiB": node.total_mib,
        "usedMiB": node.used_mib,
        "pendingMiB": node.pending_mib,
        "gpus": [
            {
                "index": row.gpu.index,
                "uuid": row.gpu.uuid,
                "model": row.gpu.model,
                "health": row.gpu.health.value,
                "reason": row.gpu.reason,
                "totalMiB": row.total_mib,
                **({"grantableMiB": row.grantable_mib} if row.gpu.extra_mib else {}),
                "usedMiB": row.used_mib,
                "computePercent": row.compute_percent,
                "whole": bool(row.whole),
            }
            for row in node.gpus
        ],
        "pods": [
            {
                "namespace": pod.namespace,
                "name": pod.name,
                "gpus": [
                    {
                        "index": index,
                        "usedMiB": held.memory_mib,
                        "computePercent": held.compute_percent,
                        "whole": held.whole,
                    }
                    for index, held in sorted(pod.held.items())
                ],
                "pendingMiB": pod.pending_mib,
            }
            for pod in node.pods
        ],
    }
