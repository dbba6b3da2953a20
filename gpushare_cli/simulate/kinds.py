"""Pods as objects -> the kinds of pods that a simulation tells apart. Pure."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from gpushare.identity import NodeName
from gpushare.model.capacity import Ask
from gpushare.model.request import PodRequest, Policy, RequestShape
from gpushare.simulation import scores
from gpushare.simulation.kinds import ANYWHERE, Kind, Terms
from gpushare.simulation.scores import Load
from gpushare.wire import asks, fields, host
from gpushare.wire import pods as pods_wire
from gpushare_cli import schedulable
from gpushare_cli.schedulable import NodeFacts
from gpushare_cli.simulate import company

Object = Mapping[str, Any]
_SPREAD: Final = frozenset({"ReplicaSet", "ReplicationController", "StatefulSet"})
"""Owners of which PodTopologySpread knows the selector."""


Counted = tuple[tuple[str, int], ...]
"""GPU resources by kube-scheduler's count."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What tells pods with GPUs apart beside `Ask`."""

    shape: RequestShape
    namespace: str
    labels: tuple[tuple[str, str], ...]
    """Empty where they do not matter."""
    requests: Counted
    plain: bool
    """Whether `Ask` says all of it."""

    @property
    def policy(self) -> Policy | None:
        """That the pod names."""
        return self.shape.policy


class Kinds:
    """Reads pods for a cluster of these nodes; what several pods have in common is computed once."""

    def __init__(self, nodes: Sequence[NodeFacts], *, sociable: bool = False) -> None:
        """Of these nodes.

        Args:
            nodes: all.
            sociable: whether any pod says something of others.
        """
        self._sociable = sociable
        self._nodes = list(nodes)
        self._terms: dict[str, Terms] = {}

    def of(self, pod: Object, request: PodRequest | None, replicas_of: object = None) -> Kind:
        """The kind of a pod that is to be scheduled.

        Args:
            pod: the object.
            request: for GPUs; None if it asks for none.
            replicas_of: its workload, if a controller would own it.
        """
        takes, counted = host.counted(pod), schedulable.requests(pod)
        own_spread = "topologySpreadConstraints" in fields.mapping(pod, "spec", "pod")
        ask = asks.of_host(takes) if request is None else asks.of_request(request)
        return Kind(
            ask=ask,
            load=load(pod),
            terms=self._of_terms(pod),
            replicas_of=None if own_spread else replicas_of or owner(pod),
            company=company.company(pod, self._nodes) if self._sociable else None,
            more=_wanted(request, counted) if request is not None else tuple(sorted(counted.items())) or None,
        )

    def bound(self, request: PodRequest) -> Kind:
        """The kind of a pod that is on its node already, where its CPU and memory are counted."""
        return Kind(ask=Ask.of(request.shape), load=Load(pods=0), more=_wanted(request, {}))

    def _of_terms(self, pod: Object) -> Terms:
        spec = fields.mapping(pod, "spec", "pod")
        affinity = fields.mapping(spec, "affinity", "spec").get("nodeAffinity")
        said = {"nodeSelector": spec.get("nodeSelector"), "nodeAffinity": affinity, "at": spec.get("nodeName")}
        key = json.dumps({**said, "tolerations": spec.get("tolerations")}, sort_keys=True, default=str)
        found = self._terms.get(key)
        if found is None:
            found = self._terms[key] = self._judged(pod)
        return found

    def _judged(self, pod: Object) -> Terms:
        allowed = frozenset(i for i, node in enumerate(self._nodes) if not schedulable.misplaced(pod, node))
        repelled = {i: count for i, node in enumerate(self._nodes) if (count := schedulable.repelling(pod, node))}
        attracted = {i: weight for i, node in enumerate(self._nodes) if (weight := schedulable.attracting(pod, node))}
        if len(allowed) == len(self._nodes) and not repelled and not attracted:
            return ANYWHERE
        return Terms(
            allowed=None if len(allowed) == len(self._nodes) else allowed, repelled=repelled, attracted=attracted
        )


def counted(kind: Kind) -> Counted:
    """GPU resources that kube-scheduler counts for a pod, also if they are another plugin's."""
    match kind.more:
        case Wanted(requests=requests):
            return requests
        case tuple() as requests:
            return requests
        case _:
            return ()


def _wanted(request: PodRequest, counted: Mapping[str, int]) -> Wanted:
    shape = request.shape
    gpus = shape.gpus
    rest = gpus.uuids.wanted or gpus.uuids.unwanted or gpus.min_memory_mib or gpus.enforced or gpus.physical
    plain = len(shape.containers) == 1 and shape.affinity is None and not shape.only_cdi and not rest
    labels = tuple(sorted(request.labels.items())) if shape.affinity is not None else ()
    return Wanted(shape, request.pod.namespace, labels, tuple(sorted(counted.items())), plain)


def load(pod: Object) -> Load:
    """What kube-scheduler counts for a pod; nothing for amounts that cannot be read."""
    takes = host.counted(pod)
    scored = host.counted(_with_defaults(pod))
    return Load(takes.cpu_milli, takes.memory_mib, scored.cpu_milli, scored.memory_mib)


def _with_defaults(pod: Object) -> Object:
    """The pod as scores count it: containers that request no CPU or no memory have a little."""
    spec = fields.mapping(pod, "spec", "pod")
    changed = {}
    for key in ("initContainers", "containers"):
        if key in spec:
            changed[key] = [_scored(container) for container in fields.objects(spec, key, "spec")]
    return {**pod, "spec": {**spec, **changed}}


def _scored(container: Object) -> Object:
    resources = fields.mapping(container, "resources", "container")
    limits, requests = (fields.mapping(resources, key, "container.resources") for key in ("limits", "requests"))
    asked = {"cpu": f"{scores.DEFAULT_CPU_MILLI}m", "memory": f"{scores.DEFAULT_MEMORY_MIB}Mi", **limits, **requests}
    return {**container, "resources": {"requests": asked}}


def owner(pod: Object) -> tuple[str, str, str] | None:
    """The controller whose pods PodTopologySpread keeps apart."""
    metadata = fields.mapping(pod, "metadata", "pod")
    for reference in fields.objects(metadata, "ownerReferences", "metadata"):
        kind = fields.text(reference, "kind", "metadata.ownerReferences")
        if reference.get("controller") is True and kind in _SPREAD:
            return str(metadata.get("namespace")), kind, str(reference.get("name"))
    return None


def on_nodes(pods: Iterable[Object], places: Mapping[NodeName, int]) -> tuple[list[Load], dict[object, dict[int, int]]]:
    """What pods that are on nodes take of each, and how many replicas of each owner are there."""
    used = [Load(pods=0)] * len(places)
    replicas: dict[object, dict[int, int]] = {}
    for pod in pods:
        node = pods_wire.node_of(pod)
        if node is None or node not in places or not pods_wire.counts(pod):
            continue
        used[places[node]] = used[places[node]].plus(load(pod))
        if (of := owner(pod)) is not None:
            counts = replicas.setdefault(of, {})
            counts[places[node]] = counts.get(places[node], 0) + 1
    return used, replicas
