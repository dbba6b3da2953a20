"""Whether anybody else hands out the same GPUs, and the cluster's own GPU add-ons see those that they need. Pure."""

from collections.abc import Iterator, Mapping
from typing import Final

from gpushare import names, units
from gpushare.kube.api import JsonObject
from gpushare.wire import fields
from gpushare_cli import nodefacts
from gpushare_cli.doctor import checks_scheduler, checks_webhook, finding, foreign, own
from gpushare_cli.doctor.cluster import Cluster, GpuNode
from gpushare_cli.doctor.finding import Finding
from gpushare_cli.doctor.foreign import ForeignPod, Role
from gpushare_cli.doctor.snapshot import known

_MIG: Final = "nvidia.com/mig-"


def nvidia_plugin(cluster: Cluster) -> Iterator[Finding]:
    """NVIDIA's own plugin does not hand out the GPUs of a node that shares."""
    for node in _sharing(cluster):
        plugin = next((each for each in _plugins_on(cluster, node) if each.system is foreign.NVIDIA), None)
        offered = _whole_gpus(node)
        if plugin is not None:
            what = f"; the node offers {offered}" if offered else ""
            yield finding.error(
                f"node/{node.name}",
                f"{plugin} hands out the same GPUs{what}",
                _fix(plugin),
            )
        elif offered and not cluster.settings.whole_gpus:
            yield finding.error(
                f"node/{node.name}",
                f"another plugin offers {offered} there, which are the GPUs that are shared",
                f"find who: kubectl get pods -A --field-selector spec.nodeName={node.name}; take it off the node",
            )


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
    for extender in checks_scheduler.extenders(checks_scheduler.parsed_settings(cluster)):
        managed = {str(entry.get("name")) for entry in fields.objects(extender, "managedResources", "extender")}
        shared = sorted(managed & {names.GPU_MEM, names.GPU_PERCENT, names.GPU})
        if shared and not checks_scheduler.is_ours(extender):
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


def _whole_gpus(node: GpuNode) -> str:
    """What the node offers of NVIDIA's own resources."""
    return ", ".join(
        f"{amount} {resource}"
        for resource, value in sorted(node.allocatable.items())
        if (resource.startswith((names.GPU, _MIG))) and (amount := units.whole(value))
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
    return equal and all(nodefacts.holds(each, labels, "namespaceSelector.matchExpressions") for each in expressions)
