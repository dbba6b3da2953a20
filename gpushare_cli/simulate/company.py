"""What a pod says of others, and they may say of it: affinity, anti-affinity and topology spread. Pure."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from gpushare.wire import fields
from gpushare_cli import schedulable
from gpushare_cli.schedulable import NodeFacts

Object = Mapping[str, Any]
_REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED: Final = "preferredDuringSchedulingIgnoredDuringExecution"
_CONSTRAINTS: Final = "topologySpreadConstraints"


@dataclass(frozen=True, slots=True)
class Term:
    """Pods, and how near: on nodes with the same value of a label."""

    topology: str
    namespaces: tuple[str, ...] | None
    """None for all."""
    selector: str
    """As JSON; empty if no pod is meant."""
    weight: int = 0
    """Of a preference; negative for pods that are avoided."""


@dataclass(frozen=True, slots=True)
class Constraint:
    """How evenly pods that are meant are spread over the values of a label."""

    topology: str
    max_skew: int
    selector: str
    """As of a term."""
    required: bool
    min_domains: int = 0


@dataclass(frozen=True, slots=True)
class Company:
    """What pod affinity needs to know of a pod."""

    namespace: str
    labels: tuple[tuple[str, str], ...]
    near: tuple[Term, ...] = ()
    """Required."""
    apart: tuple[Term, ...] = ()
    """Required."""
    liked: tuple[Term, ...] = ()
    """Preferred, both ways."""
    spread: tuple[Constraint, ...] = ()
    eligible: frozenset[int] | None = None
    """Nodes that its selector and its required affinity mean; None for all. Only with constraints."""


def has_terms(pod: Object) -> bool:
    """Whether a pod says anything of other pods.

    Raises:
        WireError: its affinity is none.
    """
    spec = fields.mapping(pod, "spec", "pod")
    affinity = fields.mapping(spec, "affinity", "spec")
    return bool(affinity.get("podAffinity") or affinity.get("podAntiAffinity") or spec.get(_CONSTRAINTS))


def company(pod: Object, nodes: Sequence[NodeFacts]) -> Company:
    """What a pod says of others, and they may say of it, in a cluster of these nodes.

    Raises:
        WireError: its affinity is none.
    """
    metadata, spec = fields.mapping(pod, "metadata", "pod"), fields.mapping(pod, "spec", "pod")
    namespace = fields.text(metadata, "namespace", "metadata")
    affinity = fields.mapping(spec, "affinity", "spec")
    near, apart = (fields.mapping(affinity, key, "spec.affinity") for key in ("podAffinity", "podAntiAffinity"))
    constraints = tuple(map(_constraint, fields.objects(spec, _CONSTRAINTS, "spec")))
    meant = frozenset(i for i, node in enumerate(nodes) if constraints and not any(schedulable.unselected(pod, node)))
    return Company(
        namespace=namespace,
        labels=tuple(sorted(fields.mapping(metadata, "labels", "metadata").items())),
        near=tuple(_term(term, namespace) for term in fields.objects(near, _REQUIRED, "podAffinity")),
        apart=tuple(_term(term, namespace) for term in fields.objects(apart, _REQUIRED, "podAntiAffinity")),
        liked=(*_weighted(near, namespace, 1), *_weighted(apart, namespace, -1)),
        spread=constraints,
        eligible=None if len(meant) == len(nodes) or not constraints else meant,
    )


def _constraint(said: Object) -> Constraint:
    return Constraint(
        topology=fields.text(said, "topologyKey", _CONSTRAINTS),
        max_skew=max(fields.integer(said, "maxSkew", _CONSTRAINTS, default=1), 1),
        selector=_selector(said),
        required=fields.text(said, "whenUnsatisfiable", _CONSTRAINTS) != "ScheduleAnyway",
        min_domains=fields.integer(said, "minDomains", _CONSTRAINTS, default=0),
    )


def _selector(said: Object) -> str:
    if said.get("labelSelector") is None:
        return ""
    return json.dumps(fields.mapping(said, "labelSelector", "term"), sort_keys=True, default=str)


def _weighted(affinity: Object, namespace: str, sign: int) -> Iterator[Term]:
    for each in fields.objects(affinity, _PREFERRED, "spec.affinity"):
        weight = fields.integer(each, "weight", _PREFERRED, default=0)
        yield _term(fields.mapping(each, "podAffinityTerm", _PREFERRED), namespace, sign * weight)


def _term(term: Object, namespace: str, weight: int = 0) -> Term:
    wanted = tuple(str(each) for each in fields.strings(term, "namespaces", "podAffinityTerm"))
    every = term.get("namespaceSelector") == {}
    return Term(
        topology=fields.text(term, "topologyKey", "podAffinityTerm"),
        namespaces=None if every else wanted or (namespace,),
        selector=_selector(term),
        weight=weight,
    )


def selects(selector: str, labels: Mapping[str, str]) -> bool:
    """Whether a selector means a pod with these labels."""
    if not selector:
        return False
    said: Any = json.loads(selector)
    exact = fields.mapping(said, "matchLabels", "labelSelector")
    conditions = fields.objects(said, "matchExpressions", "labelSelector")
    return all(labels.get(key) == value for key, value in exact.items()) and all(
        schedulable.holds(each, labels, "labelSelector.matchExpressions") for each in conditions
    )
