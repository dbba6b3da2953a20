"""What holds limits on each node, and whether they are enforced where that is demanded. Pure."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from gpushare import names, units
from gpushare.cluster.pod_records import Bound, Pending
from gpushare.identity import NodeName
from gpushare.model.gpu import Gpu, GpuHealth
from gpushare.model.ledger import mib_on
from gpushare.wire import pods as pods_wire
from gpushare_cli import limits
from gpushare_cli.doctor import finding, objects
from gpushare_cli.doctor.cluster import Cluster
from gpushare_cli.doctor.finding import Finding
from gpushare_cli.doctor.snapshot import known

_WHY = "gpushare explain POD says what holds the limits of its GPUs, and why nothing stronger does; see docs/limits.md"


def weaker(cluster: Cluster) -> Iterator[Finding]:
    """The strongest limit there is holds containers to their share of each GPU."""
    gpus = [(node.name, gpu) for node in cluster.nodes if node.published for gpu in node.published.gpus]
    for told, nodes in limits.weaker((NodeName(name), gpu) for name, gpu in gpus).items():
        yield finding.note(f"node/{objects.listed(nodes)}", f"limits are {told}", "docs/limits.md")


def demanded(cluster: Cluster) -> Iterator[Finding]:
    """Where pods or namespaces demand enforced limits, there are GPUs that enforce them."""
    known_gpus = {node.name: node.record.inventory.gpus for node in cluster.nodes if node.record.inventory}
    healthy = [gpu for gpus in known_gpus.values() for gpu in gpus if gpu.health is GpuHealth.HEALTHY]
    if healthy and not any(gpu.limit.enforced for gpu in healthy):
        found = Counter(gpu.limit.value for gpu in healthy)
        have = ", ".join(f"{count} {limit}" for limit, count in sorted(found.items()))
        for where in _demanding(cluster):
            yield finding.warning(
                where,
                f"GPU pods demand an enforced limit there, and no healthy GPU has one (limits of GPUs: {have}): they"
                " stay Pending",
                _WHY,
            )
    yield from _lost(cluster, known_gpus)


def oversubscribed(cluster: Cluster) -> Iterator[Finding]:
    """No GPU is oversubscribed without an enforced limit, or above its factor; every label of a factor can be read."""
    found: dict[tuple[str, str], list[str]] = {}
    for node in cluster.nodes:
        gpus = [gpu for gpu in (node.published.gpus if node.published else ()) if gpu.extra_mib]
        for factor in sorted({gpu.factor for gpu in gpus}):
            limits_of = {gpu.limit for gpu in gpus if gpu.factor == factor}
            loose = ", ".join(sorted(limit.value for limit in limits_of if not limit.enforced))
            found.setdefault((factor, loose), []).append(node.name)
    for (factor, loose), nodes in found.items():
        told = f"GPUs are oversubscribed by {factor}, so pods may run out of memory within what they were granted"
        if loose:
            told += f", and nothing enforces that they stay within it (limit {loose})"
        make = finding.warning if loose else finding.note
        yield make(f"node/{objects.listed(nodes)}", told, "docs/oversubscription.md")
    yield from _still_above(cluster)
    for node in cluster.nodes:
        try:
            if label := str(node.labels.get(names.LABEL_OVERSUBSCRIPTION) or ""):
                units.parse_factor(label)
        except ValueError as error:
            yield finding.warning(
                f"node/{node.name}",
                f"nothing is oversubscribed there, as its label {names.LABEL_OVERSUBSCRIPTION} cannot be read: {error}",
                f"kubectl label node {node.name} --overwrite {names.LABEL_OVERSUBSCRIPTION}=FACTOR, or remove it",
            )


def _still_above(cluster: Cluster) -> Iterator[Finding]:
    """GPUs whose pods came when more could be granted; what is held beyond that too is another check's."""
    for name, ledger in sorted(cluster.ledgers.items()):
        over = ledger.over_committed()
        gpus = [
            gpu.label
            for gpu in ledger.inventory.gpus
            if gpu.uuid not in over and ledger.used_mib.get(gpu.uuid, 0) > ledger.grantable_mib(gpu)
        ]
        if gpus:
            which = f"GPUs {', '.join(gpus)} hold" if len(gpus) > 1 else f"GPU {gpus[0]} holds"
            yield finding.warning(
                f"node/{name}",
                f"{which} more than may be granted since the factor was lowered, so pods may run out of memory within"
                " what they were granted",
                f"wait until pods there end, or evict those of a GPU: gpushare drain {name}/{gpus[0]}",
            )


def _demanding(cluster: Cluster) -> Iterator[str]:
    labelled = {
        str(each["metadata"]["name"])
        for each in known(cluster.snapshot.namespaces)
        if objects.label(each, names.LABEL_LIMIT) == names.ENFORCED
    }
    asked = {
        record.ref.namespace
        for _, record in cluster.pods
        if isinstance(record, Pending) and record.request is not None and record.request.shape.gpus.enforced
    }
    yield from (f"namespace/{name}" for name in sorted(labelled | asked))


def _lost(cluster: Cluster, known_gpus: Mapping[str, Sequence[Gpu]]) -> Iterator[Finding]:
    """Pods that run where limits were enforced when they came."""
    for pod, record in cluster.pods:
        if not isinstance(record, Bound) or record.allocation is None or not _demands(pod):
            continue
        shares = [grant for grant in record.allocation.grants if not grant.whole]
        loose = [
            f"GPU {gpu.label}: {limit.value}"
            for gpu in known_gpus.get(record.node, ())
            for grant in shares
            if gpu.uuid in grant.gpus and not (limit := gpu.limit_of(mib_on(grant, gpu))).enforced
        ]
        if loose:
            have = ", ".join(dict.fromkeys(loose))
            yield finding.warning(
                f"pod/{record.ref}",
                f"it demands an enforced limit, and has none any more on node {record.node} ({have})",
                _WHY.replace("POD", f"-n {record.ref.namespace} {record.ref.name}"),
            )


def _demands(pod: pods_wire.Pod) -> bool:
    return pods_wire.annotations(pod).get(names.ANNOTATION_LIMIT) == names.ENFORCED
