"""Everything that a tenant tries, on a node of each way to hand GPUs over. No I/O.

The tests on the real cluster run this list, and docs/reference/escapes.md is made of it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from gpushare.model.gpu import HandOver
from testing.tenant import attempts, escapes
from testing.tenant.attempts import Attempt, Ends, Json

WORKLOADS: Final[Mapping[str, tuple[str, str, Json]]] = {
    "Deployment": ("apps/v1", "deployments", {"replicas": 1}),
    "StatefulSet": ("apps/v1", "statefulsets", {"replicas": 1, "serviceName": "x"}),
    "ReplicaSet": ("apps/v1", "replicasets", {"replicas": 1}),
    "DaemonSet": ("apps/v1", "daemonsets", {}),
    "Job": ("batch/v1", "jobs", {}),
}
"""Kind -> API version, plural, and a spec without its template."""
RUNNING: Final = {Ends.NOTHING, Ends.GRANTED, Ends.ESCAPES}


@dataclass(frozen=True, slots=True)
class Place:
    """A node, and how it hands GPUs over at the moment."""

    node: str
    way: HandOver


def all_attempts(node: str) -> Iterator[Attempt]:
    """Every one; names are unique. Args: node: where pods with a preset node go."""
    yield from attempts.api_attempts(node)
    yield from escapes.node_attempts()


def on_each(places: Sequence[Place]) -> Iterator[tuple[Place, Attempt]]:
    """Every one; what gets as far as a node is tried at each place."""
    for number, place in enumerate(places):
        for attempt in all_attempts(place.node):
            if {attempt.ends, attempt.old_ends, *attempt.on.values()} & RUNNING:
                name, ends = f"{attempt.name}-{place.way.value}", attempt.on.get(place.way, attempt.ends)
                yield place, replace(attempt, name=name, ends=ends, pod=_pinned(attempt.pod, place.node))
            elif number == 0:
                yield place, attempt


def _pinned(body: Json, node: str) -> Json:
    return {**body, "spec": {**body["spec"], "nodeSelector": {"kubernetes.io/hostname": node}}}
