"""Whether the cluster's own GPU add-ons, such as dcgm-exporter, see the GPUs that they need. Pure."""

from collections.abc import Iterator, Mapping

from gpushare import names
from gpushare.wire import fields
from gpushare_cli import nodefacts
from gpushare_cli.doctor import checks_webhook, finding
from gpushare_cli.doctor.cluster import Cluster
from gpushare_cli.doctor.finding import Finding
from gpushare_cli.doctor.snapshot import known


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


def _is_isolated(cluster: Cluster, labels: Mapping[str, str]) -> bool:
    """Whether a webhook is called for every new pod of a namespace with these labels."""
    config = known(cluster.snapshot.mutating) or {}
    found = {str(each.get("name")): each for each in fields.objects(config, "webhooks", "configuration")}
    webhook = found.get(checks_webhook.ISOLATION) or found.get(checks_webhook.GPU)
    if webhook is None:
        return False
    selector = fields.mapping(webhook, "namespaceSelector", "webhook")
    equal = fields.mapping(selector, "matchLabels", "namespaceSelector").items() <= labels.items()
    expressions = fields.objects(selector, "matchExpressions", "namespaceSelector")
    return equal and all(nodefacts.holds(each, labels, "namespaceSelector.matchExpressions") for each in expressions)
