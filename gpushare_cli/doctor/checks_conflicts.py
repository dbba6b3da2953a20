"""Whether anybody else hands out the same GPUs, and the cluster's own GPU add-ons see those that they need. Pure."""

from collections import Counter
from collections.abc import Iterator, Mapping, Set
from typing import Any, Final

from gpushare import names, units
from gpushare.cluster import budgets
from gpushare.kube.api import JsonObject
from gpushare.wire import fields, pods as pods_wire
from gpushare_cli.doctor import checks_admission, checks_scheduling, foreign, objects
from gpushare_cli.doctor.facts import Facts, Finding, GpuNode, error, warning
from gpushare_cli.doctor.foreign import ForeignPod, Role
from gpushare_cli.doctor.snapshot import Unreadable, read

# Labels of nodes that NVIDIA's GPU Operator, its plugin and its feature discovery read or write.
KEPT_OFF: Final = "nvidia.com/gpu.deploy.device-plugin"
CONFIG: Final = "nvidia.com/device-plugin.config"
MPS_CAPABLE: Final = "nvidia.com/mps.capable"
_STRATEGY: Final = "nvidia.com/gpu.sharing-strategy"
_REPLICAS: Final = "nvidia.com/gpu.replicas"
_MIG: Final = "nvidia.com/mig-"
_SEE: Final = "see docs/gpu-operator.md"
_DRA_DRIVER: Final = "gpu.nvidia.com"  # its other driver, compute-domain.nvidia.com, hands out no GPUs


def nvidia_plugin(facts: Facts) -> Iterator[Finding]:
    """NVIDIA's own plugin does not hand out the GPUs of a node that shares."""
    for node in facts.sharing:
        plugin = next((each for each in _plugins_on(facts, node) if each.system is foreign.NVIDIA), None)
        offered = _offered(node, {names.GPU} if facts.settings.whole_gpus and plugin is None else frozenset())
        if plugin is not None:
            what = f"; the node offers {offered}" if offered else ""
            yield error(f"node/{node.name}", f"{plugin} hands out the same GPUs{what}", _fix(plugin))
        elif offered:
            problem = f"another plugin offers {offered} there, which are the GPUs that are shared"
            fix = f"find who: kubectl get pods -A --field-selector spec.nodeName={node.name}; take it off the node"
            yield error(f"node/{node.name}", problem, fix)


def nvidia_sharing(facts: Facts) -> Iterator[Finding]:
    """NVIDIA's plugin is not configured to share the GPUs of such a node itself, by MPS or by time-slicing."""
    daemons = {pod.node: pod for pod in facts.foreign_pods if pod.role is Role.MPS}
    for node in facts.sharing:
        if (daemon := daemons.get(node.name)) is not None:
            problem = f"{daemon} runs there: it keeps GPUs in exclusive mode, so that one container alone can use each"
            fix = f"kubectl label node {node.name} {MPS_CAPABLE}- {CONFIG}-, and see docs/gpu-operator.md"
            yield error(f"node/{node.name}", problem, fix)
        elif labels := _sharing_labels(node):
            problem = f"NVIDIA's software is configured to share its GPUs as well ({', '.join(labels)})"
            fix = f"kubectl label node {node.name} --overwrite {KEPT_OFF}=false {CONFIG}- {MPS_CAPABLE}-; {_SEE}"
            yield warning(f"node/{node.name}", problem, fix)
    yield from _nvidia_configs(facts)


def _sharing_labels(node: GpuNode) -> list[str]:
    """Those that NVIDIA's feature discovery writes by the configuration of its plugin."""
    replicas = str(node.labels.get(_REPLICAS, ""))
    found = {
        _STRATEGY: node.labels.get(_STRATEGY) in {"mps", "time-slicing"},
        MPS_CAPABLE: node.labels.get(MPS_CAPABLE) == "true",
        _REPLICAS: replicas.isdecimal() and int(replicas) > 1,
    }
    return [f"{key}={node.labels[key]}" for key, shares in found.items() if shares]


def _nvidia_configs(facts: Facts) -> Iterator[Finding]:
    part = facts.snapshot.nvidia_configs
    if isinstance(part, Unreadable):
        problem = f"not checked whether they have it share GPUs: {part.error}"
        fix = f"get rights to list ConfigMaps in {', '.join(names.ADDON_NAMESPACES)}"
        yield warning("configmaps of NVIDIA's plugin", problem, fix)
        return
    reached = [node.name for node in facts.sharing if node.labels.get(KEPT_OFF) != "false"]
    for config in part if reached else ():
        ways = ", ".join(f"{key} by {way}" for key, way in sorted(foreign.sharing(config).items()))
        count = f"{len(reached)} nodes that share" if len(reached) > 1 else f"node {reached[0]}, which shares"
        problem = f"it has NVIDIA's plugin share GPUs ({ways}), and that plugin is not kept off {count}"
        fix = f"kubectl label node {reached[0]} {KEPT_OFF}=false, and so on for each"
        yield warning(f"configmap/{config['metadata']['namespace']}/{objects.name_of(config)}", problem, fix)


def sharing_plugins(facts: Facts) -> Iterator[Finding]:
    """No other system that shares GPUs is left on a node that shares."""
    for node in facts.sharing:
        for plugin in _plugins_on(facts, node):
            if plugin.system is not foreign.NVIDIA:
                yield error(f"node/{node.name}", f"{plugin} hands out the same GPUs", _fix(plugin))


def schedulers(facts: Facts) -> Iterator[Finding]:
    """No other system's scheduler or extender chooses GPUs."""
    for theirs in {each.workload: each for each in facts.foreign_pods if each.role is Role.SCHEDULER}.values():
        namespace = theirs.pod.namespace
        problem = f"the scheduler of {theirs.system.name} still runs: if kube-scheduler asks it too, both choose GPUs"
        fix = f"take it out of the extenders, then: kubectl -n {namespace} delete deployment {theirs.workload}"
        yield warning(f"deployment/{namespace}/{theirs.workload}", problem, fix)
    for extender in checks_scheduling.other_extenders(facts):
        managed = {str(entry.get("name")) for entry in fields.objects(extender, "managedResources", "extender")}
        if shared := sorted(managed & {names.GPU_MEM, names.GPU_PERCENT, names.GPU}):
            problem = f"the extender {extender.get('urlPrefix')} is asked about {', '.join(shared)} as well"
            fix = f"remove it from the extenders: {facts.kubectl(f'edit configmap {names.SCHEDULER}')}"
            yield error(facts.own("configmap", names.SCHEDULER), problem, fix)


def addons(facts: Facts) -> Iterator[Finding]:
    """DaemonSets that need every GPU of their nodes get them."""
    labels = {objects.name_of(each): objects.labels(each) for each in read(facts.snapshot.namespaces)}
    for workload in read(facts.snapshot.daemonsets):
        namespace, name = str(workload["metadata"]["namespace"]), objects.name_of(workload)
        if _is_isolated(facts, labels.get(namespace, {})):
            yield warning(
                f"daemonset/{namespace}/{name}",
                f"it must see all GPUs of its nodes, but {names.WEBHOOK} hides them",
                f"if only administrators may create pods there: kubectl label namespace {namespace}"
                f" {names.LABEL_ISOLATION}=disabled; then: kubectl -n {namespace} rollout restart daemonset {name}",
            )


def dra_devices(facts: Facts) -> Iterator[Finding]:
    """No other DRA driver offers GPUs of a node that shares: a claim would get a GPU on which pods hold shares."""
    nodes: Mapping[str, GpuNode] = {node.name: node for node in facts.sharing}
    found: dict[tuple[str, str], set[str]] = {}
    for each in read(facts.snapshot.resource_slices):
        spec = fields.mapping(each, "spec", "ResourceSlice")
        name, driver = fields.text(spec, "nodeName", "spec"), fields.text(spec, "driver", "spec")
        if node := nodes.get(name):
            offered = {device for device, uuid in _devices(spec) if _is_shared(node, driver, uuid)}
            found.setdefault((name, driver), set()).update(offered)
    for (name, driver), offered in sorted(found.items()):
        if offered:
            which = f"{len(offered)} devices there that are shared ({', '.join(sorted(offered))})"
            problem = f"the DRA driver {driver} offers {which}: a ResourceClaim may get a GPU on which pods hold shares"
            page = "docs/gpu-operator.md#beside-nvidias-dra-driver"
            fix = f"drain the node, and keep the driver off nodes with the label {names.LABEL_SHARES}: {page}"
            yield error(f"node/{name}", problem, fix)


def device_classes(facts: Facts) -> Iterator[Finding]:
    """No DeviceClass has kube-scheduler serve requests for shares with whole devices (extendedResourceName)."""
    ours = {*names.SHARED_RESOURCES, names.GPU_CORE, *({names.GPU} if facts.settings.whole_gpus else ())}
    for each in read(facts.snapshot.device_classes):
        name = objects.name_of(each)
        resource = fields.text(fields.mapping(each, "spec", "DeviceClass"), "extendedResourceName", "spec")
        if resource in ours:
            yield error(
                f"deviceclass/{name}",
                f"its extendedResourceName is {resource}: where a node offers none, kube-scheduler serves a request for"
                " 3 of it with 3 whole devices (by default from 1.36 on)",
                f"kubectl patch deviceclass {name} --type=json"
                """ -p='[{"op": "remove", "path": "/spec/extendedResourceName"}]'""",
            )
        if name != names.DEVICE_CLASS and names.DRA_DRIVER in str(each.get("spec")):
            problem = f"it selects devices of {names.DRA_DRIVER}, and the rules of docs/claims.md hold for claims of"
            fix = f"let pods use the class {names.DEVICE_CLASS}, and: kubectl delete deviceclass {name}"
            yield warning(f"deviceclass/{name}", f"{problem} {names.DEVICE_CLASS} only", fix)


def claim_schedulers(facts: Facts) -> Iterator[Finding]:
    """One scheduler allocates all ResourceClaims for GPUs: each counts what it has allocated itself."""
    nodes = {node.name for node in facts.sharing if node.inventory and node.inventory.dra}
    counts = Counter(
        fields.text(spec, "schedulerName", "spec") or names.DEFAULT_SCHEDULER
        for pod in read(facts.snapshot.pods)
        if pods_wire.has_claims(pod) and (spec := fields.mapping(pod, "spec", "pod")).get("nodeName") in nodes
    )
    if len(counts) > 1:
        told = ", ".join(f"{name}: {count}" for name, count in counts.most_common())
        problem = f"pods with ResourceClaims come from {len(counts)} schedulers ({told}) to nodes with GPUs of mode dra"
        why = "they give the same memory away twice, and the later pods do not start"
        fix = f"let one scheduler have them all; nodes of both: {', '.join(sorted(nodes)[:3])}"
        yield warning("pods", f"{problem}: {why}", fix)


def _devices(spec: JsonObject) -> Iterator[tuple[str, str]]:
    """Name and UUID of the devices of a slice; the UUID is empty if the driver does not tell it."""
    for device in fields.objects(spec, "devices", "spec"):
        basic = device.get("basic")  # until v1beta1
        attributes = fields.mapping(basic if isinstance(basic, dict) else device, "attributes", "device")
        # Attributes may have the driver's domain before their name.
        found = (value for key, value in attributes.items() if key.rpartition("/")[2] == "uuid")
        uuid = next((str(value.get("string", "")) for value in found if isinstance(value, dict)), "")
        yield fields.text(device, "name", "device"), uuid


def _is_shared(node: GpuNode, driver: str, uuid: str) -> bool:
    if node.inventory is None or not uuid:
        return driver == _DRA_DRIVER
    return driver != names.DRA_DRIVER and any(gpu.uuid == uuid for gpu in node.every_gpu)


def _plugins_on(facts: Facts, node: GpuNode) -> list[ForeignPod]:
    """One pod of each system."""
    found: dict[str, ForeignPod] = {}
    for pod in facts.foreign_pods:
        if pod.role is Role.PLUGIN and pod.node == node.name:
            found.setdefault(pod.system.name, pod)
    return list(found.values())


def _offered(node: GpuNode, ours: Set[str]) -> str:
    """What the node offers of NVIDIA's own resources, but for those that this project's plugin serves."""
    return ", ".join(
        f"{amount} {resource}"
        for resource, value in sorted(node.allocatable.items())
        if resource.startswith((names.GPU, _MIG)) and resource not in ours and (amount := units.whole(value))
    )


def _fix(pod: ForeignPod) -> str:
    return pod.system.fix.format(namespace=pod.pod.namespace, workload=pod.workload, node=pod.node)


def _is_isolated(facts: Facts, labels: Mapping[str, Any]) -> bool:
    """Whether a webhook is called for every new pod of a namespace with these labels."""
    config = read(facts.snapshot.mutating) or {}
    webhooks = {str(each.get("name")): each for each in fields.objects(config, "webhooks", "configuration")}
    called = [checks_admission.ISOLATION]
    if checks_admission.ISOLATION not in webhooks:  # servers without conditions
        called = [checks_admission.GPU, checks_admission.LIMIT]
    selectors = (fields.mapping(webhooks[name], "namespaceSelector", "webhook") for name in called if name in webhooks)
    return any(budgets.label_selector(each, "namespaceSelector").matches(labels) for each in selectors)
