"""Whether every node shares what it has, says the same as its kubelet, hands it over and holds limits. Pure."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from typing import Final

from gpushare import names, units
from gpushare.cluster import node_records
from gpushare.cluster.pod_records import Bound, Pending
from gpushare.model.gpu import MODE_CHANGES, NO_LIMIT, Gpu, GpuHealth, HandOver, Mode, NodeInventory
from gpushare.placement.explain import some
from gpushare.wire import hand_over, inventory as inventory_wire, modes as modes_wire, pods as pods_wire
from gpushare_cli import holders, usage as used
from gpushare_cli.doctor import objects
from gpushare_cli.doctor.facts import Facts, Finding, GpuNode, NothingToCheckError, error, note, warning
from gpushare_cli.doctor.snapshot import Unreadable, read
from gpushare_cli.reading import Settings

_OPERATOR_PAGE: Final = "docs/gpu-operator.md"
_WHY: Final = (
    "gpushare explain POD says what holds the limits of its GPUs, and why nothing stronger does; see docs/limits.md"
)


def daemonset(facts: Facts) -> Iterator[Finding]:
    """The device plugin's DaemonSet exists, and nodes are chosen for it."""
    where = facts.own("daemonset", names.PLUGIN)
    if read(facts.snapshot.plugin) is None:
        yield error(where, "it is missing, so no node shares a GPU", objects.APPLY)
    if not any(node.is_selected for node in facts.nodes):
        labels = [f"{key}={value}" for key, value in facts.wanted_labels.items()]
        problem = f"no node has the label {','.join(labels)}, so no GPU is shared"
        yield warning(where, problem, f"kubectl label node NODE {' '.join(labels)}")


def running(facts: Facts) -> Iterator[Finding]:
    """A device plugin is ready on every node that is chosen for it."""
    if read(facts.snapshot.plugin) is None:
        raise NothingToCheckError("there is no DaemonSet")
    for node in facts.nodes:
        if not node.is_selected or node.runs_plugin:
            continue
        also = "" if node.is_ready else " (the node itself is not ready)"
        if node.plugin is None:
            events = facts.kubectl(f"describe daemonset {names.PLUGIN}")
            yield error(f"node/{node.name}", f"no {names.PLUGIN} pod is there{also}", events)
        else:
            pod = objects.name_of(node.plugin)
            problem = f"its device plugin {pod} is not ready{also}; new GPU pods cannot start there"
            yield error(f"node/{node.name}", problem, facts.kubectl(f"logs {pod}"))


def inventory(facts: Facts) -> Iterator[Finding]:
    """Every such node tells its GPUs."""
    for node in facts.nodes:
        look = facts.kubectl(f"logs {objects.name_of(node.plugin)}") if node.plugin else ""
        if node.record.problem:
            problem = f"its inventory cannot be read: {node.record.problem}"
            fix = "run the same version of all components; the plugin writes it again when it starts"
            yield error(f"node/{node.name}", problem, fix)
        elif node.runs_plugin and node.inventory is None:
            yield error(f"node/{node.name}", "its device plugin is ready, but has published no inventory", look)
        elif node.runs_plugin and not node.every_gpu:
            yield warning(f"node/{node.name}", "its device plugin finds no GPU", look)


def amounts(facts: Facts) -> Iterator[Finding]:
    """The kubelet counts what the healthy GPUs are."""
    settings = facts.settings
    for node in facts.nodes:
        if not node.runs_plugin or node.inventory is None or node.inventory.unit != settings.resource_config.unit:
            continue  # another check says so
        published = inventory_wire.decode(node.record.published or "", node.name)  # without what others say of it
        for resource, expected in _expected(published, settings).items():
            found = units.whole(node.allocatable.get(resource, "0"))
            if found != expected:
                problem = f"allocatable {resource} is {found}, but its healthy GPUs are {expected}"
                fix = f"the kubelet may be behind for some seconds; if it stays: {_restart(facts, node)}"
                yield error(f"node/{node.name}", problem, fix)


def memory_unit(facts: Facts) -> Iterator[Finding]:
    """All nodes count memory in the unit of the settings."""
    wanted = facts.settings.resource_config.unit
    for node in facts.nodes:
        if node.inventory is not None and node.inventory.unit != wanted:
            units_of = f"in {node.inventory.unit.name}, the settings in {wanted.name}"
            restart = facts.kubectl("rollout restart deployment,daemonset")
            yield error(f"node/{node.name}", f"it counts memory {units_of}: it takes no GPU pods", restart)


def stale(facts: Facts) -> Iterator[Finding]:
    """Nodes that no longer share have nothing left of it."""
    for node in facts.nodes:
        if not node.shares and node.record.published is not None:
            problem = "it has an inventory of GPUs, but no device plugin is meant to run there"
            fix = f"kubectl annotate node {node.name} {names.ANNOTATION_INVENTORY}-, or label it again"
            yield warning(f"node/{node.name}", problem, fix)


def gpu_health(facts: Facts) -> Iterator[Finding]:
    """No GPU is kept out of use because it is unhealthy or cannot be shared."""
    lists = facts.snapshot.unhealthy
    if isinstance(lists, Unreadable):
        problem = f"not checked whether such ConfigMaps take GPUs out of use: {lists.error}"
        fix = f"get rights to list ConfigMaps in {names.UNHEALTHY_NAMESPACE}"
        yield warning(f"configmap/{names.UNHEALTHY_NAMESPACE}/{names.PREFIX_UNHEALTHY}*", problem, fix)
    for node in facts.nodes:
        for gpu in node.every_gpu:
            if gpu.health is GpuHealth.UNHEALTHY and not node.no_usable_gpu:
                why, fix = _unhealthy(facts, node, gpu)
                yield warning(f"node/{node.name}", f"GPU {gpu.label} ({gpu.uuid}) is unhealthy: {why}", fix)
        for left in node.inventory.left_out if node.inventory else ():
            problem, _, fix = left.reason.partition("; ")
            yield warning(f"node/{node.name}", f"GPU {left.index} is not shared: {problem}", fix)


def gpu_modes(facts: Facts) -> Iterator[Finding]:
    """Every annotation that says by what GPUs are shared can be read, and the device plugin obeys it."""
    for node in facts.nodes:
        try:
            wanted = modes_wire.parse(node.mode)
        except ValueError as odd:
            problem, _, fix = str(odd).rpartition("; ")
            problem = f"its annotation {names.ANNOTATION_MODE} cannot be read, so no GPU changes its mode: {problem}"
            fix = f"{fix}: kubectl annotate node {node.name} --overwrite {names.ANNOTATION_MODE}=MODES, or remove it"
            yield warning(f"node/{node.name}", problem, fix)
            continue
        if wanted.has(Mode.DRA) and facts.plugin_setting("dra") != "true":
            problem = f"{names.ANNOTATION_MODE} is {node.mode}, and the device plugin shares no GPU by ResourceClaims"
            fix = "set the chart's value dra.enabled; only then can GPUs of mode dra be given back"
            yield warning(f"node/{node.name}", problem, fix)
        for name in wanted.unmatched(node.every_gpu):
            problem = f"{names.ANNOTATION_MODE} names {name!r:.80}, which is no GPU or model of it"
            fix = "write a UUID, or words of a model's name, that gpushare inspect -d shows"
            yield warning(f"node/{node.name}", problem, fix)


def gpu_cordon(facts: Facts) -> Iterator[Finding]:
    """No GPU is cordoned, and no cordon names a GPU that is not there."""
    for node in facts.nodes:
        held = set(node_records.entries(node.record.cordon.held))
        cordoned = [gpu for gpu in node.every_gpu if gpu.health is GpuHealth.CORDONED]
        for by, until, selected in (
            ("", "when the work is done", [gpu.label for gpu in cordoned if gpu.uuid not in held]),
            (" by gpushare defrag", "if none runs any more", [gpu.label for gpu in cordoned if gpu.uuid in held]),
        ):
            if selected:
                which = f"GPU {selected[0]} is"
                if len(selected) > 1:
                    which = f"GPUs {', '.join(selected)} of its {len(node.every_gpu)} are"
                problem = f"{which} cordoned{by}; nothing new is placed there"
                fix = f"{until}: " + " && ".join(f"gpushare uncordon {node.name}/{number}" for number in selected)
                yield warning(f"node/{node.name}", problem, fix)
        if unknown := node_records.unknown_gpus(node.record):
            problem = f"{names.ANNOTATION_CORDON} names {', '.join(map(repr, unknown))}, which is no GPU of it"
            fix = f"gpushare uncordon {node.name}/ENTRY for each of them"
            yield warning(f"node/{node.name}", problem, fix)


def hand_over_ways(facts: Facts) -> Iterator[Finding]:
    """Every node that shares hands GPUs over in the way that its plugin names, and can run the pods that it is sent."""
    groups = defaultdict[tuple[HandOver, str], list[str]](list)
    for node in facts.nodes:
        if node.inventory is None or not node.inventory.hand_over_reason:
            continue
        if node.no_usable_gpu:
            problem = f"no GPU of it is handed over: {node.inventory.hand_over_reason}"
            fix = f"kubectl label node {node.name} --overwrite {names.LABEL_HAND_OVER}={HandOver.ENVVAR.value}"
            yield error(f"node/{node.name}", problem, fix)
        else:
            groups[node.inventory.hand_over, node.inventory.hand_over_reason].append(node.name)
    for (way, reason), nodes in sorted(groups.items(), key=lambda group: (group[0][0].value, group[0][1])):
        fix = "" if way is HandOver.CDI else f"for CDI, which keeps NVIDIA's runtime out of the way: {_OPERATOR_PAGE}"
        yield note(f"node/{some(nodes)}", f"hands GPUs over by {way.value}: {reason}", fix)
    yield from _handlers(facts)


def hand_over_summary(facts: Facts) -> Iterator[Finding]:
    """The controller has told the webhook how nodes hand over GPUs."""
    part, effect = facts.snapshot.hand_over, ", so every GPU pod gets a RuntimeClass, needed or not"
    config_map = facts.needed("configmap", names.HAND_OVER, part, effect, warning)
    real = hand_over.summary(node_records.sharing(map(node_records.read, read(facts.snapshot.nodes))))
    if real == hand_over.NO_NODE:
        raise NothingToCheckError("no node shares")
    found = hand_over.word(config_map)
    misleads = hand_over.is_all_cdi(config_map) != (real == HandOver.CDI.value)
    if misleads or found not in hand_over.WORDS:
        problem = f"it says {found or 'nothing'} of the nodes' hand-over, but it is {real}"
        fix = f"it is written each minute; look for 'hand-over not written': {facts.all_logs(names.CONTROLLER)}"
        yield warning(facts.own("configmap", names.HAND_OVER), problem, fix)


def _handlers(facts: Facts) -> Iterator[Finding]:
    """A RuntimeClass whose handler a node lacks ends the pod's start there, whatever it needs."""
    wanted = facts.settings.runtime_class
    if not facts.writes_runtime_class or wanted not in facts.runtime_classes:
        return  # another check says so
    handler = facts.runtime_classes[wanted]
    for node in facts.nodes:
        if node.is_selected and node.handlers and handler not in node.handlers:
            yield error(
                f"node/{node.name}",
                f"GPU pods get RuntimeClass {wanted}, whose handler {handler} its container runtime does not have",
                f"run nvidia-ctk runtime configure there and restart it, or hand over by CDI: {_OPERATOR_PAGE}",
            )


def weaker_limits(facts: Facts) -> Iterator[Finding]:
    """The strongest limit there is holds containers to their share of each GPU."""
    gpus = [(node.name, gpu) for node in facts.nodes for gpu in node.gpus]
    for message, nodes in used.weaker(gpus).items():
        yield note(f"node/{some(nodes)}", f"limits are {message}", "docs/limits.md")


def demanded_limits(facts: Facts) -> Iterator[Finding]:
    """Where pods or namespaces demand enforced limits, there are GPUs that enforce them."""
    healthy = [gpu for node in facts.nodes for gpu in node.gpus if gpu.health is GpuHealth.HEALTHY]
    if healthy and not any(gpu.limit.enforced for gpu in healthy):
        found = Counter(gpu.limit.value for gpu in healthy)
        have = ", ".join(f"{count} {limit}" for limit, count in sorted(found.items()))
        for namespace in _demanding_namespaces(facts):
            problem = f"GPU pods there demand an enforced limit and stay Pending: no healthy GPU has one ({have})"
            yield warning(f"namespace/{namespace}", problem, _WHY)
    yield from _lost(facts)


def oversubscribed(facts: Facts) -> Iterator[Finding]:
    """No GPU is oversubscribed without an enforced limit, or above its factor; every label of a factor can be read."""
    found: dict[tuple[str, str], list[str]] = {}
    for node in facts.nodes:
        gpus = [gpu for gpu in node.gpus if gpu.extra_mib]
        for factor in sorted({gpu.factor for gpu in gpus}):
            limits_of = {gpu.limit for gpu in gpus if gpu.factor == factor}
            loose = ", ".join(sorted(limit.value for limit in limits_of if not limit.enforced))
            found.setdefault((factor, loose), []).append(node.name)
    for (factor, loose), nodes in found.items():
        message = f"GPUs are oversubscribed by {factor}, so pods may run out of memory within what they were granted"
        if loose:
            message += f", and nothing enforces that they stay within it (limit {loose})"
        make = warning if loose else note
        yield make(f"node/{some(nodes)}", message, "docs/limits.md#oversubscription")
    yield from _still_above(facts)
    for node in facts.nodes:
        try:
            if label := str(node.labels.get(names.LABEL_OVERSUBSCRIPTION) or ""):
                units.parse_factor(label)
        except ValueError as odd:
            problem = f"its label {names.LABEL_OVERSUBSCRIPTION} cannot be read, so nothing is oversubscribed: {odd}"
            fix = f"kubectl label node {node.name} --overwrite {names.LABEL_OVERSUBSCRIPTION}=FACTOR, or remove it"
            yield warning(f"node/{node.name}", problem, fix)


def _still_above(facts: Facts) -> Iterator[Finding]:
    """GPUs whose pods came when more could be granted; what is held beyond that too is another check's."""
    for name, ledger in sorted(facts.ledgers.items()):
        over = ledger.over_committed()
        gpus = [
            gpu.label
            for gpu in ledger.inventory.gpus
            if gpu.uuid not in over and ledger.used_mib.get(gpu.uuid, 0) > ledger.grantable_mib(gpu)
        ]
        if gpus:
            which = f"GPUs {', '.join(gpus)} hold" if len(gpus) > 1 else f"GPU {gpus[0]} holds"
            yield warning(
                f"node/{name}",
                f"{which} more than may be granted since the factor was lowered: pods may run out of granted memory",
                f"wait until pods there end, or evict those of a GPU: gpushare drain {name}/{gpus[0]}",
            )


def _demanding_namespaces(facts: Facts) -> list[str]:
    labelled = {
        objects.name_of(each)
        for each in read(facts.snapshot.namespaces)
        if objects.label(each, names.LABEL_LIMIT) == names.ENFORCED
    }
    asked = {
        record.ref.namespace
        for _, record in facts.pods
        if isinstance(record, Pending) and record.request is not None and record.request.shape.gpus.enforced
    }
    return sorted(labelled | asked)


def _lost(facts: Facts) -> Iterator[Finding]:
    """Pods that run where limits were enforced when they came."""
    inventories = {node.name: node.inventory for node in facts.nodes}
    for pod, record in facts.pods:
        demands = pods_wire.annotations(pod).get(names.ANNOTATION_LIMIT) == names.ENFORCED
        if not isinstance(record, Bound) or record.allocation is None or not demands:
            continue
        loose = [
            f"GPU {share.gpu.label}: {share.limit.value}"
            for share in holders.shares(record.allocation, inventories.get(record.node))
            if share.gpu and share.limit and not (share.grant.whole or share.limit.enforced)
        ]
        if loose:
            have = ", ".join(dict.fromkeys(loose))
            problem = f"it demands an enforced limit, and no longer has one on node {record.node} ({have})"
            pod_name = f"-n {record.ref.namespace} {record.ref.name}"
            yield warning(f"pod/{record.ref}", problem, _WHY.replace("POD", pod_name))


def usage(facts: Facts) -> Iterator[Finding]:
    """Where the device plugins are to read what containers use, and a watchdog to act on it, they can."""
    if (plugin := read(facts.snapshot.plugin)) is None:
        raise NothingToCheckError("there is no DaemonSet")
    if not facts.reads_usage:
        return
    where = facts.own("daemonset", names.PLUGIN)
    if objects.pod_spec(plugin).get("hostPID") is not True:
        problem = "GPUSHARE_USAGE or GPUSHARE_WATCHDOG is set, and its pods do not see the processes of their nodes"
        fix = "add manifests/usage or a watchdog's component to the overlay (it sets hostPID), or unset them"
        yield warning(where, f"{problem}: nothing is read, and no watchdog acts", fix)
        return
    fix = f"{facts.all_logs(names.PLUGIN)}; the NetworkPolicy {names.PLUGIN} has to let the API server reach metrics"
    for problem in used.notes(read(facts.snapshot.usage)):
        yield warning(where, problem, fix)


def _unhealthy(facts: Facts, node: GpuNode, gpu: Gpu) -> tuple[str, str]:
    """Why, and what to do."""
    is_claimed = gpu not in node.gpus
    if node_records.gpu_numbers(gpu) & node.record.unhealthy and not is_claimed:
        config = f"{names.PREFIX_UNHEALTHY}{node.name}"
        return (f"the ConfigMap {config} says so", f"kubectl -n {names.UNHEALTHY_NAMESPACE} edit configmap {config}")
    why = gpu.reason or "the driver reports a fault"
    if why.startswith(MODE_CHANGES) and is_claimed:
        return why, f"wait, or delete the pods of the claims that gpushare inspect {node.name} -d names"
    if why.startswith(MODE_CHANGES):
        which = f"{node.name}/{gpu.label}"
        return why, f"wait, or evict the pods: gpushare drain {which}, then gpushare uncordon {which}"
    if why.startswith(NO_LIMIT):
        return why, f"correct that, or let other means hold limits: the label {names.LABEL_LIMITS}, --limits"
    first = "correct that, or" if is_claimed else "drain it,"
    return why, f"{first} reset or replace the GPU, then: {_restart(facts, node)}"


def _expected(published: NodeInventory, settings: Settings) -> Mapping[str, int]:
    """What the plugin offers, by resource."""
    healthy = published.healthy
    offered = {names.GPU_MEM: sum(published.unit.floor(gpu.grantable_mib) for gpu in healthy)}
    if settings.gpu_percent:
        offered[names.GPU_PERCENT] = 100 * len(healthy)
    if settings.whole_gpus:
        offered[names.GPU] = len(healthy)
    return offered


def _restart(facts: Facts, node: GpuNode) -> str:
    selected = f"-l {names.LABEL_APP}={names.PLUGIN} --field-selector spec.nodeName={node.name}"
    return facts.kubectl(f"delete pod {selected}")
