"""Whether GPU pods are placed as they should be, and what has become of them. Pure."""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any, Final

from gpushare import names, units
from gpushare.cluster import pod_records
from gpushare.cluster.pod_records import Bound, Pending
from gpushare.errors import SettingsError, WireError
from gpushare.identity import PodRef
from gpushare.kube.api import JsonObject
from gpushare.wire import fields, pods as pods_wire
from gpushare_cli import kube_scores, scheduler_config, yamls
from gpushare_cli.doctor import foreign, objects
from gpushare_cli.doctor.facts import Facts, Finding, NothingToCheckError, error, note, warning
from gpushare_cli.doctor.snapshot import Unreadable, read

_KEY: Final = "scheduler.yaml"
_VERBS: Final = ("filterVerb", "prioritizeVerb", "preemptVerb", "bindVerb")
_REQUESTS: Final = "gpushare_extender_requests_total"
_PATIENCE: Final = timedelta(minutes=5)
_REJECTED: Final = "UnexpectedAdmissionError"
_SHOWN: Final = 10  # names in one command
_REFUSED: Final = "PreStartContainer"  # in the kubelet's words, before those of a plugin that refuses
_LONGEST: Final = 500  # characters of these


def configuration(facts: Facts) -> Iterator[Finding]:
    """The second scheduler asks the controller, for everything that it should."""
    facts.needs_second_scheduler()
    where, part = facts.own("configmap", names.SCHEDULER), facts.snapshot.scheduler_settings
    config = facts.needed("configmap", names.SCHEDULER, part, ", and the scheduler does not start without it")
    whole = " --whole-gpus" if facts.settings.whole_gpus else ""
    fix = (
        f"write what this prints into its key {_KEY}: gpushare scheduler-config --server-version"
        f" {facts.snapshot.server}{whole}; then: {facts.kubectl(f'rollout restart deployment/{names.SCHEDULER}')}"
    )
    try:
        found = _parsed(config)
        ours = next((each for each in _extenders(found) if _is_ours(each) and not _is_for_others(each)), {})
        problems = [*_problems(found, facts.settings.scheduler_name), *_of_entry(facts, ours)]
    except (WireError, SettingsError) as odd:
        problems = [str(odd)]
        found = ours = {}
    yield from (error(where, problem, fix) for problem in problems)
    yield from (warning(where, weakness, fix) for weakness in (_weaknesses(found, ours) if found else ()))
    for other in _extenders(found) if found else ():
        if other.get("filterVerb") and other is not ours and other.get("nodeCacheCapable") is not True:
            what = f"nodeCacheCapable of the extender {other.get('urlPrefix')} is not true"
            why = "new kube-schedulers (seen: 1.36) score nodes as if empty then, kubernetes/kubernetes#141781"
            yield warning(where, f"{what}: {why}", "set it in that entry, if that extender takes names of nodes")


def other_extenders(facts: Facts) -> Sequence[Mapping[str, Any]]:
    """Extenders of the second scheduler that are not the controller; none if its configuration cannot be read."""
    config = read(facts.snapshot.scheduler_settings)
    try:
        return [each for each in _extenders(_parsed(config)) if not _is_ours(each)] if config else []
    except WireError:
        return []


def _parsed(config: JsonObject) -> Mapping[str, Any]:
    """The file in the second scheduler's ConfigMap; WireError if it has none that can be read."""
    text = fields.text(fields.mapping(config, "data", "configmap"), _KEY, "data")
    if not text:
        raise WireError(f"it has no key {_KEY}")
    documents = [document for document in yamls.load_all(text, _KEY) if document is not None]
    if len(documents) != 1:
        raise WireError(f"{_KEY}: {len(documents)} documents, where kube-scheduler reads one")
    return fields.an_object(documents[0], _KEY)


def _extenders(config: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    return fields.objects(config, "extenders", _KEY)


def _is_ours(extender: Mapping[str, Any]) -> bool:
    """Whether an extender is the controller, as far as its address tells."""
    url = str(extender.get("urlPrefix")).rstrip("/")
    return url.endswith((names.EXTENDER_PREFIX, names.NANO_PREFIX)) and not foreign.EXTENDER.search(url)


def _is_for_others(extender: Mapping[str, Any]) -> bool:
    """Whether it is the entry that ranks pods without GPUs."""
    return extender.get("prioritizeVerb") == names.OTHERS_VERB


def _problems(found: Mapping[str, Any], scheduler: str) -> Iterator[str]:
    """What is wrong beside the extender for GPU pods."""
    profiles = [profile.get("schedulerName") for profile in fields.objects(found, "profiles", _KEY)]
    if scheduler not in profiles:
        others = f"; there is {', '.join(map(str, profiles))}" if profiles else ""
        yield f"no profile has the schedulerName {scheduler} that GPU pods have{others}"
    for other in filter(_is_for_others, _extenders(found)):
        for verb in _VERBS:
            if verb != "prioritizeVerb" and other.get(verb):
                where = f"{verb} of the extender with {names.OTHERS_VERB}"
                yield f"{where} is {other[verb]}: with it, pods without GPUs depend on the controller"


def _of_entry(facts: Facts, ours: Mapping[str, Any]) -> Iterator[str]:
    """What is wrong with the extender for GPU pods, compared with what `gpushare scheduler-config` writes."""
    options = scheduler_config.Options(server=facts.snapshot.server, whole_gpus=facts.settings.whole_gpus)
    [written] = yamls.load_all(scheduler_config.configuration(options), _KEY)
    [expected] = _extenders(fields.an_object(written, _KEY))
    if not ours:
        yield f"no extender has the urlPrefix {expected['urlPrefix']}, so no one asks the controller"
        return
    for verb in _VERBS:
        if verb in expected and ours.get(verb) != expected[verb]:
            yield f"{verb} of the extender is {ours.get(verb) or 'missing'}, not {expected[verb]}"
    if ours.get("nodeCacheCapable") is not True:
        yield "nodeCacheCapable of the extender is not true, so that whole nodes would be sent for every pod"
    named = {entry.get("name") for entry in fields.objects(ours, "managedResources", "extender")}
    missing = [entry["name"] for entry in expected["managedResources"] if entry["name"] not in named]
    if named and missing:
        yield f"managedResources of the extender lacks {', '.join(missing)}: pods that ask for it get no GPU"
    if ours.get("ignorable"):
        yield "ignorable of the extender is true: without the controller, pods would be bound without GPUs"


def _weaknesses(found: Mapping[str, Any], ours: Mapping[str, Any]) -> Iterator[str]:
    if (share := found.get("percentageOfNodesToScore")) != 100:
        yield f"percentageOfNodesToScore is {share}, not 100: of many nodes it may not look at those whose GPUs fit"
    weight, needed = _number(ours.get("weight")), kube_scores.needed(kube_scores.UNASKED)
    if 0 < weight < needed:
        yield (
            f"weight of the extender is {weight}: below {needed} kube-scheduler's own scores decide where GPU pods go,"
            " not the policy, and GPUs are filled less"
        )
    client = fields.mapping(found, "clientConnection", _KEY)
    qps = _number(client.get("qps")) or kube_scores.CLIENT_QPS
    burst = _number(client.get("burst")) or kube_scores.CLIENT_BURST
    if qps <= kube_scores.CLIENT_QPS or burst <= kube_scores.CLIENT_BURST:
        yield f"clientConnection has qps {qps} and burst {burst}: more requests wait in it, and with them the pods"


def _number(value: object) -> int:
    """0 if it is not there, and for what kube-scheduler refuses."""
    return int(value) if isinstance(value, int | float) and math.isfinite(value) else 0


def pods_without_gpus(facts: Facts) -> Iterator[Finding]:
    """Pods without GPUs are kept off the nodes that share, or placed there where they cost the least."""
    sharing = [node for node in facts.nodes if node.inventory is not None]
    open_to_all = [node.name for node in sharing if not node.is_tainted]
    if not open_to_all:
        return
    facts.needs_ready_replica(names.CONTROLLER)
    page = facts.snapshot.controller_metrics
    if isinstance(page, Unreadable):
        raise NothingToCheckError("the controller's metrics cannot be read")
    if not objects.counted(page.text, _REQUESTS):
        raise NothingToCheckError("no scheduler has asked the controller anything yet")
    # It is asked about GPU pods too, and has no opinion on them; a scheduler that has no others ranks nothing.
    if objects.counted(page.text, _REQUESTS, verb=names.OTHERS_VERB, outcome="scored"):
        return
    yield note(
        "nodes" if len(open_to_all) > 1 else f"node/{open_to_all[0]}",
        f"{len(open_to_all)} of {len(sharing)} nodes that share also take pods without GPUs, and no scheduler asks the"
        " controller where these cost the least: GPUs stay idle because CPU or memory runs out first",
        "use gpushare scheduler-config --rank-others, or taint the nodes: docs/scheduling.md says what each costs",
    )


def pending(facts: Facts) -> Iterator[Finding]:
    """GPU pods get a node within minutes."""
    waiting = [each for each in facts.pods if isinstance(each[1], Pending) and facts.age(each[0]) > _PATIENCE]
    if not waiting:
        return
    pod, record = min(waiting, key=lambda each: str(each[0]["metadata"].get("creationTimestamp")))
    is_alone = len(waiting) == 1
    count, which = ("a GPU pod waits", "this one") if is_alone else (f"{len(waiting)} GPU pods wait", "the oldest")
    problem = f"{count} for more than 5 minutes, {which} for {_age(facts, pod)}"
    yield warning(f"pod/{record.ref}", problem, f"gpushare explain -n {record.ref.namespace} {record.ref.name}")


def unallocated(facts: Facts) -> Iterator[Finding]:
    """Pods on a node were granted GPUs at bind."""
    ours = {node.name for node in facts.nodes if node.inventory is not None}
    for pod, record in facts.pods:
        if not isinstance(record, Bound) or record.bypassed is None or record.deleting or facts.age(pod) <= _PATIENCE:
            continue
        # Where nothing says that these GPUs are shared, another plugin may have started it, as with whole GPUs.
        if record.bypassed.mutated or record.node in ours:
            age = _age(facts, pod)
            problem = f"it is on node {record.node} without GPUs for {age}: by another scheduler or a preset node"
            events = f"its Events say why: kubectl -n {record.ref.namespace} describe pod {record.ref.name}"
            yield error(f"pod/{record.ref}", problem, f"{events}; create it without spec.nodeName")


def refused(facts: Facts) -> Iterator[Finding]:
    """Containers of pods that were granted GPUs start."""
    by_node: dict[str, list[tuple[str, PodRef, str]]] = {}
    for pod, record in facts.pods:
        if isinstance(record, Bound) and record.holds and not record.deleting and facts.age(pod) > _PATIENCE:
            for why in itertools.islice(_refusals(pod), 1):
                by_node.setdefault(record.node, []).append((record.created, record.ref, why))
    for node, found in sorted(by_node.items()):
        _, ref, why = min(found, key=lambda each: each[0])
        pods = "a pod" if len(found) == 1 else f"{len(found)} pods"
        problem = f"its device plugin starts no container of {pods}; of {ref} it says: {why}"
        fix = f"what it says tells what to do; docs/troubleshoot.md; gpushare explain -n {ref.namespace} {ref.name}"
        yield warning(f"node/{node}", problem, fix)


def _refusals(pod: JsonObject) -> Iterator[str]:
    """The plugin's words, of each container that it refuses at the moment."""
    for path, report in pods_wire.reports(pod):
        waiting = fields.mapping(fields.mapping(report, "state", path), "waiting", path)
        _, by_plugin, message = fields.text(waiting, "message", path).partition(_REFUSED)
        if by_plugin:
            yield message.partition("desc = ")[2][:_LONGEST]


def unreadable(facts: Facts) -> Iterator[Finding]:
    """What bound pods hold can be read."""
    inventories = {node.name: node.inventory for node in facts.nodes}
    for _, record in facts.pods:
        if not isinstance(record, Bound) or (inventory := inventories.get(record.node)) is None:
            continue
        _, problems = pod_records.all_held([record], inventory.unit)
        for problem in problems.values():
            effect = "it is counted by its other annotations" if problem.counted else f"{record.node} takes no GPU pods"
            make = warning if problem.counted else error
            delete = f"kubectl -n {record.ref.namespace} delete pod {record.ref.name}"
            message = f"what it holds cannot be read, so {effect}: {problem.why}"
            yield make(f"pod/{record.ref}", message, f"{delete}, or install the version of gpushare that bound it")


def rejected(facts: Facts) -> Iterator[Finding]:
    """No failed pods are left of a node's restart."""
    found: dict[tuple[str, str], list[str]] = {}
    for _, record in facts.pods:
        if isinstance(record, Bound) and record.failed.startswith(_REJECTED) and not record.deleting:
            found.setdefault((record.node, record.ref.namespace), []).append(record.ref.name)
    for (node, namespace), pods in sorted(found.items()):
        count = f"{len(pods)} pods" if len(pods) > 1 else "1 pod"
        named = " ".join(sorted(pods)[:_SHOWN]) + (" ..." if len(pods) > _SHOWN else "")
        problem = f"{count} of namespace {namespace} failed there with {_REJECTED}: no device plugin was registered"
        yield warning(f"node/{node}", problem, f"kubectl -n {namespace} delete pod {named}")


def over_committed(facts: Facts) -> Iterator[Finding]:
    """No GPU is held beyond what it has."""
    for name, ledger in sorted(facts.ledgers.items()):
        fix = f"see who holds it: kubectl inspect gpushare -d {name}; delete one of them"
        for uuid, mib in ledger.over_committed().items():
            gpu = ledger.inventory.by_uuid.get(uuid)
            which = f"GPU {gpu.label} ({uuid})" if gpu else f"GPU {uuid}, which it no longer has,"
            unit, (has, more) = units.in_one_unit(gpu.memory_mib if gpu else 0, mib)
            yield error(f"node/{name}", f"{which} has {has} {unit}, and pods hold {more} {unit} more", fix)
        for uuid, percent in ledger.over_computed().items():
            yield error(f"node/{name}", f"pods hold {100 + percent} per cent of the compute of GPU {uuid}", fix)


def _age(facts: Facts, pod: JsonObject) -> str:
    minutes = int(facts.age(pod) / timedelta(minutes=1))
    if minutes < 120:
        return f"{minutes} minutes"
    return f"{minutes // 60} hours" if minutes < 48 * 60 else f"{minutes // 1440} days"
