"""Other simulated GPUs for a while, as if somebody had changed the cards in the nodes."""

import contextlib
import json
from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from gpushare import names
from gpushare.wire import inventory as inventory_wire
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
    system.eventually("the nodes advertise the new GPUs", lambda: _shown(system, profile))


def _shown(system: System, profile: Mapping[str, Any]) -> bool:
    for node in system.api.get("/api/v1/nodes", timeout_s=30)["items"]:
        own = profile.get("nodes", {}).get(node["metadata"]["name"], profile)
        wanted = [
            (one["model"], one["memoryMiB"])
            for one in own.get("gpus", profile["gpus"])
            for _ in range(one.get("count", 1))
        ]
        lost = [fault["gpu"] for fault in own.get("faults", [])]
        found = inventory_wire.of_node(node)
        if found is None or [(gpu.model, gpu.memory_mib) for gpu in found.gpus] != wanted:
            return False
        units = sum(found.unit.floor(mib) for i, (_, mib) in enumerate(wanted) if i not in lost)
        if node["status"]["allocatable"].get(names.GPU_MEM) != str(units):
            return False
    return True
