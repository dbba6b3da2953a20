"""`gpushare inspect`, `kubectl inspect gpushare`: byte for byte as Aliyun's plug-in prints it, or JSON for programs."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from gpushare import names, units
from gpushare.identity import NodeName
from gpushare.kube import api as kube
from gpushare.kube.api import KubeApi
from gpushare.model.gpu import GpuHealth, Mode, label
from gpushare_cli import arguments, bars, console, holders, reading, usage
from gpushare_cli.arguments import Command, argument, switch
from gpushare_cli.console import FAILED, OK, Look, Streams
from gpushare_cli.dashboard import views
from gpushare_cli.holders import ClaimedGpu, NodeRow, Report
from gpushare_cli.usage import LimitRow, NodeUse

_PADDING: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    node: str | None = argument(metavar="NODE", nargs="?", default=None, help="only this node")
    details: bool = switch("-d", "--details", what="one line for each pod")
    limits: bool = switch(
        "--limits", what="also what holds each container to its share, and what it uses, as the device plugins tell"
    )
    bars: bool = switch("--bars", what="also each GPU as a bar with a block for each pod")
    installation: str = arguments.installation("the device plugins, for --limits")
    output: str = arguments.output()


def run(api: KubeApi, streams: Streams, options: Options) -> int:
    """Print who holds how much of which GPU. The exit code. KubeError if the cluster cannot be read."""
    try:
        cluster = reading.on_nodes(api, options.node)
    except kube.NotFoundError:
        if options.node is None:
            raise
        return streams.error(f"there is no node {options.node}")
    built = holders.build(cluster.nodes, cluster.pods, cluster.unhealthy)
    unlisted = []
    if any(node.inventory.dra for node in built.nodes):
        claims, why = reading.claims(api)
        built, unlisted = holders.with_claims(built, claims), [why] if why else []
    notes, uses, rows = [*cluster.notes, *unlisted, *built.notes, *_out_of_use(built)], {}, None
    if options.limits:
        if holding := [node.name for node in built.nodes if node.pods or node.claimed]:
            uses = dict(usage.read(api, holding, options.installation))
        rows = usage.rows_of(built, uses)
        notes += usage.notes(uses, [(node.name, row.gpu) for node in built.nodes for row in node.gpus])
    streams.note(*notes)
    if built.nodes or options.output != "table":
        streams.answer(
            options.output,
            lambda: as_value(built, rows),
            lambda: "\n".join(_tables(built, rows, uses, options, streams.width)),
        )
    if built.nodes:
        return OK
    where = f"node {options.node} shares no GPU" if options.node else "no node of this cluster shares a GPU"
    streams.err.write(
        f"{where}: neither {names.GPU_MEM} in its status nor an inventory; is the device plugin running there?\n"
    )
    return FAILED


def _tables(
    built: Report, rows: Sequence[LimitRow] | None, uses: Mapping[NodeName, NodeUse], options: Options, width: int
) -> Iterator[str]:
    yield detail(built) if options.details else summary(built)
    if options.bars:
        look = replace(Look.of_output(width), colour=False)
        shown = [views.of_row(node, uses.get(node.name)) for node in built.nodes]
        lines = [*bars.of_nodes(shown, bars.MARKS[look.unicode]), bars.legend(bars.MARKS[look.unicode])]
        yield console.printed(lines, look)
    if rows is not None:
        yield console.table([usage.HEADER, *usage.cells(rows)], width)


def _out_of_use(built: Report) -> Iterator[str]:
    for node in built.nodes:
        for gpu in node.inventory.gpus:
            if gpu.health is not GpuHealth.HEALTHY:
                yield f"node {node.name}: GPU{gpu.label} ({gpu.uuid}) is {gpu.why}; nothing new is placed on it"
        for left_out in node.inventory.left_out:
            yield f"node {node.name}: GPU{left_out.index} is not shared: {left_out.reason}"


def summary(report: Report) -> str:
    unit = report.unit
    columns = console.gpu_columns(row.gpu.index for node in report.nodes for row in node.gpus)
    has_pending = any(node.pending_mib for node in report.nodes)
    header = ["NAME", "IPADDRESS", *(f"GPU{label(i)}(Allocated/Total)" for i in columns)]
    header += ["PENDING(Allocated)"] if has_pending else []
    lines = ["\t".join([*header, f"GPU Memory({unit.name})"])]
    for node in report.nodes:
        sums = {row.gpu.index: f"{unit.ceil(row.used_mib)}/{unit.floor(row.total_mib)}" for row in node.gpus}
        cells = [node.name, node.address, *(sums.get(i, "0/0") for i in columns)]
        if has_pending:
            cells.append(str(unit.ceil(node.pending_mib)) if node.pending_mib else "")
        lines.append("\t".join([*cells, f"{unit.ceil(node.used_mib)}/{unit.floor(node.total_mib)}"]))
    lines += ["-" * (len(lines[1]) + 1 + 20 if report.nodes else 20)]  # + 1: the row's newline counts
    lines += ["Allocated/Total GPU Memory In Cluster:", f"{_total(report)}\t"]
    lines += [*_beyond_memory(report), *_claimed(report), ""]
    return layout("\n".join(lines))


def detail(report: Report) -> str:
    unit = report.unit
    lines: list[str] = []
    dashes = ""
    for node in report.nodes:
        has_pending = bool(node.pending_mib)
        columns = console.gpu_columns(row.gpu.index for row in node.gpus)
        header = ["NAME", "NAMESPACE", *(f"GPU{label(i)}(Allocated)" for i in columns)]
        header += ["Pending(Allocated)"] if has_pending else []
        rows = []
        for pod in node.pods:
            cells = [pod.name, pod.namespace, *(str(unit.ceil(pod.on(i).memory_mib)) for i in columns)]
            cells += [str(unit.ceil(pod.pending_mib))] if has_pending else []
            rows.append("\t".join(cells) + "\t")
        dashes = dashes or "-" * (sum(len(row) + 1 for row in rows) + 10)  # + 1: newlines count
        used, total = unit.ceil(node.used_mib), unit.floor(node.total_mib)
        lines += ["", f"NAME:\t{node.name}", f"IPADDRESS:\t{node.address}", ""]
        lines += ["\t".join(header) + "\t", *rows]
        lines += [f"Allocated :\t{used} ({units.percent(used, total)}%)\t", f"Total :\t{total}\t", dashes]
    lines += ["", "", f"Allocated/Total GPU Memory In Cluster:\t{_total(report)}\t", *_beyond_memory(report)]
    lines += [*_claimed(report, named=True), ""]
    return layout("\n".join(lines))


def as_value(report: Report, rows: Sequence[LimitRow] | None = None) -> dict[str, Any]:
    return {
        "unit": report.unit.name,
        "totalMiB": report.total_mib,
        **holders.granted_json(report.used_mib),
        "nodes": [_json_node(node) for node in report.nodes],
        "notes": report.notes,
        **({} if rows is None else {"limits": [usage.as_json(row) for row in rows]}),
    }


def _beyond_memory(report: Report) -> list[str]:
    """What Aliyun's layout has no place for: a table of its own, if there is any of it."""
    unit, rows = report.unit, [(f"{node.name}\t{row.gpu.label}", row) for node in report.nodes for row in node.gpus]
    shared = [
        f"{gpu}\t{row.compute_percent}%\t{', '.join(row.whole)}"
        for gpu, row in rows
        if row.compute_percent or row.whole
    ]
    oversubscribed = [
        f"{gpu}\t{row.gpu.factor}\t"
        f"{unit.ceil(row.used_mib)}/{unit.floor(row.grantable_mib)}/{unit.floor(row.total_mib)}"
        for gpu, row in rows
        if row.gpu.extra_mib
    ]
    return [
        *(["", "NAME\tGPU\tCompute(Allocated)\tWhole GPU Of", *shared] if shared else []),
        *(["", "NAME\tGPU\tOversubscription\tAllocated/Grantable/Total", *oversubscribed] if oversubscribed else []),
    ]


def _claimed(report: Report, *, named: bool = False) -> list[str]:
    """GPUs that ResourceClaims share, with the number of claims that hold some of them, or their names."""
    unit, lines = report.unit, []
    for node in report.nodes:
        for row in node.claimed:
            held, claims = ("?", "?") if row.claims is None else (unit.ceil(row.held_mib or 0), len(row.claims))
            if named and row.claims is not None:
                claims = ", ".join(f"{claim} ({unit.ceil(mib)})" for claim, mib in row.claims)
            health = ": ".join(filter(None, (row.gpu.health.value, row.gpu.reason)))
            size = f"{held}/{unit.floor(row.gpu.memory_mib)}"
            lines.append(f"{node.name}\t{row.gpu.label}\t{Mode.DRA.value}\t{row.gpu.model}\t{size}\t{claims}\t{health}")
    header = f"NAME\tGPU\tMode\tModel\tAllocated/Total({unit.name})\tClaims\tHealth"
    return ["", header, *lines] if lines else []


def _total(report: Report) -> str:
    used, total = report.unit.ceil(report.used_mib), report.unit.floor(report.total_mib)
    return f"{used}/{total} ({units.percent(used, total)}%)"


def _json_node(node: NodeRow) -> dict[str, Any]:
    return {
        "name": node.name,
        "address": node.address,
        "unit": node.inventory.unit.name,
        "totalMiB": node.total_mib,
        **holders.granted_json(node.used_mib),
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
                **_held(row.used_mib, row.compute_percent, whole=bool(row.whole)),
            }
            for row in node.gpus
        ],
        "pods": [
            {
                "namespace": pod.namespace,
                "name": pod.name,
                "gpus": [
                    {"index": i, **_held(held.memory_mib, held.compute_percent, whole=held.whole)}
                    for i, held in sorted(pod.held.items())
                ],
                "pendingMiB": pod.pending_mib,
            }
            for pod in node.pods
        ],
        **({"draGpus": [_json_claimed(row) for row in node.claimed]} if node.claimed else {}),
    }


def _json_claimed(row: ClaimedGpu) -> dict[str, Any]:
    claims = None
    if row.claims is not None:
        claims = [{"namespace": claim.namespace, "name": claim.name, "heldMiB": mib} for claim, mib in row.claims]
    return {
        "index": row.gpu.index,
        "uuid": row.gpu.uuid,
        "model": row.gpu.model,
        "mode": Mode.DRA.value,
        "health": row.gpu.health.value,
        "reason": row.gpu.reason,
        "memoryMiB": row.gpu.memory_mib,
        "heldMiB": row.held_mib,
        "claims": claims,
    }


def _held(mib: int, compute_percent: int, *, whole: bool) -> dict[str, Any]:
    return {**holders.granted_json(mib), "computePercent": compute_percent, "whole": whole}


def layout(text: str) -> str:
    """Replace tabs by spaces as Go's text/tabwriter does, on whose columns users' scripts rely.

    A cell ends with a tab. Cells of consecutive lines at the same position form a column as wide as its widest cell
    plus the padding; what follows a line's last tab belongs to no column and is written as it is.
    """
    lines = [line.split("\t") for line in text.split("\n")]
    for column in range(max(map(len, lines)) - 1):
        for has_cell, block in itertools.groupby(lines, key=lambda cells: len(cells) > column + 1):
            rows = list(block) if has_cell else []
            width = max((len(cells[column]) for cells in rows), default=0) + _PADDING
            for cells in rows:
                cells[column] = cells[column].ljust(width)
    return "\n".join(map("".join, lines))


COMMAND: Final = Command(
    name="inspect",
    what="who holds how much of which GPU",
    exit_codes="done; 1 the cluster cannot be read or shares no GPU; 2 wrong arguments.",
    examples=(
        ("Who holds how much, node by node", "gpushare inspect"),
        ("One node, a line for each pod", "gpushare inspect node-a --details"),
        ("Also as bars, with a block for each pod", "gpushare inspect --bars"),
        ("What holds each container to its share, and what it uses", "gpushare inspect --limits"),
    ),
    description="Print who holds how much memory of which GPU.",
    options=Options,
    run=lambda call: run(call.api(), call.streams, call.options(Options)),
)
PLUGIN: Final = replace(  # the same as kubectl's plug-in
    COMMAND,
    examples=(
        ("Who holds how much, node by node", "kubectl inspect gpushare"),
        ("One node, a line for each pod", "kubectl inspect gpushare node-a -d"),
    ),
)
