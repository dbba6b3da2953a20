"""`gpushare explain`: reads the pod and its cluster, decides, prints."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpushare import names
from gpushare.errors import SettingsError, WireError
from gpushare.kube import api as kube
from gpushare.kube.api import JsonObject
from gpushare.model.request import Policy
from gpushare.runtime import options
from gpushare.units import MemoryUnit
from gpushare_cli import commands, configmap, gather
from gpushare_cli.commands import FAILED, NO_ROOM, OK, Connect, Streams
from gpushare_cli.explain import decide, render
from gpushare_cli.explain.decide import Rules
from gpushare_cli.gather import Cluster


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The arguments."""

    namespace: str
    name: str
    installation: str
    """Namespace of gpushare's own settings."""
    unit: MemoryUnit | None = None
    as_json: bool = False


def run(connect: Connect, streams: Streams, options: Options) -> int:
    """Print all about a pod. The exit code.

    Raises:
        SettingsError: an argument is needed that was not given.
    """
    try:
        api = connect()
    except SettingsError as error:  # no usable kubeconfig
        streams.err.write(f"error: {error}\n")
        return FAILED
    try:
        pod = gather.pod(api, options.namespace, options.name)
        cluster = gather.everything(api)
        settings = gather.config_map(api, options.installation, names.CONFIG)
    except kube.NotFoundError:
        streams.err.write(f"error: there is no pod {options.name} in namespace {options.namespace}\n")
        return FAILED
    except kube.KubeError as error:
        streams.err.write(f"error: {commands.told(error)}\n")
        return FAILED
    except WireError as error:
        streams.err.write(f"error: {error}\n")
        return FAILED
    return _print(pod, cluster, settings, streams, options)


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


def _print(pod: JsonObject, cluster: Cluster, settings: JsonObject | None, streams: Streams, options: Options) -> int:
    try:
        found = decide.explain(pod, cluster, rules(settings, options.unit))
    except WireError as error:
        streams.err.write(f"error: {error}\n")
        return FAILED
    for note in found.notes:
        streams.err.write(f"note: {note}\n")
    streams.out.write(render.as_json(found) if options.as_json else render.text(found))
    return OK if found.good else NO_ROOM
