"""What each command does with its parsed arguments. Text goes to `out`, everything else to `err`."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, assert_never

from gpushare import names
from gpushare.errors import SettingsError
from gpushare.kube import api as kube
from gpushare.kube.api import KubeApi
from gpushare.model.gpu import GpuHealth
from gpushare_cli import gather, render, report, schedconfig
from gpushare_cli.schedconfig import Kind, Options
from gpushare_cli.terminal import Writer

OK: Final = 0
FAILED: Final = 1  # the cluster cannot be read, or it has nothing to show
USAGE: Final = 2
NO_ROOM: Final = 3  # a pod fits nowhere

Connect = Callable[[], KubeApi]


@dataclass(frozen=True, slots=True, kw_only=True)
class Streams:
    """Where a command writes."""

    out: Writer
    err: Writer


def inspect(connect: Connect, streams: Streams, *, node: str | None, details: bool, as_json: bool) -> int:
    """Print who holds how much of which GPU. The exit code."""
    try:
        cluster = gather.gather(connect(), node)
    except SettingsError as error:  # no usable kubeconfig
        streams.err.write(f"error: {error}\n")
        return FAILED
    except kube.KubeError as error:
        streams.err.write(f"error: {told(error, node)}\n")
        return FAILED
    found = report.build(cluster.nodes, cluster.pods, cluster.unhealthy)
    for note in [*cluster.notes, *found.notes, *_unhealthy(found)]:
        streams.err.write(f"note: {note}\n")
    if as_json:
        streams.out.write(render.as_json(found))
    elif found.nodes:
        streams.out.write(render.detail(found) if details else render.summary(found))
    if found.nodes:
        return OK
    where = f"node {node} shares no GPU" if node else "no node of this cluster shares a GPU"
    streams.err.write(
        f"{where}: neither {names.GPU_MEM} in its status nor an inventory; is the device plugin running there?\n"
    )
    return FAILED


def scheduler_config(streams: Streams, *, options: Options, kind: Kind) -> int:
    """Print a configuration for kube-scheduler. The exit code.

    Raises:
        SettingsError: the arguments do not go together.
    """
    match kind:
        case Kind.CONFIGURATION:
            streams.out.write(schedconfig.configuration(options))
        case Kind.POLICY:
            streams.out.write(schedconfig.policy(options))
            flags = " ".join(schedconfig.policy_flags(options))
            streams.err.write(f"note: start kube-scheduler with {flags}\n")
        case _:
            assert_never(kind)
    return OK


def read_ca(path: str) -> bytes:
    """The PEM file of `--extender-ca`; empty without one.

    Raises:
        SettingsError: it cannot be read.
    """
    if not path:
        return b""
    try:
        return Path(path).expanduser().read_bytes()
    except OSError as error:
        raise SettingsError(f"extender CA {path}: {error.strerror}") from error


def told(error: kube.KubeError, node: str | None = None) -> str:
    """What went wrong between us and the API server, for people."""
    match error:
        case kube.UnreachableError():
            return f"cannot reach the API server: {error}"
        case kube.UnauthorizedError():
            return f"the API server does not accept the credentials: {error}; log in again"
        case kube.ForbiddenError():
            return f"not allowed: {error}; listing nodes and pods of all namespaces is needed"
        case kube.NotFoundError() if node is not None:
            return f"there is no node {node}"
        case _:
            return f"the API server answered: {error}"


def _unhealthy(found: report.Report) -> list[str]:
    return [
        f"node {node.name}: GPU{row.gpu.index} ({row.gpu.uuid}) is {row.gpu.health.value.lower()};"
        " nothing new is placed on it"
        for node in found.nodes
        for row in node.gpus
        if row.gpu.health is not GpuHealth.HEALTHY
    ]
