"""Pods that do not exist yet: of workloads, and of a cluster whose pods come again. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import Enum
from typing import Any, Final

from gpushare import names
from gpushare.errors import WireError
from gpushare.identity import NodeName, PodRef
from gpushare.model.request import PodRequest
from gpushare.wire import fields, interop, pods as pods_wire
from gpushare_cli import schedulable
from gpushare_cli.schedulable import NodeFacts
from gpushare_cli.simulate import objects, signature
from gpushare_cli.simulate.objects import Found, JsonObject
from gpushare_cli.simulate.signature import Owner, PodSignature

MAX_PODS: Final = 100_000  # more would take hours to place
SPREAD: Final = signature.SPREAD | {"Deployment"}  # workloads whose pods PodTopologySpread keeps apart
_STATIC: Final = frozenset({"DaemonSet", "Node"})
_TOLERATED: Final = tuple(  # by the pods of every DaemonSet
    {"key": f"node.kubernetes.io/{what}", "operator": "Exists"}
    for what in ("not-ready", "unreachable", "disk-pressure", "memory-pressure", "pid-pressure", "unschedulable")
)
_NO_LABELS: Final[Mapping[str, str]] = {}


class Outcome(Enum):
    PLACED = "Placed"
    WAITS = "Waits"  # no node takes it
    REFUSED = "Refused"  # the webhook does not let it be created


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:  # one that is to be placed
    ref: PodRef
    value: Mapping[str, Any]
    source: Found | None = None  # the workload that makes it, or its own manifest; None if a cluster has it
    signature: PodSignature | None = None  # None if it is not placed anywhere
    request: PodRequest | None = None  # None if it asks for no GPU, or `problem` says why it is not placed anywhere
    outcome: Outcome = Outcome.WAITS  # what a problem means
    problem: str = ""
    only: NodeName | None = None  # the only node that comes into question
    bound: bool = False  # it is on that node already and was given no GPU yet, so Kubernetes has nothing more to say
    created: str = ""  # time of its creation, if a cluster has had it
    at_s: float = 0.0  # when it comes, if pods end: from the first one's creation
    duration_s: float | None = None  # from its binding on; None if it never ends

    @property
    def workload(self) -> Found | None:
        return None if self.source is None or self.source.kind == "Pod" else self.source

    @property
    def replicas_of(self) -> Owner | None:
        """The owner whose pods kube-scheduler keeps apart, if the pod does not say so itself."""
        made_by = self.workload
        return (made_by.namespace, made_by.kind, made_by.name) if made_by and made_by.kind in SPREAD else None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Batch:
    count: int
    pods: Iterable[Pod]  # not made yet: there may be too many
    note: str = ""


def expand(wanted: Iterable[Found], known: Sequence[Found], nodes: Sequence[NodeFacts]) -> tuple[list[Pod], list[str]]:
    """The pods of all workloads, in the order of the files, and notes. WireError if there are too many.

    A workload whose pods are in the input was read from the cluster together with them, and makes no others.
    """
    pods, notes = list[Pod](), list[str]()
    for found in wanted:
        if made := _owned(found, known):
            notes.append(f"{found}: its {made} pods are in the input, so no others are made")
            continue
        with found.named():
            batch = _batch(found, nodes)
            if batch.count > MAX_PODS - len(pods):
                raise WireError(f"{batch.count} pods; at most {MAX_PODS} can be simulated together; ask for fewer")
            pods += batch.pods
        notes += [f"{found}: {batch.note}"] if batch.note else []
    return pods, notes


def _owned(found: Found, known: Iterable[Found]) -> int:
    through = {"Deployment": "ReplicaSet", "CronJob": "Job"}.get(found.kind, "")
    near = (pod for pod in known if pod.namespace == found.namespace)
    owners = [(owner.get("kind"), str(owner.get("name"))) for pod in near for owner in _owners(pod)]
    made_names = [name.rpartition("-")[0] for kind, name in owners if kind == through]
    return owners.count((found.kind, found.name)) + made_names.count(found.name)


def _owners(pod: Found) -> Sequence[Mapping[str, Any]]:
    return fields.objects(fields.mapping(pod.value, "metadata", "pod"), "ownerReferences", "metadata")


def _batch(found: Found, nodes: Sequence[NodeFacts]) -> _Batch:
    spec = fields.mapping(found.value, "spec", found.kind)
    match found.kind:
        case "Pod":
            return _Batch(count=1, pods=(_pod(found, found.value, "", found.name) for _ in range(1)))
        case "StatefulSet":
            return _stateful_set(found, spec)
        case "DaemonSet":
            return _daemon_set(found, spec, nodes)
        case "Job":
            return _job(found, spec, "spec", found.name)
        case "CronJob":
            job = fields.mapping(fields.mapping(spec, "jobTemplate", "spec"), "spec", "spec.jobTemplate")
            return _job(found, job, "spec.jobTemplate.spec", f"{found.name}-1")
        case _:
            return _replicas(found, spec)


def _replicas(found: Found, spec: Mapping[str, Any]) -> _Batch:
    base, labels, count = f"{found.name}-", _NO_LABELS, fields.integer(spec, "replicas", "spec", default=1)
    if found.kind == "Deployment":
        token = objects.letters(str(found), 10)
        base, labels = f"{base}{token}-", {"pod-template-hash": token}
    made = (objects.random_like(base, f"{found}/{i}") for i in range(count))
    return _Batch(count=count, pods=(_new(found, spec, "spec", name, labels) for name in made))


def _stateful_set(found: Found, spec: Mapping[str, Any]) -> _Batch:
    count = fields.integer(spec, "replicas", "spec", default=1)
    start = fields.integer(fields.mapping(spec, "ordinals", "spec"), "start", "spec.ordinals", default=0)

    def pod(index: int) -> Pod:
        name = f"{found.name}-{index}"
        labels = {"statefulset.kubernetes.io/pod-name": name, "apps.kubernetes.io/pod-index": f"{index}"}
        return _new(found, spec, "spec", name, labels)

    return _Batch(count=count, pods=map(pod, range(start, start + count)))


def _daemon_set(found: Found, spec: Mapping[str, Any], nodes: Sequence[NodeFacts]) -> _Batch:
    def pod(name: str, only: NodeName | None = None) -> Pod:
        made = _new(found, spec, "spec", name)
        own = made.value["spec"]
        tolerations = [*fields.objects(own, "tolerations", "spec.template.spec"), *_TOLERATED]
        return replace(made, value={**made.value, "spec": {**own, "tolerations": tolerations}}, only=only)

    probe = pod(found.name).value
    meant = [node.name for node in nodes if not schedulable.misplaced(probe, node)]
    pods = (pod(objects.random_like(f"{found.name}-", f"{found}/{node}"), node) for node in meant)
    return _Batch(count=len(meant), pods=pods, note="" if meant else "matches no node, so it makes no pods")


def _job(found: Found, spec: Mapping[str, Any], path: str, name: str) -> _Batch:
    """Only the pods that run at the same time: the others come when these have ended."""
    completions = fields.integer(spec, "completions", path, default=0)
    parallelism = fields.integer(spec, "parallelism", path, default=1)
    count = min(parallelism, completions) if completions else parallelism
    if spec.get("suspend") is True:
        return _Batch(count=0, pods=(), note="is suspended, so it makes no pods")

    def pod(i: int) -> Pod:
        base, labels = f"{name}-", {"batch.kubernetes.io/job-name": name, "job-name": name}
        if spec.get("completionMode") == "Indexed":
            base += f"{i}-"
            labels["batch.kubernetes.io/job-completion-index"] = str(i)
        return _new(found, spec, path, objects.random_like(base, f"{found}/{i}"), labels)

    note = f"{count} of its {completions} pods run at a time" if completions > count else ""
    return _Batch(count=count, pods=map(pod, range(count)), note=note)


def _new(found: Found, spec: Mapping[str, Any], path: str, name: str, labels: Mapping[str, str] = _NO_LABELS) -> Pod:
    return _pod(found, fields.mapping(spec, "template", path), f"{path}.template.", name, labels)


def _pod(
    found: Found, template: Mapping[str, Any], path: str, name: str, labels: Mapping[str, str] = _NO_LABELS
) -> Pod:
    """A pod as the API server would create it, with a uid of its own."""
    metadata = fields.mapping(template, "metadata", path.removesuffix("."))
    objects.check_texts(metadata, f"{path}metadata")
    spec = fields.mapping(template, "spec", path.removesuffix(".") or "pod")
    if not fields.objects(spec, "containers", f"{path}spec"):
        raise WireError(f"{path}spec.containers: missing")
    value = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "namespace": found.namespace,
            "name": name,
            "uid": f"new:{found.namespace}/{name}",
            "labels": {**fields.mapping(metadata, "labels", f"{path}metadata"), **labels},
            "annotations": dict(fields.mapping(metadata, "annotations", f"{path}metadata")),
        },
        "spec": dict(spec),
        "status": {"phase": "Pending"},
    }
    return Pod(ref=pods_wire.ref(value), value=value, source=found)


def is_static(pod: Found) -> bool:
    """Whether a pod is there before all others: of a DaemonSet, or of the kubelet itself."""
    return any(fields.text(owner, "kind", "metadata.ownerReferences") in _STATIC for owner in _owners(pod))


def replayed(pods: Iterable[Found]) -> list[Pod]:
    created = sorted(((_created(pod), pod) for pod in pods if not is_static(pod)), key=lambda pair: pair[0])
    return [
        Pod(
            ref=pods_wire.ref(pod.value),
            value=_as_created(pod.value),
            source=pod,
            created=pod.value["metadata"]["creationTimestamp"],
            at_s=at_s - created[0][0],
            duration_s=_duration_s(pod),
        )
        for at_s, pod in created
    ]


def _as_created(value: JsonObject) -> JsonObject:
    metadata, spec = value["metadata"], dict(value["spec"])
    spec.pop("nodeName", None)
    notes = {
        key: text
        for key, text in (metadata.get("annotations") or {}).items()
        if key != names.ANNOTATION_ALLOCATION and not interop.is_annotation(key)
    }
    kept = {key: metadata[key] for key in ("namespace", "name", "uid", "labels", "ownerReferences") if key in metadata}
    return {**value, "metadata": {**kept, "annotations": notes}, "spec": spec, "status": {"phase": "Pending"}}


def _created(pod: Found) -> float:
    metadata = fields.mapping(pod.value, "metadata", "pod")
    return _moment(fields.needed(metadata, "creationTimestamp", "metadata"), "metadata.creationTimestamp", pod)


def _duration_s(pod: Found) -> float | None:
    status = fields.mapping(pod.value, "status", "pod")
    began = fields.text(status, "startTime", "status")
    ends = [
        _moment(fields.needed(ended, "finishedAt", path), f"{path}.finishedAt", pod)
        for path, report in pods_wire.reports(pod.value)
        if (ended := fields.mapping(fields.mapping(report, "state", path), "terminated", path))
        and ended.get("finishedAt")
    ]
    if not began or not ends or fields.text(status, "phase", "status") not in {"Succeeded", "Failed"}:
        return None
    return max(max(ends) - _moment(began, "status.startTime", pod), 0.0)


def _moment(text: str, path: str, pod: Found) -> float:
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        raise pod.fail(f"{path}: expected a time such as 2026-01-31T12:00:00Z, found {text!r}") from None
