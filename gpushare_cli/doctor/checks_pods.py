"""Pods that wait, that hold what they were not given, or that hold nothing although they should. Pure."""

import itertools
from collections.abc import Iterator
from datetime import timedelta
from typing import Final

from gpushare import units
from gpushare.cluster import pod_records
from gpushare.cluster.pod_records import Bound, Pending
from gpushare.identity import PodRef
from gpushare.kube.api import JsonObject
from gpushare.wire import fields
from gpushare.wire import pods as pods_wire
from gpushare_cli.doctor import finding, objects
from gpushare_cli.doctor.cluster import Cluster
from gpushare_cli.doctor.finding import Finding

_PATIENCE: Final = timedelta(minutes=5)
_REJECTED: Final = "UnexpectedAdmissionError"
_SHOWN: Final = 10  # names in one command
_REFUSED: Final = "PreStartContainer"
"""In what the kubelet says of a container that a device plugin refuses, before the plugin's own words."""
_LONGEST: Final = 500  # characters of these


def pending(cluster: Cluster) -> Iterator[Finding]:
    """GPU pods get a node within minutes."""
    waiting = [(pod, record) for pod, record in cluster.pods if isinstance(record, Pending) and _is_old(cluster, pod)]
    if not waiting:
        return
    pod, record = min(waiting, key=lambda each: str(each[0]["metadata"].get("creationTimestamp")))
    is_alone = len(waiting) == 1
    count = "a GPU pod waits" if is_alone else f"{len(waiting)} GPU pods wait"
    yield finding.warning(
        f"pod/{record.ref}",
        f"{count} for more than 5 minutes, {'this one' if is_alone else 'the oldest'} for {_age(cluster, pod)}",
        f"gpushare explain -n {record.ref.namespace} {record.ref.name}",
    )


def unallocated(cluster: Cluster) -> Iterator[Finding]:
    """Pods on a node were given GPUs by their binding."""
    ours = {node.name for node in cluster.nodes if node.record.inventory is not None}
    for pod, record in cluster.pods:
        if not isinstance(record, Bound) or record.bypassed is None or record.deleting or not _is_old(cluster, pod):
            continue
        # Where nothing says that these GPUs are shared, another plugin may well have started it, as with whole GPUs.
        if record.bypassed.mutated or record.node in ours:
            yield finding.error(
                f"pod/{record.ref}",
                f"it is on node {record.node} without GPUs for {_age(cluster, pod)}: another scheduler or a preset node"
                " brought it there",
                f"its Events say why it got none: kubectl -n {record.ref.namespace} describe pod {record.ref.name};"
                " delete it, and create it without spec.nodeName",
            )


def refused(cluster: Cluster) -> Iterator[Finding]:
    """Containers of pods that were given GPUs start."""
    by_node: dict[str, list[tuple[str, PodRef, str]]] = {}
    for pod, record in cluster.pods:
        if isinstance(record, Bound) and record.holds and not record.deleting and _is_old(cluster, pod):
            for why in itertools.islice(_refusals(pod), 1):
                by_node.setdefault(record.node, []).append((record.created, record.ref, why))
    for node, found in sorted(by_node.items()):
        _, ref, why = min(found, key=lambda each: each[0])
        pods = "a pod" if len(found) == 1 else f"{len(found)} pods"
        yield finding.warning(
            f"node/{node}",
            f"its device plugin starts no container of {pods}; of {ref} it says: {why}",
            f"what it says tells what to do; docs/troubleshoot.md; gpushare explain -n {ref.namespace} {ref.name}",
        )


def _refusals(pod: JsonObject) -> Iterator[str]:
    """The plugin's words, of each container that it refuses at the moment."""
    for path, report in pods_wire.reports(pod):
        waiting = fields.mapping(fields.mapping(report, "state", path), "waiting", path)
        _, by_plugin, message = fields.text(waiting, "message", path).partition(_REFUSED)
        if by_plugin:
            yield message.partition("desc = ")[2][:_LONGEST]


def unreadable(cluster: Cluster) -> Iterator[Finding]:
    """What bound pods hold can be read."""
    inventories = {node.name: node.record.inventory for node in cluster.nodes}
    for _, record in cluster.pods:
        if not isinstance(record, Bound) or (inventory := inventories.get(record.node)) is None:
            continue
        _, problems = pod_records.all_held([record], inventory.unit)
        for problem in problems.values():
            effect = "it is counted by its other annotations" if problem.counted else f"{record.node} takes no GPU pods"
            make = finding.warning if problem.counted else finding.error
            delete = f"kubectl -n {record.ref.namespace} delete pod {record.ref.name}"
            yield make(
                f"pod/{record.ref}",
                f"what it holds cannot be read, so {effect}: {problem.why}",
                f"{delete}, or install the version of gpushare that bound it",
            )


def rejected(cluster: Cluster) -> Iterator[Finding]:
    """No failed pods are left of a node's restart."""
    found: dict[tuple[str, str], list[str]] = {}
    for _, record in cluster.pods:
        if isinstance(record, Bound) and record.failed.startswith(_REJECTED) and not record.deleting:
            found.setdefault((record.node, record.ref.namespace), []).append(record.ref.name)
    for (node, namespace), pods in sorted(found.items()):
        count = f"{len(pods)} pods" if len(pods) > 1 else "1 pod"
        named = " ".join(sorted(pods)[:_SHOWN]) + (" ..." if len(pods) > _SHOWN else "")
        yield finding.warning(
            f"node/{node}",
            f"{count} of namespace {namespace} failed there with {_REJECTED}, having come while no device plugin was"
            " registered",
            f"kubectl -n {namespace} delete pod {named}",
        )


def over_committed(cluster: Cluster) -> Iterator[Finding]:
    """No GPU is held beyond what it has."""
    for name, ledger in sorted(cluster.ledgers.items()):
        for uuid, mib in ledger.over_committed().items():
            gpu = ledger.inventory.by_uuid.get(uuid)
            which = f"GPU {gpu.label} ({uuid})" if gpu else f"GPU {uuid}, which it does not have any more,"
            has = units.memory(gpu.memory_mib if gpu else 0)
            yield finding.error(
                f"node/{name}",
                f"{which} has {has}, and pods hold {units.memory(mib)} more",
                f"see who holds it: kubectl inspect gpushare -d {name}; delete one of them",
            )
        for uuid, percent in ledger.over_computed().items():
            yield finding.error(
                f"node/{name}",
                f"pods hold {100 + percent} per cent of the compute of GPU {uuid}",
                f"see who holds it: kubectl inspect gpushare -d {name}; delete one of them",
            )


def _is_old(cluster: Cluster, pod: JsonObject) -> bool:
    since = objects.created(pod)
    return since is not None and cluster.now - since > _PATIENCE


def _age(cluster: Cluster, pod: JsonObject) -> str:
    since = objects.created(pod)
    minutes = int((cluster.now - since) / timedelta(minutes=1)) if since else 0
    if minutes < 120:
        return f"{minutes} minutes"
    return f"{minutes // 60} hours" if minutes < 48 * 60 else f"{minutes // 1440} days"
