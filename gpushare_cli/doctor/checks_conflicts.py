"""Whether anybody else hands out the same GPUs, and the cluster's own GPU add-ons see those that they need. Pure."""

from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Final

from gpushare import names, units
from gpushare.kube.api import JsonObject
from gpushare.wire import fields
from gpushare_cli import schedulable
from gpushare_cli.doctor import checks_scheduler, checks_webhook, finding, foreign, own, scheduler_file
from gpushare_cli.doctor.cluster import Cluster, GpuNode
from gpushare_cli.doctor.finding import Finding
from gpushare_cli.doctor.foreign import ForeignPod, Role
from gpushare_cli.doctor.snapshot import Unread, known

_MIG: Final = "nvidia.com/mig-"
# Labels of nodes that NVIDIA's GPU Operator, its plugin and its feature discovery read or write.
_KEPT_OFF: Final = "nvidia.com/gpu.deploy.device-plugin"
_CONFIG: Final = "nvidia.com/device-plugin.config"
_STRATEGY: Final = "nvidia.com/gpu.sharing-strategy"
_REPLICAS: Final = "nvidia.com/gpu.replicas"
_MPS_CAPABLE: Final = "nvidia.com/mps.capable"


def nvidia_plugin(cluster: Cluster) -> Iterator[Finding]:
    """NVIDIA's own plugin does not hand out the GPUs of a node that shares."""
    for node in _sharing(cluster):
        plugin = next((each for each in _plugins_on(cluster, node) if each.system is foreign.NVIDIA), None)
        offered = _offered(node, {names.GPU} if cluster.settings.whole_gpus and plugin is None else frozenset())
        if plugin is not None:
            what = f"; the node offers {offered}" if offered else ""
            yield finding.error(
                f"node/{node.name}",
                f"{plugin} hands out the same GPUs{what}",
                _fix(plugin),
            )
        elif offered:
            yield finding.error(
                f"node/{node.name}",
                f"another plugin offers {offered} there, which are the GPUs that are shared",
                f"find who: kubectl get pods -A --field-selector spec.nodeName={node.name}; take it off the node",
            )


def nvidia_sharing(cluster: Cluster) -> Iterator[Finding]:
    """NVIDIA's plugin is not configured to share the GPUs of such a node itself, by MPS or by time-slicing."""
    daemons = {pod.node: pod for pod in cluster.foreign_pods if pod.role is Role.MPS}
    for node in _sharing(cluster):
        if (daemon := daemons.get(node.name)) is not None:
            yield finding.error(
                f"node/{node.name}",
                f"{daemon} runs there: it keeps GPUs in exclusive mode, so that one container alone can use each",
                f"kubectl label node {node.name} {_MPS_CAPABLE}- {_CONFIG}-, and see docs/gpu-operator.md",
            )
        elif told := _told_to_share(node):
            yield finding.warning(
                f"node/{node.name}",
                f"NVIDIA's software is configured to share its GPUs as well ({', '.join(told)})",
                f"kubectl label node {node.name} {_KEPT_OFF}=false --overwrite; kubectl label node {node.name}"
                f" {_CONFIG}- {_MPS_CAPABLE}-; see docs/gpu-operator.md",
            )
    yield from _nvidia_configs(cluster)


def _told_to_share(node: GpuNode) -> list[str]:
    """Labels that NVIDIA's feature discovery writes by the configuration of its plugin."""
    replicas = str(node.labels.get(_REPLICAS, ""))
    found = [(_STRATEGY, node.labels.get(_STRATEGY) in {"mps", "time-slicing"})]
    found += [(_MPS_CAPABLE, node.labels.get(_MPS_CAPABLE) == "true")]
    found += [(_REPLICAS, replicas.isdecimal() and int(replicas) > 1)]
    return [f"{key}={node.labels[key]}" for key, shares in found if shares]


def _nvidia_configs(cluster: Cluster) -> Iterator[Finding]:
    reached = [node for node in _sharing(cluster) if node.labels.get(_KEPT_OFF) != "false"]
    part = cluster.snapshot.nvidia_configs
    if isinstance(part, Unread):
        yield finding.warning(
            "configmaps of NVIDIA's plugin",
            f"not checked whether they have it share GPUs: {part.error}",
            f"get rights to list ConfigMaps in {', '.join(names.ADDON_NAMESPACES)}",
        )
        return
    for config in part if reached else ():
        namespace, name = (str(config["metadata"][key]) for key in ("namespace", "name"))
        ways = ", ".join(f"{key} by {way}" for key, way in sorted(foreign.sharing(config).items()))
        yield finding.warning(
            f"configmap/{namespace}/{name}",
            f"it has NVIDIA's plugin share GPUs ({ways}), and that plugin is not kept off {_count(reached)}",
            f"kubectl label node {reached[0].name} {_KEPT_OFF}=false, and so on for each",
        )


def _count(nodes: Sequence[GpuNode]) -> str:
    return f"{len(nodes)} nodes that share" if len(nodes) > 1 else f"node {nodes[0].name}, which shares"


def sharing_plugins(cluster: Cluster) -> Iterator[Finding]:
    """No other system that shares GPUs is left on a node that shares."""
    for node in _sharing(cluster):
        for plugin in _plugins_on(cluster, node):
            if plugin.system is not foreign.NVIDIA:
                yield finding.error(
                    f"node/{node.name}",
                    f"{plugin} hands out the same GPUs",
                    _fix(plugin),
                )


def schedulers(cluster: Cluster) -> Iterator[Finding]:
    """No other system's scheduler or extender chooses GPUs."""
    for theirs in {each.workload: each for each in cluster.foreign_pods if each.role is Role.SCHEDULER}.values():
        yield finding.warning(
            f"deployment/{theirs.namespace}/{theirs.workload}",
            f"the scheduler of {theirs.system.name} still runs; where kube-scheduler asks it as well, both choose GPUs",
            "take its entry out of kube-scheduler's extenders, then:"
            f" kubectl -n {theirs.namespace} delete deployment {theirs.workload}",
        )
    for extender in scheduler_file.extenders(checks_scheduler.parsed_settings(cluster)):
        managed = {str(entry.get("name")) for entry in fields.objects(extender, "managedResources", "extender")}
        shared = sorted(managed & {names.GPU_MEM, names.GPU_PERCENT, names.GPU})
        if shared and not scheduler_file.is_ours(extender):
            yield finding.error(
                f"configmap/{cluster.namespace}/{own.SCHEDULER_SETTINGS}",
                f"the extender {extender.get('urlPrefix')} is asked about {', '.join(shared)} as well",
                f"remove it from the extenders: {cluster.kubectl(f'edit configmap {own.SCHEDULER_SETTINGS}')}",
            )


def addons(cluster: Cluster) -> Iterator[Finding]:
    """DaemonSets that need every GPU of their nodes get them."""
    labels = {
        str(each["metadata"]["name"]): fields.mapping(each["metadata"], "labels", "metadata")
        for each in known(cluster.snapshot.namespaces)
    }
    for workload in known(cluster.snapshot.daemonsets):
        namespace, name = (str(workload["metadata"][key]) for key in ("namespace", "name"))
        if _is_isolated(cluster, labels.get(namespace, {})):
            yield finding.warning(
                f"daemonset/{namespace}/{name}",
                f"it needs every GPU of its nodes, but {names.WEBHOOK} gives its containers none",
                f"if no one but administrators may create pods there: kubectl label namespace {namespace}"
                f" {names.LABEL_ISOLATION}=disabled; then: kubectl -n {namespace} rollout restart daemonset {name}",
            )


def _sharing(cluster: Cluster) -> Iterator[GpuNode]:
    return (node for node in cluster.nodes if node.is_wanted or node.plugin is not None)


def _plugins_on(cluster: Cluster, node: GpuNode) -> Iterator[ForeignPod]:
    """One pod of each system."""
    seen: set[str] = set()
    for pod in cluster.foreign_pods:
        if pod.role is Role.PLUGIN and pod.node == node.name and pod.system.name not in seen:
            seen.add(pod.system.name)
            yield pod


def _offered(node: GpuNode, ours: Set[str]) -> str:
    """What the node offers of NVIDIA's own resources, but for those that this project's plugin serves."""
    return ", ".join(
        f"{amount} {resource}"
        for resource, value in sorted(node.allocatable.items())
        if resource.startswith((names.GPU, _MIG)) and resource not in ours and (amount := units.whole(value))
    )


def _fix(pod: ForeignPod) -> str:
    return pod.system.fix.format(namespace=pod.namespace, workload=pod.workload, node=pod.node)


def _is_isolated(cluster: Cluster, labels: Mapping[str, str]) -> bool:
    """Whether a webhook is called for every new pod of a namespace with these labels."""
    config = known(cluster.snapshot.mutating) or {}
    webhooks = {str(each.get("name")): each for each in fields.objects(config, "webhooks", "configuration")}
    found = [webhooks.get(checks_webhook.ISOLATION)]
    if found == [None]:  # servers without conditions
        found = [webhooks.get(name) for name in (checks_webhook.GPU, checks_webhook.LIMIT)]
    return any(_calls(webhook, labels) for webhook in found if webhook is not None)


def _calls(webhook: JsonObject, labels: Mapping[str, str]) -> bool:
    selector = fields.mapping(webhook, "namespaceSelector", "webhook")
    equal = fields.mapping(selector, "matchLabels", "namespaceSelector").items() <= labels.items()
    expressions = fields.objects(selector, "matchExpressions", "namespaceSelector")
    return equal and all(schedulable.holds(each, labels, "namespaceSelector.matchExpressions") for each in expressions)
