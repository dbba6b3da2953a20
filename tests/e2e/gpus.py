"""Other simulated GPUs for a while, as if somebody had changed the cards in the nodes."""

import contextlib
import json
from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from gpushare import names
from gpushare.cluster import cordons
from gpushare.identity import NodeName
from gpushare.wire import inventory as inventory_wire
from gpushare.wire import profile as profile_wire
from localcluster import installation
from tests.e2e import disturb
from tests.e2e.system import System


@contextlib.contextmanager
def exchanged(system: System, profile: Mapping[str, Any], usual: str) -> Iterator[None]:
    """The nodes have the GPUs of `profile`, and those of `usual` afterwards. No pod may hold GPUs before and after."""
    exchange(system, profile)
    try:
        yield
    finally:
        exchange(system, yaml.safe_load(usual))


def exchange(system: System, profile: Mapping[str, Any]) -> None:
    """Give the plugins another profile, and wait until every node advertises what it says."""
    data = {"data": {"profile.yaml": json.dumps(profile)}}
    namespace = ("-n", installation.NAMESPACE)
    system.cluster.kubectl("patch", "configmap", *namespace, "gpushare-simulated-gpus", "-p", json.dumps(data))
    # A mounted ConfigMap takes a minute to change; a new pod has it at once. To remove a pod that ends by itself takes
    # a kubelet up to a minute.
    for node in system.cluster.nodes:
        disturb.kill_plugin(system, node.name)
    advertised = "the nodes advertise the new GPUs, by plugins that live"
    system.eventually(advertised, lambda: _shown(system, profile) and disturb.plugins_ready(system))


def _shown(system: System, profile: Mapping[str, Any]) -> bool:
    return all(_is_shown_on(node, profile) for node in system.api.get("/api/v1/nodes", timeout_s=30)["items"])


def _is_shown_on(node: Mapping[str, Any], profile: Mapping[str, Any]) -> bool:
    name = NodeName(node["metadata"]["name"])
    found = inventory_wire.of_node(node)
    if found is None:
        return False
    wanted = profile_wire.inventory(profile, name, found.unit).gpus
    if [(gpu.uuid, gpu.model, gpu.memory_mib) for gpu in found.gpus] != [
        (gpu.uuid, gpu.model, gpu.memory_mib) for gpu in wanted
    ]:
        return False
    faulty = {fault.gpu for fault in profile_wire.parse(profile, name).faults}
    units = sum(found.unit.floor(gpu.memory_mib) for gpu in wanted if not cordons.numbers(gpu) & faulty)
    return bool(node["status"]["allocatable"].get(names.GPU_MEM) == str(units))
