"""`gpushare explain`: reads the pod and its cluster, decides, prints."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from gpushare.errors import SettingsError, WireError
from gpushare.kube import api as kube
from gpushare.kube.api import JsonObject
from gpushare.model.request import Policy
from gpushare.runtime import options
from gpushare.units import MemoryUnit
from gpushare.wire import shape
from gpushare_cli import commands, gather
from gpushare_cli.commands import FAILED, NO_ROOM, OK, Connect, Streams
from gpushare_cli.doctor import own
from gpushare_cli.explain import decide, render
from gpushare_cli.explain.decide import Rules
from gpushare_cli.gather import Cluster

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """The arguments."""

    namespace: str
    name: str
    installation: str
    """Namespace of gpushare's own settings."""
    unit: MemoryUnit | None = None
    as_json: bool = False


def run(connect: Connect, streams: Streams, wish: Wish) -> int:
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
        pod = gather.pod(api, wish.namespace, wish.name)
        cluster = gather.everything(api)
        settings = gather.config_map(api, wish.installation, own.SETTINGS)
    except kube.NotFoundError:
        streams.err.write(f"error: there is no pod {wish.name} in namespace {wish.namespace}\n")
        return FAILED
    except kube.KubeError as error:
        streams.err.write(f"error: {commands.told(error)}\n")
        return FAILED
    except WireError as error:
        streams.err.write(f"error: {error}\n")
        return FAILED
    return _print(pod, cluster, settings, streams, wish)


def rules(settings: Mapping[str, Any] | None, unit: MemoryUnit | None) -> Rules:
    """What the administrators decided.

    Args:
        settings: the ConfigMap, if it can be read.
        unit: of the command line.

    Raises:
        WireError: a setting cannot be understood.
    """
    data = shape.mapping(settings or {}, "data", own.SETTINGS)

    def value(field: str, parse: Callable[[str], T], default: T) -> T:
        _, variable = options.spelling(field)
        text = shape.text(data, variable, f"{own.SETTINGS}.data")
        try:
            return parse(text) if text else default
        except (ValueError, SettingsError) as error:
            raise WireError(f"ConfigMap {own.SETTINGS}: {variable} is {text!r}: {error}") from error

    return Rules(
        unit=unit or value("memory_unit", MemoryUnit.parse, None),
        whole_gpus=value("whole_gpus", options.boolean, False),
        policy=value("gpu_policy", Policy, Policy.BINPACK),
    )


def _print(pod: JsonObject, cluster: Cluster, settings: JsonObject | None, streams: Streams, wish: Wish) -> int:
    try:
        found = decide.explain(pod, cluster, rules(settings, wish.unit))
    except WireError as error:
        streams.err.write(f"error: {error}\n")
        return FAILED
    for note in found.notes:
        streams.err.write(f"note: {note}\n")
    streams.out.write(render.as_json(found) if wish.as_json else render.text(found))
    return OK if found.good else NO_ROOM
