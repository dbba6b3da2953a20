"""Webhook, extender and API server around one pod's life, without threads and without a kubelet.

The kubelet's part is what Kubernetes documents: variables come from the pod's own annotations, and `$(NAME)` from
variables before them.
"""

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from gpushare.kube.api import JsonObject
from gpushare.units import ResourceConfig
from testing import granted, reviews
from testing.controller.world import World, path_of
from testing.reviews import rules

Json = dict[str, Any]
SEEDS = Path(__file__).parents[2] / "seeds"
RESOURCE_CONFIG = ResourceConfig(whole_gpus=True)
RULES = rules(resource_config=RESOURCE_CONFIG)
_NUMBERS = itertools.count()


def seed(name: str) -> Json:
    """A manifest of a user's guide as its author wrote it."""
    found: Json = yaml.safe_load((SEEDS / name).read_text(encoding="utf-8"))
    return found


def pod_of(manifest: Json) -> Json:
    template = manifest["spec"].get("template", manifest)
    return {"metadata": {**template.get("metadata", {})}, "spec": template["spec"]}


def make_pod(
    *limits: Mapping[str, object], labels: Mapping[str, str] | None = None, annotations: Mapping[str, str] | None = None
) -> Json:
    """A pod with a container c0, c1, ... for each of these limits."""
    containers = [
        {"name": f"c{i}", "image": "cuda", **({"resources": {"limits": dict(each)}} if each else {})}
        for i, each in enumerate(limits)
    ]
    return {
        "metadata": {"labels": dict(labels or {}), "annotations": dict(annotations or {})},
        "spec": {"containers": containers},
    }


def cluster(*nodes: tuple[int, ...]) -> World:
    """Nodes node-a, node-b, ... whose GPUs have so many GiB, and a controller that has read them."""
    world = World()
    world.start_controller(RESOURCE_CONFIG)
    for name, gib in zip("abcdefgh", nodes, strict=False):
        world.add_node(f"node-{name}", *gib)
    world.list_all()
    return world


def run(world: World, pod: Json, *nodes: str) -> JsonObject:
    """Create a pod, and do with it what kube-scheduler does; the pod as the API server has it then."""
    created = create(world, pod)
    fits = world.post("filter", {"Pod": created, "NodeNames": list(nodes or ["node-a"])})["NodeNames"]
    assert fits, "it fits nowhere"
    answer = world.bind(created, fits[0])
    assert not answer.error, answer
    world.see()
    return world.api.read(path_of(created))


def create(world: World, pod: Json) -> JsonObject:
    """The pod, waiting for a node."""
    intended = reviews.mutated(pod, RULES)
    metadata = {**intended["metadata"], "name": intended["metadata"].get("name") or f"pod-{next(_NUMBERS)}"}
    created = world.api.seed("/api/v1/namespaces/team/pods", {**intended, "metadata": metadata})
    world.see()
    return created


def environment(pod: JsonObject, container: str = "c0") -> Mapping[str, str]:
    """What a container's own variables are when its kubelet starts it."""
    [spec] = [each for each in pod["spec"]["containers"] if each["name"] == container]
    return granted.resolved(spec, pod["metadata"]["annotations"])
