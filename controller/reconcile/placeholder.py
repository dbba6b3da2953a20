"""The placeholder of a waiting pod: it asks for the same, and not on the nodes whose GPUs have no room. Pure.

kube-scheduler never binds it, as the extender refuses it everywhere. An autoscaler, which asks no extender, sees that
it fits on no node that is there, and on a new one.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from gpushare import names
from gpushare.errors import WireError
from gpushare.identity import NodeName, PodRef, PodUid
from gpushare.kube.api import JsonObject
from gpushare.wire import fields
from gpushare.wire import pods as pods_wire

REFUSED: Final = "this pod only asks an autoscaler for a node, and never runs"
SAFE_TO_EVICT: Final = "cluster-autoscaler.kubernetes.io/safe-to-evict"
_PREFIX: Final = "for-"
_IMAGE: Final = "registry.k8s.io/pause:3.10"  # never pulled
_NAME: Final = "metadata.name"
_EXPENDABLE: Final = -10
"""Cluster Autoscaler adds no nodes for pods of a lower priority, by default, and a placeholder must not change that."""
_REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"


@dataclass(frozen=True, slots=True, kw_only=True)
class Placeholder:
    """One that is there."""

    uid: PodUid
    pod: PodUid
    """The pod that it stands for."""
    nodes: frozenset[NodeName]
    """On which it must not be."""
    attempt: int
    created: datetime
    namespace: str
    """Of that pod."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What the API server says of a pod that waits."""

    spec: JsonObject
    """Of its placeholder, which may be on any node."""
    settled: bool
    """No other node is to be asked for: it is bound, going, expendable, or pods are evicted for it."""


def path(pod: PodUid | None = None) -> str:
    """Of all placeholders, or of the one of a pod."""
    collection = f"/api/v1/namespaces/{names.PLACEHOLDERS}/pods"
    return collection if pod is None else f"{collection}/{_PREFIX}{pod}"


def wanted(pod: Mapping[str, Any]) -> Wanted:
    """Reduces a pod.

    Raises:
        WireError: its fields are not what they should be.
    """
    spec, status = fields.mapping(pod, "spec", "pod"), fields.mapping(pod, "status", "pod")
    going = bool(fields.mapping(pod, "metadata", "pod").get("deletionTimestamp"))
    affinity = fields.mapping(fields.mapping(spec, "affinity", "spec"), "nodeAffinity", "spec.affinity")
    required = fields.mapping(affinity, _REQUIRED, "spec.affinity.nodeAffinity")
    # One without conditions matches nothing; with the nodes to keep away from, it would match all others.
    terms = [term for term in fields.objects(required, "nodeSelectorTerms", "required") if any(term.values())]
    kept = {key: spec[key] for key in ("schedulerName", "nodeSelector", "tolerations") if spec.get(key)}
    return Wanted(
        spec={
            **kept,
            "priorityClassName": names.PRIORITY_PLACEHOLDER,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "terminationGracePeriodSeconds": 0,
            "restartPolicy": "Always",
            "securityContext": {"runAsNonRoot": True, "runAsUser": 65532, "seccompProfile": {"type": "RuntimeDefault"}},
            "affinity": {"nodeAffinity": {_REQUIRED: {"nodeSelectorTerms": terms or [{}]}}},
            "initContainers": _containers(spec, "initContainers"),
            "containers": _containers(spec, "containers"),
        },
        settled=going
        or fields.integer(spec, "priority", "spec", default=0) < _EXPENDABLE
        or bool(status.get("nominatedNodeName"))
        or pods_wire.node_of(pod) is not None,
    )


def make(pod: PodRef, spec: JsonObject, nodes: Collection[NodeName], attempt: int) -> JsonObject:
    """The placeholder of a pod.

    Args:
        pod: it waits.
        spec: as `wanted` gives it.
        nodes: on which it must not be; by name, because the label with a node's host name may differ from it.
        attempt: from 1 on.
    """
    away = [{"key": _NAME, "operator": "NotIn", "values": [name]} for name in sorted(nodes)]
    terms = [{**term, "matchFields": [*term.get("matchFields", ()), *away]} for term in terms_of(spec)]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"{_PREFIX}{pod.uid}",
            "namespace": names.PLACEHOLDERS,
            "labels": {"app.kubernetes.io/name": "gpushare-placeholder", "app.kubernetes.io/part-of": "gpushare"},
            "annotations": {
                names.ANNOTATION_PLACEHOLDER_FOR: str(pod),
                names.ANNOTATION_ATTEMPT: str(attempt),
                # In its simulation an autoscaler puts it on the new node, where it must not count as one to be kept.
                SAFE_TO_EVICT: "true",
            },
        },
        "spec": {**spec, "affinity": {"nodeAffinity": {_REQUIRED: {"nodeSelectorTerms": terms}}}},
    }


def terms_of(spec: JsonObject) -> Sequence[JsonObject]:
    """The alternatives of a placeholder's node affinity: each of them names all nodes on which it must not be."""
    terms: Sequence[JsonObject] = spec["affinity"]["nodeAffinity"][_REQUIRED]["nodeSelectorTerms"]
    return terms


def read(pod: Mapping[str, Any]) -> Placeholder | None:
    """A pod of the placeholders' namespace; None if it is none of the controller's.

    Raises:
        WireError: its fields are not what they should be.
    """
    ref, meta = pods_wire.ref(pod), fields.mapping(pod, "metadata", "pod")
    annotations = pods_wire.annotations(pod)
    attempt = annotations.get(names.ANNOTATION_ATTEMPT)
    if attempt is None or not ref.name.startswith(_PREFIX):
        return None
    created = fields.text(meta, "creationTimestamp", "metadata")
    if not str(attempt).isdecimal():
        raise WireError(f"metadata.annotations: {names.ANNOTATION_ATTEMPT}: expected a number")
    try:
        at = datetime.fromisoformat(created)
    except ValueError:
        raise WireError("metadata.creationTimestamp: expected a time") from None
    affinity = fields.mapping(fields.mapping(pod, "spec", "pod"), "affinity", "spec").get("nodeAffinity", {})
    terms = affinity.get(_REQUIRED, {}).get("nodeSelectorTerms", [])
    away = [field for term in terms[:1] for field in term.get("matchFields", ()) if field["key"] == _NAME]
    return Placeholder(
        uid=ref.uid,
        pod=PodUid(ref.name.removeprefix(_PREFIX)),
        nodes=frozenset(NodeName(name) for field in away if field["operator"] == "NotIn" for name in field["values"]),
        attempt=int(attempt),
        created=at,
        namespace=str(annotations.get(names.ANNOTATION_PLACEHOLDER_FOR, "")).partition("/")[0],
    )


def _containers(spec: Mapping[str, Any], key: str) -> list[JsonObject]:
    """Nothing but what they take, and whether an init container stays."""
    made = []
    for number, container in enumerate(fields.objects(spec, key, "spec")):
        resources = fields.mapping(container, "resources", f"spec.{key}")
        stays = {"restartPolicy": container["restartPolicy"]} if container.get("restartPolicy") else {}
        made.append(
            {
                "name": f"{'init' if key == 'initContainers' else 'c'}{number}",
                "image": _IMAGE,
                "resources": {part: resources[part] for part in ("requests", "limits") if resources.get(part)},
                "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
                **stays,
            }
        )
    return made
