"""Pods that came to their nodes past this system, and what the controller does about them."""

from collections.abc import Callable, Mapping
from typing import Any

from gpushare.kube.api import JsonObject
from testing.builders import Json, env_of, make_container
from testing.controller.world import World, path_of
from testing.fakes.kube import Call

EVENTS = "/api/v1/namespaces/team/events"
REPLICA_SET = {"kind": "ReplicaSet", "name": "web", "uid": "uid-of-rs", "controller": True}


def changed(container: Json) -> Json:
    """A container as the webhook leaves it, as far as the controller looks."""
    return {**container, "env": [env_of(container["name"])]}


def add_bypassed(
    world: World,
    *gib: int,
    node: str = "node-a",
    mutated: bool = True,
    owner: Mapping[str, Any] | None = None,
    name: str = "",
    **metadata: Any,
) -> JsonObject:
    """A pod on a node without an allocation, as the watch will show it; 0 GiB is a container without a request."""
    containers = [make_container(f"c{i}", amount or None) for i, amount in enumerate(gib)]
    if owner is not None:
        metadata["ownerReferences"] = [dict(owner)]
    number = next(world.names)
    pod: Json = {
        "metadata": {"name": name or f"bypassed-{number}", "uid": f"uid-{number:03}", **metadata},
        "spec": {"nodeName": node, "containers": [changed(c) if mutated else c for c in containers]},
    }
    return world.api.seed("/api/v1/namespaces/team/pods", pod)


def run_containers(world: World, pod: JsonObject, *running: str) -> None:
    """The kubelet says that these containers run."""
    states = [{"name": name, "state": {"running": {}}} for name in running]
    world.edit_pod(pod, lambda found: found["status"].update(phase="Running", containerStatuses=states))


def reject(world: World, pod: JsonObject, reason: str, message: str) -> None:
    """The kubelet does not take the pod."""
    world.edit_pod(pod, lambda found: found["status"].update(phase="Failed", reason=reason, message=message))


def tick(world: World, seconds: float = 0, *, times: int = 1) -> None:
    """The watches catch up, and the leader does its chores."""
    for _ in range(times):
        world.clock.at += seconds
        world.see()
        world.reconciler.tick()
        world.see()


def when_more(world: World, times: range, count: Callable[[], int], then: Callable[[], object] = int) -> list[int]:
    """At which of these times, in seconds, a tick made it more; `then` something happens."""
    found = []
    for second in times:
        before = count()
        tick(world, times.step)
        if count() > before:
            found.append(second)
            then()
    return found


def requests(world: World) -> list[Call]:
    """What was asked of the API server beside the watches."""
    return [call for call in world.api.calls if call.verb not in {"watch", "list"}]


def said(world: World) -> list[tuple[str, str]]:
    """Reason and message of every Event, the oldest first."""
    events = sorted(world.api.objects(EVENTS), key=lambda event: int(event["metadata"]["resourceVersion"]))
    return [(event["reason"], event["message"]) for event in events]


def annotations(world: World, pod: JsonObject) -> Mapping[str, str]:
    """Of the pod as the API server has it."""
    found: Mapping[str, str] = world.api.read(path_of(pod))["metadata"].get("annotations") or {}
    return found


def is_there(world: World, pod: JsonObject) -> bool:
    """Whether the pod exists and no one has asked for its deletion."""
    found = world.find(pod)
    return found is not None and "deletionTimestamp" not in found["metadata"]
