"""What Kubernetes demands of a node for a pod: taints, selectors, sums; `overlooked` names what is not told. Pure."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from gpushare import names, units
from gpushare.identity import NodeName
from gpushare.model.ledger import peak
from gpushare.model.request import Operator, Requirement
from gpushare.wire import fields, pods as pods_wire

Object = Mapping[str, Any]
HOSTNAME: Final = "kubernetes.io/hostname"
REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED: Final = "preferredDuringSchedulingIgnoredDuringExecution"
BLOCKING: Final = frozenset({"NoSchedule", "NoExecute"})
_CORDON: Final = "node.kubernetes.io/unschedulable"
RESOURCES: Final = (names.GPU_MEM, names.GPU_PERCENT, names.GPU_CORE, names.GPU)  # whose sums are checked
CLAIMS: Final = "resource claims"
PODS: Final = "pods"
_GROUPS: Final = frozenset(  # labels and annotations of the pods of a group; kube-scheduler's own is in the spec
    {
        "kueue.x-k8s.io/pod-group-name",
        "pod-group-name",  # KAI
        "scheduling.k8s.io/group-name",  # Volcano
        "scheduling.x-k8s.io/pod-group",
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Taint:
    key: str
    value: str
    effect: str

    def __str__(self) -> str:
        return f"{self.key}={self.value}:{self.effect}" if self.value else f"{self.key}:{self.effect}"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFacts:
    name: NodeName
    labels: Mapping[str, str]
    taints: tuple[Taint, ...] = ()
    cordoned: bool = False
    allocatable: Mapping[str, int] | None = None  # GPU resources, and pods; None if there is no status


def node_facts(node: Object) -> NodeFacts:
    metadata = fields.mapping(node, "metadata", "node")
    spec, status = fields.mapping(node, "spec", "node"), fields.mapping(node, "status", "node")
    name = NodeName(fields.needed(metadata, "name", "metadata"))
    allocatable = fields.mapping(status, "allocatable", "status")
    return NodeFacts(
        name=name,
        labels={HOSTNAME: name, **fields.mapping(metadata, "labels", "metadata")},
        taints=tuple(
            Taint(
                key=fields.needed(taint, "key", f"spec.taints[{i}]"),
                value=fields.text(taint, "value", f"spec.taints[{i}]"),
                effect=fields.text(taint, "effect", f"spec.taints[{i}]"),
            )
            for i, taint in enumerate(fields.objects(spec, "taints", "spec"))
        ),
        cordoned=spec.get("unschedulable") is True,
        allocatable={key: units.whole(allocatable.get(key)) for key in (*RESOURCES, PODS)} if allocatable else None,
    )


def misplaced(pod: Object, node: NodeFacts) -> list[str]:
    """Everything about a node's place in the cluster that keeps a pod away, in a few words each."""
    preset = pods_wire.node_of(pod)
    if preset is not None:  # no one asks the scheduler
        return [] if preset == node.name else [f"spec.nodeName is {preset}"]
    cordoned = node.cordoned and not _tolerates(pod, Taint(key=_CORDON, value="", effect="NoSchedule"))
    taints = [taint for taint in node.taints if taint.effect in BLOCKING and taint.key != _CORDON]
    return [
        *(["cordoned (spec.unschedulable)"] if cordoned else []),
        *(f"taint {taint} is not tolerated" for taint in taints if not _tolerates(pod, taint)),
        *unselected(pod, node),
    ]


def repelling(pod: Object, node: NodeFacts) -> int:
    """How many taints that pods avoid if they can (PreferNoSchedule) the pod does not tolerate."""
    return sum(taint.effect == "PreferNoSchedule" and not _tolerates(pod, taint) for taint in node.taints)


def attracting(pod: Object, node: NodeFacts) -> int:
    """The sum of the weights of preferred node affinity that hold of a node."""
    affinity = fields.mapping(fields.mapping(pod, "spec", "pod"), "affinity", "spec")
    path, total = "spec.affinity.nodeAffinity", 0
    for i, each in enumerate(
        fields.objects(fields.mapping(affinity, "nodeAffinity", "spec.affinity"), PREFERRED, path)
    ):
        where = f"{path}.{PREFERRED}[{i}]"
        if _term(fields.mapping(each, "preference", where), node, f"{where}.preference"):
            total += fields.integer(each, "weight", where, default=0)
    return total


def _tolerates(pod: Object, taint: Taint) -> bool:
    for toleration in fields.objects(fields.mapping(pod, "spec", "pod"), "tolerations", "spec"):
        key, effect, operator, value = (
            fields.text(toleration, field, "spec.tolerations") for field in ("key", "effect", "operator", "value")
        )
        exists = operator == "Exists" and key in {"", taint.key}
        equals = operator in {"", "Equal"} and (key, value) == (taint.key, taint.value)
        if (exists or equals) and effect in {"", taint.effect}:
            return True
    return False


def unselected(pod: Object, node: NodeFacts) -> Iterator[str]:
    """Of the node selector and the required node affinity."""
    spec = fields.mapping(pod, "spec", "pod")
    for key, value in sorted(fields.mapping(spec, "nodeSelector", "spec").items()):
        if node.labels.get(key) != value:
            has = f"the node has {node.labels[key]}" if key in node.labels else "the node has no such label"
            yield f"spec.nodeSelector wants {key}={value}, {has}"
    affinity = fields.mapping(fields.mapping(spec, "affinity", "spec"), "nodeAffinity", "spec.affinity")
    path = f"spec.affinity.nodeAffinity.{REQUIRED}"
    if affinity.get(REQUIRED) is None:
        return
    terms = fields.objects(fields.mapping(affinity, REQUIRED, "spec.affinity.nodeAffinity"), "nodeSelectorTerms", path)
    if not any(_term(term, node, f"{path}.nodeSelectorTerms[{i}]") for i, term in enumerate(terms)):
        yield "no term of the required node affinity matches"


def _term(term: Object, node: NodeFacts, path: str) -> bool:
    """As Kubernetes: a term without conditions matches nothing."""
    found = [
        _holds(condition, values, f"{path}.{field}[{i}]")
        for field, values in (("matchExpressions", node.labels), ("matchFields", {"metadata.name": str(node.name)}))
        for i, condition in enumerate(fields.objects(term, field, path))
    ]
    return bool(found) and all(found)


def _holds(condition: Object, labels: Mapping[str, str], path: str) -> bool:
    key, operator = str(condition.get("key")), condition.get("operator")
    wanted = fields.strings(condition, "values", path)
    try:
        if operator in {"Gt", "Lt"}:  # which selectors of pods do not have
            value, limit = int(labels.get(key, "")), int("".join(wanted[:1]))
            return value > limit if operator == "Gt" else value < limit
        return Requirement(key, Operator(operator), tuple(wanted)).holds(labels)
    except (ValueError, TypeError):  # of an odd object
        return False


def gates(pod: Object) -> list[str]:
    """Names of the gates behind which a pod waits before any scheduler looks at it."""
    found = fields.objects(fields.mapping(pod, "spec", "pod"), "schedulingGates", "spec")
    return [fields.text(gate, "name", "spec.schedulingGates") for gate in found]


def requests(pod: Object) -> dict[str, int]:
    """GPU resources that kube-scheduler counts for a pod, by its formula for init containers and sidecars."""
    resources, times = sorted(RESOURCES), {names.GPU_MEM: _multiplier(pod)}
    steps = []
    for _, kind, container in pods_wire.containers(pod):
        limits = pods_wire.amounts(container, "limits")
        amounts = (units.whole(limits.get(resource)) * times.get(resource, 1) for resource in resources)
        steps.append((kind, tuple(amounts)))
    return {resource: amount for resource, amount in zip(resources, peak(steps), strict=False) if amount}


def overlooked(pod: Object, *, with_host: bool = False) -> list[str]:
    """What may keep a pod away from a node, too, and was not evaluated; with CPU and memory, if that was."""
    spec = fields.mapping(pod, "spec", "pod")
    affinity = fields.mapping(spec, "affinity", "spec")
    asked = {resource for _, _, each in pods_wire.containers(pod) for _, resource, _ in pods_wire.named_resources(each)}
    others = asked.difference(RESOURCES)
    marks = {*pods_wire.labels(pod), *pods_wire.annotations(pod)}
    demanded = {
        "CPU, memory and other resources": not with_host and others,
        "resources other than GPUs, CPU and memory": with_host and others - {"cpu", "memory"},
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
        CLAIMS: spec.get("resourceClaims"),
        "other pods of its group": spec.get("schedulingGroup") or spec.get("workloadRef") or marks & _GROUPS,
    }
    return [what for what, there in demanded.items() if there]


def _multiplier(pod: Object) -> int:
    """The webhook multiplies the limits of the per-GPU form; a manifest that it has not seen counts as if it had."""
    if pods_wire.limits_are_totals(pod):
        return 1
    return max(units.whole(pods_wire.annotations(pod).get(names.ANNOTATION_GPUS)), 1)
