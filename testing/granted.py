"""The environment of a container as webhook, binding and kubelet make it, without a cluster."""

import re
from collections.abc import Mapping
from typing import Any

from gpushare.model.ledger import Allocation, NodeLedger, Placed
from gpushare.placement.place import place
from gpushare.units import ResourceConfig
from gpushare.wire import allocations, pods, requests
from testing.reviews import mutated, rules

Json = dict[str, Any]
ANNOTATION = re.compile(r"metadata\.annotations\['(.+)'\]")


def allocation(pod: Json, ledger: NodeLedger, resource_config: ResourceConfig) -> Allocation:
    """What an admitted pod gets on a node where it fits."""
    request = requests.of_pod(pod, resource_config)
    assert request is not None
    verdict = place(request.shape, ledger)
    assert isinstance(verdict, Placed), verdict
    return Allocation(pod=pods.ref(pod), node=ledger.inventory.node, grants=verdict.grants)


def environments(pod: Json, ledger: NodeLedger, resource_config: ResourceConfig) -> Mapping[str, Mapping[str, str]]:
    """Container -> the variables that the webhook wrote, with the values that the kubelet puts in."""
    created = {**pod, "metadata": {"uid": "u", **pod["metadata"]}}
    result = mutated(created, rules(resource_config=resource_config))
    written = allocations.binding_annotations(allocation(result, ledger, resource_config), ledger.inventory, 1)
    return {container["name"]: resolved(container, written) for container in result["spec"]["containers"]}


def resolved(container: Json, annotations: Mapping[str, str]) -> Mapping[str, str]:
    """Values and downward references, in their order; what cannot be resolved is empty, as in the kubelet."""
    found: dict[str, str] = {}
    for entry in container.get("env", ()):
        path = entry.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath", "")
        match = ANNOTATION.fullmatch(path)
        value = annotations.get(match[1], "") if match else entry.get("value", "")
        found[entry["name"]] = re.sub(r"\$\((\w+)\)", lambda name: found.get(name[1], name[0]), value)
    return found
