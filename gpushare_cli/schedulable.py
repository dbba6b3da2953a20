"""What Kubernetes itself demands of a node for a pod, as far as its objects tell. Pure.

It covers what decides about GPU pods most often, and `overlooked` names the rest: no answer of the command line claims
more than was evaluated.
"""

from collections.abc import Collection, Mapping
from typing import Any, Final

from gpushare import names, units
from gpushare.model.allocation import peak
from gpushare.model.capacity import FreeHost
from gpushare.wire import fields
from gpushare.wire import pods as pods_wire
from gpushare_cli import nodefacts
from gpushare_cli.nodefacts import RESOURCES, NodeFacts

Object = Mapping[str, Any]
_GROUPS: Final = frozenset(
    {
        "kueue.x-k8s.io/pod-group-name",
        "pod-group-name",  # KAI
        "scheduling.k8s.io/group-name",  # Volcano
        "scheduling.x-k8s.io/pod-group",
    }
)
"""Labels and annotations by which schedulers know the pods of a group; kube-scheduler's own is in the spec."""


def misplaced(pod: Object, node: NodeFacts) -> list[str]:
    """Everything about a node's place in the cluster that keeps a pod away, in a few words each."""
    preset = pods_wire.node_of(pod)
    if preset is not None:  # no one asks the scheduler
        return [] if preset == node.name else [f"spec.nodeName is {preset}"]
    return [
        *nodefacts.cordoned(pod, node),
        *nodefacts.untolerated(pod, node),
        *nodefacts.unselected(pod, node),
    ]


def short(pod: Object, node: NodeFacts, requested: Mapping[str, int]) -> list[str]:
    """GPU resources of which the node as a whole has too little left, by kube-scheduler's count.

    That is less than the GPUs have where pods hold a part of one that does not count any more, because it is unhealthy.
    """
    if node.allocatable is None:
        return []
    lacking = []
    for resource, amount in requests(pod).items():
        total, used = node.allocatable.get(resource, 0), requested.get(resource, 0)
        if amount > total - used:
            have = f"{total} allocatable" if total else "none allocatable"
            lacking.append(f"Insufficient {resource}: {amount} asked for, {have}, {used} requested by pods there")
    return lacking


def short_of_host(takes: FreeHost, host: FreeHost | None) -> list[str]:
    """CPU and memory of which a node has too little left; nothing where it is not known what it has."""
    if host is None:
        return []
    lacking = []
    if takes.cpu_milli > host.cpu_milli:
        lacking.append(f"Insufficient cpu: {takes.cpu_milli}m asked for, {host.cpu_milli}m free")
    if takes.memory_mib > host.memory_mib:
        lacking.append(f"Insufficient memory: {takes.memory_mib}Mi asked for, {host.memory_mib}Mi free")
    return lacking


def gates(pod: Object) -> list[str]:
    """Names of the gates behind which a pod waits before any scheduler looks at it."""
    spec = fields.mapping(pod, "spec", "pod")
    return [
        fields.text(gate, "name", "spec.schedulingGates") for gate in fields.objects(spec, "schedulingGates", "spec")
    ]


def requests(pod: Object) -> dict[str, int]:
    """GPU resources that kube-scheduler counts for a pod, by its formula for init containers and sidecars."""
    resources, times = sorted(RESOURCES), {names.GPU_MEM: _multiplier(pod)}
    steps = []
    for _, kind, container in pods_wire.containers(pod):
        limits = fields.mapping(fields.mapping(container, "resources", "container"), "limits", "container.resources")
        amounts = (units.whole(limits.get(resource)) * times.get(resource, 1) for resource in resources)
        steps.append((kind, tuple(amounts)))
    return {resource: amount for resource, amount in zip(resources, peak(steps), strict=False) if amount}


def counts(pod: Object) -> bool:
    """Whether kube-scheduler counts a bound pod: until it has ended, also while it is being deleted."""
    phase = fields.text(fields.mapping(pod, "status", "pod"), "phase", "status")
    return phase not in {"Succeeded", "Failed"}


def overlooked(pod: Object, *, with_host: bool = False) -> list[str]:
    """What may keep a pod away from a node, too, and was not evaluated; with CPU and memory, if that was."""
    spec = fields.mapping(pod, "spec", "pod")
    affinity = fields.mapping(spec, "affinity", "spec")
    demanded = {
        "CPU, memory and other resources": not with_host and _asks_beside(pod, RESOURCES),
        "resources other than GPUs, CPU and memory": with_host and _asks_beside(pod, (*RESOURCES, "cpu", "memory")),
        "pod affinity": affinity.get("podAffinity") or affinity.get("podAntiAffinity"),
        "topology spread constraints": spec.get("topologySpreadConstraints"),
        "volumes": any(
            "persistentVolumeClaim" in volume or "ephemeral" in volume
            for volume in fields.objects(spec, "volumes", "spec")
        ),
        "host ports": any(
            port.get("hostPort")
            for path, _, container in pods_wire.containers(pod)
            for port in fields.objects(container, "ports", path)
        ),
        "resource claims": spec.get("resourceClaims"),
        "other pods of its group": _has_group(pod, spec),
    }
    return [what for what, there in demanded.items() if there]


def _has_group(pod: Object, spec: Object) -> bool:
    """Whether a scheduler starts it together with others."""
    marks = {*pods_wire.labels(pod), *pods_wire.annotations(pod)}
    return bool(spec.get("schedulingGroup") or spec.get("workloadRef") or marks & _GROUPS)


def _asks_beside(pod: Object, known: Collection[str]) -> bool:
    """Whether the pod asks for anything but these resources."""
    for _, _, container in pods_wire.containers(pod):
        resources = fields.mapping(container, "resources", "container")
        for field in ("limits", "requests"):
            if fields.mapping(resources, field, "container.resources").keys() - set(known):
                return True
    return False


def _multiplier(pod: Object) -> int:
    """The webhook multiplies the limits of the per-GPU form; a manifest that it has not seen counts as if it had."""
    if pods_wire.limits_are_totals(pod):
        return 1
    return max(units.whole(pods_wire.annotations(pod).get(names.ANNOTATION_GPUS)), 1)
