"""Pods on nodes, with what gpushare writes on them."""

from typing import Any

from gpushare import names
from gpushare.model.ledger import Grant
from gpushare.wire import allocations
from testing.builders import Json, env_of, make_allocation, make_container, make_pod


def bound(name: str, *grants: Grant, node: str = "node-a", phase: str = "Running", **fields: Any) -> Json:
    """A pod that has these grants and asks for as much."""
    text = allocations.encode(make_allocation(name, *grants, node=node))
    annotations = {names.ANNOTATION_ALLOCATION: text, **fields.pop("annotations", {})}
    containers = [
        make_container(grant.container, grant.memory_mib * len(grant.gpus) // 1024, env=[env_of(grant.container)])
        for grant in grants
    ]
    return make_pod(*containers, name=name, node=node, phase=phase, annotations=annotations, **fields)


def mutated(pod: Json) -> Json:
    """As the webhook leaves a pod, as far as it matters here."""
    for container in pod["spec"]["containers"]:
        container["env"] = [env_of(container["name"])]
    pod["spec"]["schedulerName"] = names.SCHEDULER
    return pod


def changed(value: Json, part: str, **change: object) -> Json:
    """With other fields in its spec, status or metadata."""
    value[part] |= change
    return value
