"""How nodes hand over GPUs, what that asks of pods, and what it makes unnecessary. Pure."""

from collections import defaultdict
from collections.abc import Iterator
from typing import Final

from gpushare import names
from gpushare.kube.api import JsonObject
from gpushare.model.gpu import HandOver
from gpushare.wire import fields
from gpushare.wire import hand_over as summary_wire
from gpushare_cli.doctor import checks_webhook, finding, objects, own
from gpushare_cli.doctor.checks_install import FIRST_WITH_CONDITIONS
from gpushare_cli.doctor.cluster import Cluster
from gpushare_cli.doctor.finding import Finding
from gpushare_cli.doctor.snapshot import NothingToCheckError, known

_OPERATOR_PAGE: Final = "docs/gpu-operator.md"


def ways(cluster: Cluster) -> Iterator[Finding]:
    """Every node that shares hands GPUs over in the way that its plugin names, and can run the pods that it is sent."""
    groups = defaultdict[tuple[HandOver, str], list[str]](list)
    for node in cluster.nodes:
        if node.published is None or not node.published.hand_over_reason:
            continue
        if node.hands_over_nothing:
            yield finding.error(
                f"node/{node.name}",
                f"no GPU of it is handed over: {node.published.hand_over_reason}",
                f"kubectl label node {node.name} --overwrite {names.LABEL_HAND_OVER}={HandOver.ENVVAR.value}",
            )
        else:
            groups[node.published.hand_over, node.published.hand_over_reason].append(node.name)
    for (way, reason), nodes in sorted(groups.items(), key=lambda group: (group[0][0].value, group[0][1])):
        yield finding.note(f"node/{objects.listed(nodes)}", f"hands GPUs over by {way.value}: {reason}", _way_out(way))
    yield from _handlers(cluster)


def summary(cluster: Cluster) -> Iterator[Finding]:
    """The controller has told the webhook how nodes hand over GPUs."""
    where = f"configmap/{cluster.namespace}/{names.HAND_OVER}"
    config_map = known(cluster.snapshot.hand_over)
    if config_map is None:
        yield finding.warning(where, "it is missing, so every GPU pod gets a RuntimeClass, needed or not", own.APPLY)
        return
    if cluster.hand_over == summary_wire.NO_NODE:
        raise NothingToCheckError("no node shares")
    found = summary_wire.word(config_map)
    misleads = summary_wire.is_all_cdi(config_map) != (cluster.hand_over == HandOver.CDI.value)
    if misleads or found not in summary_wire.WORDS:
        yield finding.warning(
            where,
            f"it says {found or 'nothing'} of the nodes' hand-over, but it is {cluster.hand_over}",
            "the leading controller writes it within a minute; if it stays, look for 'hand-over not written':"
            f" {cluster.kubectl(f'logs deploy/{names.CONTROLLER}')}",
        )


def runtime_class_policy(cluster: Cluster) -> Iterator[Finding]:
    """RuntimeClasses of NVIDIA are refused under all their names, and no GPU pod for the one that it is given."""
    if cluster.snapshot.server < FIRST_WITH_CONDITIONS:
        raise NothingToCheckError("this server has no such policies")
    where = f"configmap/{cluster.namespace}/{names.RUNTIME_CLASS_POLICY}"
    config_map = known(cluster.snapshot.refused_classes)
    if config_map is None:
        yield finding.warning(where, "it is missing: RuntimeClasses of NVIDIA cannot be refused to pods", own.APPLY)
        return
    data = fields.mapping(config_map, "data", names.RUNTIME_CLASS_POLICY)
    word = fields.text(data, "refuse", "data")
    edit = cluster.kubectl(f"edit configmap {names.RUNTIME_CLASS_POLICY}")
    if word not in summary_wire.REFUSALS:
        choices = " or ".join(summary_wire.REFUSALS)
        yield finding.error(where, f"refuse is {word!r:.80}, which counts as always", f"write {choices}: {edit}")
    yield from _unknown_classes(cluster, data, edit)
    if effect := _effect_of_refusing(cluster, config_map):
        yield finding.error(
            where,
            f"it refuses RuntimeClass {cluster.settings.runtime_class} to all pods, and {effect}",
            f"write refuse: without-gpus: {edit}",
        )
    elif (
        word in {summary_wire.NOTHING, summary_wire.WITHOUT_GPUS}
        and not cluster.writes_runtime_class
        and _has_class(cluster)
    ):
        yield finding.note(
            where,
            "every node that shares hands GPUs over by CDI, so no GPU pod needs a RuntimeClass of NVIDIA, under which a"
            " container could choose devices",
            f"refuse it to all pods with refuse: always: {edit}",
        )


def _unknown_classes(cluster: Cluster, data: JsonObject, edit: str) -> Iterator[Finding]:
    """RuntimeClasses of NVIDIA's runtime under other names than those that the policies look for."""
    listed = {*own.RUNTIME_CLASSES, *map(str.strip, fields.text(data, "names", "data").split(","))}
    for each in known(cluster.snapshot.runtime_classes):
        name, handler = str(each["metadata"]["name"]), fields.text(each, "handler", "RuntimeClass")
        if handler.startswith(names.RUNTIME_CLASS) and name not in listed:
            yield finding.warning(
                f"runtimeclass/{name}",
                f"it leads to NVIDIA's runtime (handler {handler}), and no policy looks for it: while"
                f" {names.WEBHOOK} is away, a pod that names it may see every GPU of its node",
                f"add it to names: {edit}; and to the match condition of {names.ISOLATION_POLICY} in your overlay",
            )


def _effect_of_refusing(cluster: Cluster, config_map: JsonObject) -> str:
    """What goes wrong because an administrator refuses the RuntimeClass to all pods; empty if nothing does."""
    if not summary_wire.refuses(config_map, cluster.settings.runtime_class):
        return ""
    if cluster.writes_runtime_class:
        return "the webhook writes it into GPU pods"
    others = [node.name for node in cluster.nodes if node.needs_runtime_class]
    return f"no GPU pod without it can run on {objects.listed(others)}" if others else ""


def isolation(cluster: Cluster) -> Iterator[Finding]:
    """The webhook for pods without GPUs is there as long as a node needs it."""
    if cluster.snapshot.server < FIRST_WITH_CONDITIONS:
        raise NothingToCheckError("on this server it completes GPU pods as well")
    where = f"mutatingwebhookconfiguration/{names.MUTATING_WEBHOOK}"
    config = known(cluster.snapshot.mutating)
    if config is None:
        raise NothingToCheckError("there are no webhooks")
    present = any(each.get("name") == checks_webhook.ISOLATION for each in fields.objects(config, "webhooks", "it"))
    if present and cluster.needs_no_isolation:
        yield finding.note(
            where,
            "every node that shares hands GPUs over by CDI, under another default runtime than NVIDIA's:"
            f" {checks_webhook.ISOLATION} is not needed there, since a container without a grant has no device",
            "if that holds for nodes with GPUs of other plugins as well, take it out of the webhooks in your overlay",
        )
    elif not present and (nodes := [node.name for node in cluster.nodes if not cluster.isolates(node)]):
        yield finding.error(
            where,
            f"{checks_webhook.ISOLATION} is not configured, but {objects.listed(nodes)} would show every GPU to a"
            " container that asks for none and says NVIDIA_VISIBLE_DEVICES=all",
            own.APPLY,
        )


def _handlers(cluster: Cluster) -> Iterator[Finding]:
    """A RuntimeClass whose handler a node lacks ends the pod's start there, whatever it needs."""
    if not cluster.writes_runtime_class:
        return
    wanted = cluster.settings.runtime_class
    classes = {str(each["metadata"]["name"]): each for each in known(cluster.snapshot.runtime_classes)}
    if wanted not in classes:
        return  # another check says so
    handler = fields.text(classes[wanted], "handler", "RuntimeClass")
    for node in cluster.nodes:
        if node.is_wanted and node.handlers and handler not in node.handlers:
            yield finding.error(
                f"node/{node.name}",
                f"GPU pods get RuntimeClass {wanted}, whose handler {handler} its container runtime does not have",
                "run nvidia-ctk runtime configure --runtime=containerd (or crio) there and restart the runtime; or have"
                f" all nodes that share hand over by CDI: {_OPERATOR_PAGE}",
            )


def _has_class(cluster: Cluster) -> bool:
    return any(each["metadata"]["name"] in own.RUNTIME_CLASSES for each in known(cluster.snapshot.runtime_classes))


def _way_out(way: HandOver) -> str:
    return "" if way is HandOver.CDI else f"for CDI, which keeps NVIDIA's runtime out of the way: {_OPERATOR_PAGE}"
