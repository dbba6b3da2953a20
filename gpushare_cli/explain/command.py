"""`gpushare explain`: reads pods and their cluster, decides, prints."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpushare import names
from gpushare.errors import SettingsError, WireError
from gpushare.kube import api as kube
from gpushare.kube.api import JsonObject, KubeApi
from gpushare.model.request import Policy
from gpushare.runtime import options
from gpushare.units import MemoryUnit
from gpushare_cli import commands, configmap, gather, terminal
from gpushare_cli.commands import FAILED, NO_ROOM, OK, Connect, Streams
from gpushare_cli.explain import decide, render, workloads
from gpushare_cli.explain.decide import Rules
from gpushare_cli.explain.model import Explanation
from gpushare_cli.explain.workloads import Kind
from gpushare_cli.gather import Cluster


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The arguments."""

    namespace: str
    """Empty for the one that the user means who names none."""
    name: str
    kind: Kind = workloads.POD
    installation: str
    """Namespace of gpushare's own settings."""
    unit: MemoryUnit | None = None
    as_json: bool = False


def run(connect: Connect, streams: Streams, options: Options, namespace: Callable[[], str]) -> int:
    """Print all about a pod, or about the pods of a workload. The exit code.

    Args:
        connect: to the cluster.
        streams: where to write.
        options: the arguments.
        namespace: what is meant if the options name none.

    Raises:
        SettingsError: an argument is needed that was not given.
    """
    try:
        where = options.namespace or namespace()
        api = connect()
    except SettingsError as error:  # no usable kubeconfig
        streams.err.write(f"error: {error}\n")
        return FAILED
    what = f"{options.kind.word} {options.name} in namespace {where}"
    try:
        pods = workloads.pods(api, options.kind, where, options.name)
        cluster = _cluster(api)
        config = rules(gather.config_map(api, options.installation, names.CONFIG), options.unit)
        found = [decide.explain(pod, cluster, config, _events(api, pod, cluster)) for pod in pods]
    except kube.NotFoundError:
        streams.err.write(f"error: there is no {what}\n")
        return FAILED
    except kube.ForbiddenError as error:
        streams.err.write(f"error: not allowed: {error}\n")
        return FAILED
    except kube.KubeError as error:
        streams.err.write(f"error: {commands.told(error)}\n")
        return FAILED
    except WireError as error:
        streams.err.write(f"error: {error}\n")
        return FAILED
    if not found:
        streams.err.write(f"{what} has no pods; see kubectl describe {options.kind.word} {options.name} -n {where}\n")
        return FAILED
    return _print(found, streams, options)


def _cluster(api: KubeApi) -> Cluster:
    """What may be read of it: users without rights on nodes still learn what their own pods tell."""
    try:
        return gather.everything(api)
    except kube.ForbiddenError as error:
        return Cluster(nodes=(), pods=(), forbidden=str(error))


def _events(api: KubeApi, pod: JsonObject, cluster: Cluster) -> Sequence[JsonObject]:
    return workloads.events(api, pod) if cluster.forbidden else ()


def rules(settings: Mapping[str, Any] | None, unit: MemoryUnit | None) -> Rules:
    """What the administrators decided.

    Args:
        settings: the ConfigMap, if it can be read.
        unit: of the command line.

    Raises:
        WireError: a setting cannot be understood.
    """
    config = settings or {}
    try:
        return Rules(
            unit=unit or configmap.setting(config, "memory_unit", None, MemoryUnit.parse),
            whole_gpus=configmap.setting(config, "whole_gpus", False, options.boolean),
            policy=configmap.setting(config, "gpu_policy", Policy.BINPACK, Policy),
        )
    except SettingsError as error:
        raise WireError(f"ConfigMap {names.CONFIG}: {error}") from error


def _print(found: Sequence[Explanation], streams: Streams, options: Options) -> int:
    found = sorted(found, key=lambda each: (each.good, each.pod.name))
    for note in dict.fromkeys(note for each in found for note in each.notes):
        streams.err.write(f"note: {terminal.one_line(note)}\n")
    if options.kind == workloads.POD:
        streams.out.write(render.as_json(found[0]) if options.as_json else render.text(found[0]))
    else:
        streams.out.write(render.all_as_json(found) if options.as_json else render.grouped(found))
    return OK if all(each.good for each in found) else NO_ROOM
