"""What commands have in common, and those that are short. Answers go to `out`, everything else to `err`."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from gpushare import names
from gpushare.errors import GpuShareError, SettingsError, WireError
from gpushare.identity import NodeName
from gpushare.kube import api as kube
from gpushare.kube.api import KubeApi
from gpushare.model.gpu import GpuHealth
from gpushare_cli import bars, gather, limits, render, report, tables, terminal, usage, yamls
from gpushare_cli.bars import Look
from gpushare_cli.dashboard import views
from gpushare_cli.terminal import Writer
from gpushare_cli.usage import NodeUse

OK: Final = 0
FAILED: Final = 1  # the cluster cannot be read, or it has nothing to show
USAGE: Final = 2
BAD: Final = 3  # the answer is a bad one: a pod fits nowhere, or errors were found


class NoClusterError(GpuShareError):
    """There is no usable kubeconfig."""


class NotAllowedError(GpuShareError):
    """The API server does not let this user do it; says which right is needed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Streams:
    """Where a command writes."""

    out: Writer
    err: Writer
    width: int = tables.ENDLESS
    """Of the lines of tables."""

    def note(self, text: str) -> None:
        """Say something beside the answer."""
        self.err.write(f"note: {terminal.one_line(text)}\n")
        self.err.flush()

    def progress(self, text: str) -> None:
        """Say how far it is."""
        self.err.write(f"{terminal.one_line(text)}\n")
        self.err.flush()

    def error(self, text: object) -> int:
        """Say why there is no answer. The exit code."""
        self.err.write(f"error: {terminal.one_line(str(text))}\n")
        return FAILED


def answer(streams: Streams, command: Callable[[], int]) -> int:
    """Run a command; what keeps it from an answer becomes a message. The exit code."""
    try:
        return command()
    except SettingsError as error:
        streams.error(error)
        return USAGE
    except kube.KubeError as error:
        return streams.error(_told(error))
    except (NoClusterError, NotAllowedError, WireError) as error:
        return streams.error(error)


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspect:
    """What of the cluster is shown."""

    node: str | None = None
    details: bool = False
    limits: bool = False
    output: str = "table"
    bars: Look | None = None
    installation: str = names.NAMESPACE


def inspect(api: KubeApi, streams: Streams, options: Inspect) -> int:
    """Print who holds how much of which GPU. The exit code.

    Raises:
        KubeError: the cluster cannot be read.
    """
    try:
        cluster = gather.gather(api, options.node)
    except kube.NotFoundError:
        if options.node is None:
            raise
        return streams.error(f"there is no node {options.node}")
    built = report.build(cluster.nodes, cluster.pods, cluster.unhealthy)
    uses = _uses(api, built, options)
    rows = limits.of_cluster(cluster.nodes, cluster.pods, uses) if options.limits else ()
    gpus = [(NodeName(node.name), row.gpu) for node in built.nodes for row in node.gpus] if options.limits else []
    for note in [*cluster.notes, *built.notes, *_unhealthy(built), *limits.notes(uses, gpus)]:
        streams.note(note)
    if options.output != "table":
        text = render.as_json(built, rows if options.limits else None)
        streams.out.write(yamls.in_notation(text, options.output))
    elif built.nodes:
        streams.out.write(render.detail(built) if options.details else render.summary(built))
        if options.bars is not None:
            shown = [views.of_row(node, uses.get(NodeName(node.name))) for node in built.nodes]
            streams.out.write("".join(["\n", *bars.of_nodes(shown, options.bars), bars.legend(options.bars)]))
        if options.limits:
            streams.out.write("\n" + tables.table([limits.HEADER, *map(limits.cells, rows)], streams.width))
    if built.nodes:
        return OK
    where = f"node {options.node} shares no GPU" if options.node else "no node of this cluster shares a GPU"
    streams.err.write(
        f"{where}: neither {names.GPU_MEM} in its status nor an inventory; is the device plugin running there?\n"
    )
    return FAILED


def _uses(api: KubeApi, built: report.Report, options: Inspect) -> Mapping[NodeName, NodeUse]:
    """What is used on the nodes that share GPUs and have pods on them, if it is asked for."""
    nodes = [NodeName(node.name) for node in built.nodes if node.pods] if options.limits else []
    return usage.read(api, nodes, options.installation) if nodes else {}


def _told(error: kube.KubeError) -> str:
    """What went wrong between us and the API server."""
    match error:
        case kube.UnreachableError():
            return f"cannot reach the API server: {error}"
        case kube.UnauthorizedError():
            return f"the API server does not accept the credentials: {error}; log in again"
        case kube.ForbiddenError():
            return f"not allowed: {error}; listing nodes and pods of all namespaces is needed"
        case _:
            return f"the API server answered: {error}"


def _unhealthy(built: report.Report) -> list[str]:
    faulty = [
        f"node {node.name}: GPU{row.gpu.label} ({row.gpu.uuid}) is {row.gpu.why}; nothing new is placed on it"
        for node in built.nodes
        for row in node.gpus
        if row.gpu.health is not GpuHealth.HEALTHY
    ]
    left_out = [
        f"node {node.name}: GPU{gpu.index} is not shared: {gpu.reason}" for node in built.nodes for gpu in node.left_out
    ]
    return faulty + left_out
