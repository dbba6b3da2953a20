"""What was read of a cluster -> the state that the controller would have of it. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpushare.cluster import node_records, pod_records
from gpushare.cluster.pod_records import PodRecord
from gpushare.identity import NodeName
from gpushare.units import MemoryUnit, ResourceConfig
from gpushare_cli import nodefacts, resource_configs, world
from gpushare_cli.gather import Cluster
from gpushare_cli.settings import Settings
from gpushare_cli.world import World

Object = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """A cluster at one moment."""

    state: World
    unit: MemoryUnit
    resource_config: ResourceConfig
    pods: tuple[tuple[Object, PodRecord | None], ...]
    """Those that concern GPUs, each with what the controller keeps of it."""


def known(cluster: Cluster, settings: Settings) -> Known:
    """Make sense of it.

    Raises:
        WireError: an object cannot be read.
        SettingsError: the nodes count in different units, and none is set.
    """
    none: frozenset[int] = frozenset()
    nodes = [
        (
            node_records.read(node, None, cluster.unhealthy.get(NodeName(node_records.name_of(node)), none)),
            nodefacts.node_facts(node),
        )
        for node in cluster.nodes
    ]
    unit = settings.memory_unit or world.unit_of(record for record, _ in nodes)
    resource_config = ResourceConfig(unit=unit, whole_gpus=settings.whole_gpus)
    pods = tuple((pod, record(pod, resource_config)) for pod in cluster.pods)
    state = world.build(nodes, pods, unit, cluster.guests)
    return Known(state=state, unit=unit, resource_config=resource_config, pods=pods)


def record(pod: Object, resource_config: ResourceConfig) -> PodRecord | None:
    """What the controller keeps of a pod."""
    return pod_records.read(pod, resource_configs.of_pod(pod, resource_config))
