"""Everything that a tenant tries. No I/O.

What the API server answers is tried on a real one without nodes, and the rest on a node of each way to hand GPUs over;
docs/contributing/escapes.md is made of the same list.
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
    """What gets as far as a node, at each place where it can end otherwise; of those that are alike, one."""
    for number, place in enumerate(places):
        for attempt in all_attempts(place.node):
            ends = attempt.on.get(place.way, attempt.ends)
            if ends in RUNNING and not attempt.same_as and (number == 0 or attempt.everywhere):
                name = f"{attempt.name}-{place.way.value}"
                yield place, replace(attempt, name=name, ends=ends, pod=_pinned(attempt.pod, place.node))


def _pinned(body: Json, node: str) -> Json:
    return {**body, "spec": {**body["spec"], "nodeSelector": {"kubernetes.io/hostname": node}}}
