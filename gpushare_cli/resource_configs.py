"""The resource configuration by which a pod's request is read, if the settings do not tell. Pure."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from gpushare import names
from gpushare.units import ResourceConfig
from gpushare.wire import fields
from gpushare.wire import pods as pods_wire


def of_pod(pod: Mapping[str, Any], resource_config: ResourceConfig) -> ResourceConfig:
    """Of one pod: whole GPUs are this project's where its webhook or controller has taken care of them."""
    taken_care_of = names.ANNOTATION_ALLOCATION in pods_wire.annotations(pod) or _is_granted(pod)
    return replace(resource_config, whole_gpus=resource_config.whole_gpus or taken_care_of)


def _is_granted(pod: Mapping[str, Any]) -> bool:
    """Whether a container that asks for whole GPUs takes its devices from the binding's annotation."""
    return any(
        pods_wire.asks(container, ResourceConfig(whole_gpus=True))
        and not pods_wire.asks(container, ResourceConfig())
        and pods_wire.takes_its_grant(container, fields.text(container, "name", path))
        for path, _, container in pods_wire.containers(pod)
    )
