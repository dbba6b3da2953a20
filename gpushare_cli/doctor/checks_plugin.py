"""Whether every node that should share its GPUs does, and says the same as its kubelet. Pure."""

from collections.abc import Iterator, Mapping

from gpushare import names, units
from gpushare.cluster import cordons, node_records
from gpushare.model.gpu import NO_LIMIT, GpuHealth, NodeInventory
from gpushare_cli.doctor import finding, own
from gpushare_cli.doctor.cluster import Cluster, GpuNode
from gpushare_cli.doctor.finding import Finding
from gpushare_cli.doctor.snapshot import NothingToCheckError, Unread, known
from gpushare_cli.reading import Settings


def daemonset(cluster: Cluster) -> Iterator[Finding]:
    """The device plugin's DaemonSet exists, and nodes are chosen for it."""
    if known(cluster.snapshot.plugin) is None:
        yield finding.error(
            f"daemonset/{cluster.namespace}/{names.PLUGIN}", "it is missing, so no node shares a GPU", own.APPLY
        )
    if not any(node.is_wanted for node in cluster.nodes):
        labels = ",".join(f"{key}={value}" for key, value in cluster.wanted_labels.items())
        yield finding.warning(
            f"daemonset/{cluster.namespace}/{names.PLUGIN}",
            f"no node has the label {labels}, so no GPU is shared",
            f"kubectl label node NODE {labels.replace(',', ' ')}",
        )


def running(cluster: Cluster) -> Iterator[Finding]:
    """A device plugin is ready on every node that is chosen for it."""
    if known(cluster.snapshot.plugin) is None:
        raise NothingToCheckError("there is no DaemonSet")
    for node in cluster.nodes:
        if not node.is_wanted or node.runs_plugin:
            continue
        also = "" if node.is_ready else " (the node itself is not ready)"
        if node.plugin is None:
            events = cluster.kubectl(f"describe daemonset {names.PLUGIN}")
            yield finding.error(f"node/{node.name}", f"no {names.PLUGIN} pod is there{also}", events)
        else:
            pod = node.plugin["metadata"]["name"]
            yield finding.error(
                f"node/{node.name}",
                f"its device plugin {pod} is not ready{also}; new GPU pods cannot start there",
                cluster.kubectl(f"logs {pod}"),
            )


def inventory(cluster: Cluster) -> Iterator[Finding]:
    """Every such node tells its GPUs."""
    for node in cluster.nodes:
        look = cluster.kubectl(f"logs {node.plugin['metadata']['name']}") if node.plugin else ""
        if node.record.problem:
            yield finding.error(
                f"node/{node.name}",
                f"its inventory cannot be read: {node.record.problem}",
                "run the same version of all components; the plugin writes it again when it starts",
            )
        elif node.runs_plugin and node.published is None:
            yield finding.error(f"node/{node.name}", "its device plugin is ready, but has published no inventory", look)
        elif node.runs_plugin and node.published is not None and not node.published.gpus:
            yield finding.warning(f"node/{node.name}", "its device plugin finds no GPU", look)


def amounts(cluster: Cluster) -> Iterator[Finding]:
    """The kubelet counts what the healthy GPUs are."""
    settings = cluster.settings
    for node in cluster.nodes:
        if not node.runs_plugin or node.published is None or node.published.unit != settings.resource_config.unit:
            continue  # another check says so
        for resource, expected in _expected(node.published, settings).items():
            found = units.whole(node.allocatable.get(resource, "0"))
            if found != expected:
                yield finding.error(
                    f"node/{node.name}",
                    f"allocatable {resource} is {found}, but its healthy GPUs are {expected}",
                    f"the kubelet may be behind for some seconds; if it stays: {_restart(cluster, node)}",
                )


def memory_unit(cluster: Cluster) -> Iterator[Finding]:
    """All nodes count memory in the unit of the settings."""
    wanted = cluster.settings.resource_config.unit
    for node in cluster.nodes:
        if node.published is not None and node.published.unit != wanted:
            restart = cluster.kubectl("rollout restart deployment,daemonset")
            yield finding.error(
                f"node/{node.name}",
                f"it counts {names.GPU_MEM} in {node.published.unit.name}, the settings say {wanted.name}: it takes no"
                " GPU pods",
                restart,
            )


def stale(cluster: Cluster) -> Iterator[Finding]:
    """Nodes that do not share any more have nothing left of it."""
    for node in cluster.nodes:
        if not node.is_wanted and node.plugin is None and node.record.published is not None:
            yield finding.warning(
                f"node/{node.name}",
                "it has an inventory of GPUs, but no device plugin is meant to run there",
                f"kubectl annotate node {node.name} {names.ANNOTATION_INVENTORY}-, or label it again",
            )


def gpu_health(cluster: Cluster) -> Iterator[Finding]:
    """No GPU is kept out of use because it is unhealthy or cannot be shared."""
    lists = cluster.snapshot.unhealthy
    if isinstance(lists, Unread):
        yield finding.warning(
            f"configmap/{names.UNHEALTHY_NAMESPACE}/{names.PREFIX_UNHEALTHY}*",
            f"not checked whether such ConfigMaps take GPUs out of use: {lists.error}",
            f"get rights to list ConfigMaps in {names.UNHEALTHY_NAMESPACE}",
        )
    for node in cluster.nodes:
        for gpu in node.record.inventory.gpus if node.record.inventory else ():
            if gpu.health is not GpuHealth.UNHEALTHY or node.hands_over_nothing:
                continue
            if cordons.numbers(gpu) & node.record.unhealthy:
                config = f"{names.PREFIX_UNHEALTHY}{node.name}"
                why, fix = (
                    f"the ConfigMap {config} says so",
                    f"kubectl -n {names.UNHEALTHY_NAMESPACE} edit configmap {config}",
                )
            else:
                why = gpu.reason or "the driver reports a fault"
                fix = (
                    f"correct that, or let other means hold limits: the label {names.LABEL_LIMITS}, --limits"
                    if why.startswith(NO_LIMIT)
                    else f"drain it, reset or replace the GPU, then: {_restart(cluster, node)}"
                )
            yield finding.warning(f"node/{node.name}", f"GPU {gpu.label} ({gpu.uuid}) is unhealthy: {why}", fix)
        for left in node.record.inventory.left_out if node.record.inventory else ():
            problem, _, fix = left.reason.partition("; ")
            yield finding.warning(f"node/{node.name}", f"GPU {left.index} is not shared: {problem}", fix)


def gpu_cordon(cluster: Cluster) -> Iterator[Finding]:
    """No GPU is cordoned, and no cordon names a GPU that is not there."""
    for node in cluster.nodes:
        gpus = node.record.inventory.gpus if node.record.inventory else ()
        held = set(cordons.entries(node.record.held))
        cordoned = [gpu for gpu in gpus if gpu.health is GpuHealth.CORDONED]
        for by, until, meant in (
            ("", "when the work is done", [gpu.label for gpu in cordoned if gpu.uuid not in held]),
            (" by gpushare defrag", "if none runs any more", [gpu.label for gpu in cordoned if gpu.uuid in held]),
        ):
            if meant:
                which = f"GPUs {', '.join(meant)} of its {len(gpus)} are" if len(meant) > 1 else f"GPU {meant[0]} is"
                yield finding.warning(
                    f"node/{node.name}",
                    f"{which} cordoned{by}; nothing new is placed there",
                    f"{until}: " + " && ".join(f"gpushare uncordon {node.name}/{number}" for number in meant),
                )
        unknown = node_records.unknown_gpus(node.record)
        if unknown:
            yield finding.warning(
                f"node/{node.name}",
                f"{names.ANNOTATION_CORDON} names {', '.join(map(repr, unknown))}, which is no GPU of it",
                f"gpushare uncordon {node.name}/ENTRY for each of them",
            )


def _expected(published: NodeInventory, settings: Settings) -> Mapping[str, int]:
    """What the plugin offers, by resource."""
    healthy = [gpu for gpu in published.gpus if gpu.health is GpuHealth.HEALTHY]
    offered = {names.GPU_MEM: sum(published.unit.floor(gpu.grantable_mib) for gpu in healthy)}
    if settings.gpu_percent:
        offered[names.GPU_PERCENT] = 100 * len(healthy)
    if settings.whole_gpus:
        offered[names.GPU] = len(healthy)
    return offered


def _restart(cluster: Cluster, node: GpuNode) -> str:
    return cluster.kubectl(f"delete pod -l {own.LABEL_APP}={names.PLUGIN} --field-selector spec.nodeName={node.name}")
