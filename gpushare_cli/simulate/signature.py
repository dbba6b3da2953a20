"""All that decides where a pod goes, equal for replicas: what is known of one of them holds for the others. Pure."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from gpushare.cluster import budgets, pod_records
from gpushare.model.capacity import Ask
from gpushare.model.request import GpuSelector, LabelSelector, PodRequest, RequestShape
from gpushare.wire import fields, pods as pods_wire
from gpushare_cli import kube_scores, schedulable
from gpushare_cli.kube_scores import Load
from gpushare_cli.schedulable import PREFERRED, REQUIRED, NodeFacts

Object = Mapping[str, Any]
Owner = tuple[str, str, str]  # namespace, kind and name
SPREAD: Final = frozenset({"ReplicaSet", "ReplicationController", "StatefulSet"})  # owners with a known selector
_CONSTRAINTS: Final = "topologySpreadConstraints"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeTerms:  # what a pod says of nodes, whatever is on them; they are numbered
    allowed: frozenset[int] | None = None  # by taints, selectors and required affinity; None for all
    repelled: Mapping[int, int] = field(default_factory=dict, hash=False)  # a node's soft taints that it tolerates not
    attracted: Mapping[int, int] = field(default_factory=dict, hash=False)  # a node's weight by preferred node affinity


ANYWHERE: Final = NodeTerms()


@dataclass(frozen=True, slots=True)
class Term:  # pods, and how near: on nodes with the same value of a label
    topology: str
    namespaces: tuple[str, ...] | None  # None for all
    selector: LabelSelector | None  # None if no pod is meant
    weight: int = 0  # of a preference; negative for pods that are avoided


@dataclass(frozen=True, slots=True)
class Constraint:  # how evenly pods that are meant are spread over the values of a label
    pods: Term
    max_skew: int
    required: bool
    min_domains: int = 0


@dataclass(frozen=True, slots=True)
class PodAffinity:  # what a pod says of others, and they may say of it
    namespace: str
    labels: tuple[tuple[str, str], ...]
    required: tuple[Term, ...] = ()
    anti: tuple[Term, ...] = ()  # required anti-affinity
    preferred: tuple[Term, ...] = ()  # both ways
    spread: tuple[Constraint, ...] = ()
    eligible: frozenset[int] | None = None  # with constraints: nodes that its selector and affinity mean; None for all


@dataclass(frozen=True, slots=True, kw_only=True)
class PodSignature:  # pods that nothing in a simulation tells apart
    ask: Ask  # GPUs, and CPU and memory of the host
    load: Load  # CPU and memory by kube-scheduler's count
    shape: RequestShape | None = None  # None for a pod without GPUs
    labels: tuple[tuple[str, str], ...] = ()  # empty where the shape says nothing of other pods
    counted: tuple[tuple[str, int], ...] = ()  # GPU resources by kube-scheduler's count, also another plugin's
    terms: NodeTerms = ANYWHERE
    replicas_of: Owner | None = None  # whose pods PodTopologySpread keeps apart; None where it knows no owner
    affinity: PodAffinity | None = None  # None if no pod says anything of others
    is_plain: bool = field(init=False, compare=False)  # whether `ask` says all of the shape but its policy
    _hash: int = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        shape, plain = self.shape, None
        if shape is not None:
            gpus = GpuSelector(models=shape.gpus.models, mig=shape.gpus.mig)
            plain = RequestShape(containers=shape.containers[:1], policy=shape.policy, gpus=gpus)
        object.__setattr__(self, "is_plain", shape == plain)
        # It is looked up several times for each pod, and made of very many parts.
        parts = self.ask, self.load, shape, self.labels, self.counted, self.terms, self.replicas_of, self.affinity
        object.__setattr__(self, "_hash", hash(parts))

    def __hash__(self) -> int:
        return self._hash


class Signatures:
    """Reads pods for a cluster of these nodes; what several pods have in common is computed once."""

    def __init__(self, nodes: Sequence[NodeFacts], *, has_affinity: bool = False) -> None:
        self._nodes, self._has_affinity = nodes, has_affinity
        self._terms: dict[str, NodeTerms] = {}
        self._known: dict[PodSignature, PodSignature] = {}

    def of(self, pod: Object, request: PodRequest | None, replicas_of: Owner | None = None) -> PodSignature:
        """That of a pod that is to be placed, whose owner is told where the pod does not say it itself."""
        own_spread = _CONSTRAINTS in fields.mapping(pod, "spec", "pod")
        found = PodSignature(
            ask=Ask.of_host(pods_wire.host_requests(pod)) if request is None else Ask.of_pod(request),
            load=load(pod),
            shape=None if request is None else request.shape,
            labels=() if request is None or request.shape.affinity is None else tuple(sorted(request.labels.items())),
            counted=tuple(sorted(schedulable.requests(pod).items())),
            terms=self._of_terms(pod),
            replicas_of=None if own_spread else replicas_of or owner(pod),
            affinity=affinity_of(pod, self._nodes) if self._has_affinity else None,
        )
        return self._known.setdefault(found, found)

    def _of_terms(self, pod: Object) -> NodeTerms:
        spec = fields.mapping(pod, "spec", "pod")
        said = {key: spec.get(key) for key in ("nodeSelector", "nodeName", "tolerations")}
        said["nodeAffinity"] = fields.mapping(spec, "affinity", "spec").get("nodeAffinity")
        key = json.dumps(said, sort_keys=True, default=str)
        if key not in self._terms:
            nodes = list(enumerate(self._nodes))
            allowed = frozenset(i for i, node in nodes if not schedulable.misplaced(pod, node))
            self._terms[key] = NodeTerms(
                allowed=None if len(allowed) == len(nodes) else allowed,
                repelled={i: count for i, node in nodes if (count := schedulable.repelling(pod, node))},
                attracted={i: weight for i, node in nodes if (weight := schedulable.attracting(pod, node))},
            )
        return self._terms[key]


def of_bound(request: PodRequest) -> PodSignature:
    """That of a pod that is on its node already, where its CPU and memory are counted, and is to get GPUs there."""
    labels = tuple(sorted(request.labels.items())) if request.shape.affinity is not None else ()
    return PodSignature(ask=Ask.of(request.shape), load=Load(pods=0), shape=request.shape, labels=labels)


def load(pod: Object) -> Load:
    """What kube-scheduler counts for a pod; nothing for amounts that cannot be read."""
    spec = fields.mapping(pod, "spec", "pod")
    kinds = [kind for kind in ("initContainers", "containers") if kind in spec]
    scored = {kind: [_with_defaults(each) for each in fields.objects(spec, kind, "spec")] for kind in kinds}
    return Load(*pods_wire.host_requests(pod), *pods_wire.host_requests({**pod, "spec": {**spec, **scored}}))


def _with_defaults(container: Object) -> Object:
    """As scores count it: with a little where no CPU or no memory is requested."""
    limits, requests = (pods_wire.amounts(container, field) for field in ("limits", "requests"))
    few = {"cpu": f"{kube_scores.DEFAULT_CPU_MILLI}m", "memory": f"{kube_scores.DEFAULT_MEMORY_MIB}Mi"}
    return {**container, "resources": {"requests": {**few, **limits, **requests}}}


def owner(pod: Object) -> Owner | None:
    """The controller whose pods PodTopologySpread keeps apart."""
    found = pod_records.controller_of(pod) or {}
    kind = fields.text(found, "kind", "metadata.ownerReferences")
    return (str(pod["metadata"].get("namespace")), kind, str(found.get("name"))) if kind in SPREAD else None


def has_affinity(pod: Object) -> bool:
    spec = fields.mapping(pod, "spec", "pod")
    affinity = fields.mapping(spec, "affinity", "spec")
    return bool(affinity.get("podAffinity") or affinity.get("podAntiAffinity") or spec.get(_CONSTRAINTS))


def affinity_of(pod: Object, nodes: Sequence[NodeFacts]) -> PodAffinity:
    metadata, spec = fields.mapping(pod, "metadata", "pod"), fields.mapping(pod, "spec", "pod")
    namespace = fields.text(metadata, "namespace", "metadata")
    affinity = fields.mapping(spec, "affinity", "spec")
    near, apart = (fields.mapping(affinity, key, "spec.affinity") for key in ("podAffinity", "podAntiAffinity"))
    spread = tuple(_constraint(each, namespace) for each in fields.objects(spec, _CONSTRAINTS, "spec"))
    meant = frozenset(i for i, node in enumerate(nodes) if spread and not any(schedulable.unselected(pod, node)))
    return PodAffinity(
        namespace=namespace,
        labels=tuple(sorted(fields.mapping(metadata, "labels", "metadata").items())),
        required=tuple(_term(term, namespace) for term in fields.objects(near, REQUIRED, "podAffinity")),
        anti=tuple(_term(term, namespace) for term in fields.objects(apart, REQUIRED, "podAntiAffinity")),
        preferred=(*_weighted(near, namespace, 1), *_weighted(apart, namespace, -1)),
        spread=spread,
        eligible=None if len(meant) == len(nodes) or not spread else meant,
    )


def _constraint(said: Object, namespace: str) -> Constraint:
    return Constraint(
        pods=Term(fields.text(said, "topologyKey", _CONSTRAINTS), (namespace,), _selector(said)),
        max_skew=max(fields.integer(said, "maxSkew", _CONSTRAINTS, default=1), 1),
        required=fields.text(said, "whenUnsatisfiable", _CONSTRAINTS) != "ScheduleAnyway",
        min_domains=fields.integer(said, "minDomains", _CONSTRAINTS, default=0),
    )


def _weighted(affinity: Object, namespace: str, sign: int) -> Iterator[Term]:
    for each in fields.objects(affinity, PREFERRED, "spec.affinity"):
        weight = fields.integer(each, "weight", PREFERRED, default=0)
        yield _term(fields.mapping(each, "podAffinityTerm", PREFERRED), namespace, sign * weight)


def _term(term: Object, namespace: str, weight: int = 0) -> Term:
    wanted = tuple(str(each) for each in fields.strings(term, "namespaces", "podAffinityTerm"))
    namespaces = None if term.get("namespaceSelector") == {} else wanted or (namespace,)
    return Term(fields.text(term, "topologyKey", "podAffinityTerm"), namespaces, _selector(term), weight)


def _selector(said: Object) -> LabelSelector | None:
    if said.get("labelSelector") is None:
        return None
    return budgets.label_selector(fields.mapping(said, "labelSelector", "term"), "labelSelector")
