"""The ledger as JSON, in the layout of Aliyun gpushare's `inspect`, in whole units. Pure.

`uuid` is an addition of this project; Aliyun's tools ignore it.
"""

from collections.abc import Mapping

from gpushare.identity import GpuUuid, NodeName
from gpushare.kube.api import JsonObject
from gpushare.model.gpu import Gpu
from gpushare.model.ledger import NodeLedger


def report(ledgers: Mapping[NodeName, NodeLedger], only: NodeName | None = None) -> JsonObject:
    """All nodes with GPUs by name, or one node.

    Args:
        ledgers: nodes with an inventory.
        only: the node that was asked for.
    """
    if only is not None:
        if only not in ledgers:
            return {"nodes": [], "error": f"node {only} has no GPUs that gpushare knows of"}
        return {"nodes": [_node(ledgers[only])]}
    return {"nodes": [_node(ledgers[name]) for name in sorted(ledgers)]}


def _node(ledger: NodeLedger) -> JsonObject:
    pods: dict[GpuUuid, list[JsonObject]] = {}
    for held in ledger.allocations.values():
        for gpu, share in ledger.held(held).items():
            if share.memory_mib:
                used = ledger.inventory.unit.ceil(share.memory_mib)
                entry = {"name": held.pod.name, "namespace": held.pod.namespace, "usedGPU": used}
                pods.setdefault(gpu, []).append(entry)
    devices = [_device(ledger, gpu, pods.get(gpu.uuid, [])) for gpu in ledger.inventory.gpus]
    return {
        "name": ledger.inventory.node,
        "totalGPU": sum(device["totalGPU"] for device in devices),
        "usedGPU": sum(device["usedGPU"] for device in devices),
        "devs": devices,
    }


def _device(ledger: NodeLedger, gpu: Gpu, pods: list[JsonObject]) -> JsonObject:
    unit = ledger.inventory.unit
    return {
        "id": gpu.index,
        "uuid": gpu.uuid,
        "totalGPU": unit.floor(gpu.memory_mib),
        "usedGPU": unit.ceil(ledger.used_mib.get(gpu.uuid, 0)),
        "pods": sorted(pods, key=lambda pod: (pod["namespace"], pod["name"])),
    }
