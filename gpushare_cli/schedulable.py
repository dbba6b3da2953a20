"""What Kubernetes demands of a node for a pod: taints, selectors, sums; `overlooked` names what is not told. Pure."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from gpushare import names, units
from gpushare.identity import NodeName
from gpushare.model.ledger import peak
from gpushare.wire import fields, pods as pods_wire

Object = Mapping[str, Any]
HOSTNAME: Final = "kubernetes.io/hostname"
BLOCKING: Final = frozenset({"NoSchedule", "NoExecute"})
_CORDON: Final = "node.kubernetes.io/unschedulable"
RESOURCES: Final = (names.GPU_MEM, names.GPU_PERCENT, names.GPU_CORE, names.GPU)  # whose sums are checked
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
    allocatable: Mapping[str, int] | None = None  # GPU resources; None if there is no status


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
        allocatable={key: units.whole(allocatable.get(key)) for key in RESOURCES} if allocatable else None,
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
    path = "spec.affinity.nodeAffinity"
    field = "preferredDuringSchedulingIgnoredDuringExecution"
    total = 0
    for i, each in enumerate(fields.objects(fields.mapping(affinity, "nodeAffinity", "spec.affinity"), field, path)):
        where = f"{path}.{field}[{i}]"
        if _term(fields.mapping(each, "preference", where), node, f"{where}.preference"):
            total += fields.integer(each, "weight", where, default=0)
    return total


def _tolerates(pod: Object, taint: Taint) -> bool:
    tolerations = fields.objects(fields.mapping(pod, "spec", "pod"), "tolerations", "spec")
    return any(_matches_taint(toleration, taint) for toleration in tolerations)


def _matches_taint(toleration: Object, taint: Taint) -> bool:
    key, effect, operator, value = (
        fields.text(toleration, field, "spec.tolerations") for field in ("key", "effect", "operator", "value")
    )
    if effect not in {"", taint.effect}:
        return False
    if operator == "Exists":
        return key in {"", taint.key}
    return operator in {"", "Equal"} and key == taint.key and value == taint.value


def unselected(pod: Object, node: NodeFacts) -> Iterator[str]:
    """Of the node selector and the required node affinity."""
    spec = fields.mapping(pod, "spec", "pod")
    for key, value in sorted(fields.mapping(spec, "nodeSelector", "spec").items()):
        if node.labels.get(key) != value:
            has = f"the node has {node.labels[key]}" if key in node.labels else "the node has no such label"
            yield f"spec.nodeSelector wants {key}={value}, {has}"
    affinity = fields.mapping(fields.mapping(spec, "affinity", "spec"), "nodeAffinity", "spec.affinity")
    field = "requiredDuringSchedulingIgnoredDuringExecution"
    path = f"spec.affinity.nodeAffinity.{field}"
    if affinity.get(field) is None:
        return
    terms = fields.objects(fields.mapping(affinity, field, "spec.affinity.nodeAffinity"), "nodeSelectorTerms", path)
    if not any(_term(term, node, f"{path}.nodeSelectorTerms[{i}]") for i, term in enumerate(terms)):
        yield "no term of the required node affinity matches"


def _term(term: Object, node: NodeFacts, path: str) -> bool:
    """As Kubernetes: a term without conditions matches nothing."""
    by_label = fields.objects(term, "matchExpressions", path)
    by_field = fields.objects(term, "matchFields", path)
    if not by_label and not by_field:
        return False
    values = {"metadata.name": str(node.name)}
    return all(holds(each, node.labels, f"{path}.matchExpressions[{i}]") for i, each in enumerate(by_label)) and all(
        holds(each, values, f"{path}.matchFields[{i}]") for i, each in enumerate(by_field)
    )


def holds(condition: Object, labels: Mapping[str, str], path: str) -> bool:
    """Whether labels meet one of an object's `matchExpressions`, which `path` names."""
    value = labels.get(str(condition.get("key")))
    wanted = fields.strings(condition, "values", path)
    match condition.get("operator"):
        case "In":
            return value in wanted
        case "NotIn":
            return value not in wanted
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt" | "Lt" as operator:
            return _compare(operator, value, wanted)
        case _:
            return False


def _compare(operator: str, value: str | None, wanted: Sequence[Any]) -> bool:
    try:
        left, right = int(value or ""), int(wanted[0])
    except (ValueError, TypeError, IndexError):
        return False
    return left > right if operator == "Gt" else left < right


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
    marks = {*pods_wire.labels(pod), *pods_wire.annotations(pod)}
    return bool(spec.get("schedulingGroup") or spec.get("workloadRef") or marks & _GROUPS)


def _asks_beside(pod: Object, known: Collection[str]) -> bool:
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
