"""Workloads -> the pods that their controllers would create. Pure."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from gpushare.errors import WireError
from gpushare.identity import NodeName
from gpushare.wire import fields
from gpushare_cli import schedulable
from gpushare_cli.schedulable import NodeFacts
from gpushare_cli.simulate import objects
from gpushare_cli.simulate.objects import Found, JsonObject

MAX_PODS: Final = 100_000
"""More would take hours to place."""
SPREAD: Final = frozenset({"Deployment", "ReplicaSet", "ReplicationController", "StatefulSet"})
"""Workloads whose pods PodTopologySpread keeps apart."""
_TOLERATED: Final = tuple(
    {"key": f"node.kubernetes.io/{what}", "operator": "Exists"}
    for what in ("not-ready", "unreachable", "disk-pressure", "memory-pressure", "pid-pressure", "unschedulable")
)
"""What the pods of every DaemonSet tolerate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewPod:
    """A pod that would be created."""

    of: Found
    """The workload, or the pod's own manifest."""
    value: JsonObject
    only: NodeName | None = None
    """The node for which a DaemonSet makes it."""


def expand(
    wanted: Iterable[Found], known: Sequence[Found], nodes: Sequence[NodeFacts]
) -> tuple[list[NewPod], list[str]]:
    """The pods of all workloads, in the order of the files, and notes.

    A workload whose pods are in the input was read from the cluster together with them, and makes no others.

    Raises:
        WireError: a workload cannot be read, or there are too many pods.
    """
    pods: list[NewPod] = []
    notes: list[str] = []
    for found in wanted:
        made = _owned(found, known)
        if made:
            notes.append(f"{found}: its {made} pods are in the input, so no others are made")
            continue
        try:
            batch = _batch(found, nodes)
            pods += _made(batch, MAX_PODS - len(pods))
        except WireError as error:
            raise found.fail(error) from error
        notes += [f"{found}: {batch.note}"] if batch.note else []
    return pods, notes


@dataclass(frozen=True, slots=True, kw_only=True)
class _Batch:
    """Pods of one workload that are not made yet: there may be too many."""

    count: int
    make: Callable[[int], NewPod]
    note: str = ""


def _made(batch: _Batch, room: int) -> list[NewPod]:
    if batch.count > room:
        raise WireError(f"{batch.count} pods; at most {MAX_PODS} can be simulated together; ask for fewer")
    return [batch.make(i) for i in range(batch.count)]


def _owned(found: Found, known: Iterable[Found]) -> int:
    """How many known pods this workload, or what it makes, owns."""
    through = {"Deployment": "ReplicaSet", "CronJob": "Job"}.get(found.kind, "")
    return sum(
        _owns(owner, found, through)
        for pod in known
        if pod.namespace == found.namespace
        for owner in fields.objects(fields.mapping(pod.value, "metadata", "pod"), "ownerReferences", "metadata")
    )


def _owns(owner: Mapping[str, Any], found: Found, through: str) -> bool:
    name = str(owner.get("name"))
    if owner.get("kind") == found.kind:
        return name == found.name
    return owner.get("kind") == through and name.rpartition("-")[0] == found.name


def _batch(found: Found, nodes: Sequence[NodeFacts]) -> _Batch:
    spec = fields.mapping(found.value, "spec", found.kind)
    match found.kind:
        case "Pod":
            pod = _pod(found, found.value, "", found.name, {})
            return _Batch(count=1, make=lambda _: NewPod(of=found, value=pod))
        case "StatefulSet":
            return _stateful_set(found, spec)
        case "DaemonSet":
            return _daemon_set(found, spec, nodes)
        case "Job":
            return _job(found, spec, "spec", found.name)
        case "CronJob":
            template = fields.mapping(spec, "jobTemplate", "spec")
            job = fields.mapping(template, "spec", "spec.jobTemplate")
            return _job(found, job, "spec.jobTemplate.spec", f"{found.name}-1")
        case _:
            return _replicas(found, spec)


def _replicas(found: Found, spec: Mapping[str, Any]) -> _Batch:
    """Of a Deployment, a ReplicaSet or a ReplicationController."""
    base, labels = f"{found.name}-", {}
    if found.kind == "Deployment":
        token = objects.template_hash(str(found))
        base, labels = f"{base}{token}-", {"pod-template-hash": token}

    def make(i: int) -> NewPod:
        return _new(found, spec, "spec", objects.random_like(base, f"{found}/{i}"), labels)

    return _Batch(count=fields.integer(spec, "replicas", "spec", default=1), make=make)


def _stateful_set(found: Found, spec: Mapping[str, Any]) -> _Batch:
    start = fields.integer(fields.mapping(spec, "ordinals", "spec"), "start", "spec.ordinals", default=0)

    def make(i: int) -> NewPod:
        index = str(start + i)
        name = f"{found.name}-{index}"
        labels = {"statefulset.kubernetes.io/pod-name": name, "apps.kubernetes.io/pod-index": index}
        return _new(found, spec, "spec", name, labels)

    return _Batch(count=fields.integer(spec, "replicas", "spec", default=1), make=make)


def _daemon_set(found: Found, spec: Mapping[str, Any], nodes: Sequence[NodeFacts]) -> _Batch:
    def pod(name: str, only: NodeName | None) -> NewPod:
        made = _new(found, spec, "spec", name, {})
        tolerations = [*fields.objects(made.value["spec"], "tolerations", "spec.template.spec"), *_TOLERATED]
        return replace(
            made, value={**made.value, "spec": {**made.value["spec"], "tolerations": tolerations}}, only=only
        )

    probe = pod(found.name, None).value
    meant = [node.name for node in nodes if not schedulable.misplaced(probe, node)]

    def make(i: int) -> NewPod:
        return pod(objects.random_like(f"{found.name}-", f"{found}/{meant[i]}"), meant[i])

    return _Batch(count=len(meant), make=make, note="" if meant else "matches no node, so it makes no pods")


def _job(found: Found, spec: Mapping[str, Any], path: str, name: str) -> _Batch:
    """Only the pods that run at the same time: the others come when these have ended."""
    completions = fields.integer(spec, "completions", path, default=0)
    parallelism = fields.integer(spec, "parallelism", path, default=1)
    count = min(parallelism, completions) if completions else parallelism
    indexed = spec.get("completionMode") == "Indexed"

    def make(i: int) -> NewPod:
        base = f"{name}-{i}-" if indexed else f"{name}-"
        labels = {"batch.kubernetes.io/job-name": name, "job-name": name}
        if indexed:
            labels["batch.kubernetes.io/job-completion-index"] = str(i)
        return _new(found, spec, path, objects.random_like(base, f"{found}/{i}"), labels)

    if spec.get("suspend") is True:
        return _Batch(count=0, make=make, note="is suspended, so it makes no pods")
    note = f"{count} of its {completions} pods run at a time" if completions > count else ""
    return _Batch(count=count, make=make, note=note)


def _new(found: Found, spec: Mapping[str, Any], path: str, name: str, labels: Mapping[str, str]) -> NewPod:
    template = fields.mapping(spec, "template", path)
    return NewPod(of=found, value=_pod(found, template, f"{path}.template.", name, labels))


def _pod(found: Found, template: Mapping[str, Any], path: str, name: str, labels: Mapping[str, str]) -> JsonObject:
    """A pod as the API server would create it, with a uid of its own."""
    metadata = fields.mapping(template, "metadata", path.removesuffix("."))
    objects.check_texts(metadata, f"{path}metadata")
    spec = fields.mapping(template, "spec", path.removesuffix(".") or "pod")
    if not fields.objects(spec, "containers", f"{path}spec"):
        raise WireError(f"{path}spec.containers: missing")
    return {
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
