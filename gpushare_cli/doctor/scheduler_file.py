"""What a KubeSchedulerConfiguration does with GPU pods. Pure."""

import math
from collections.abc import Iterator, Mapping
from typing import Any, Final

from gpushare import names
from gpushare.errors import WireError
from gpushare.wire import fields
from gpushare_cli import scores, yamls
from gpushare_cli.doctor import foreign, own

_VERBS: Final = ("filterVerb", "prioritizeVerb", "preemptVerb", "bindVerb")


def parsed(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The file in the second scheduler's ConfigMap.

    Raises:
        WireError: there is none, or it is none.
    """
    text = fields.text(fields.mapping(config, "data", "configmap"), own.SCHEDULER_KEY, "data")
    if not text:
        raise WireError(f"it has no key {own.SCHEDULER_KEY}")
    documents = [document for document in yamls.load_all(text, own.SCHEDULER_KEY) if document is not None]
    if len(documents) != 1:
        raise WireError(f"{own.SCHEDULER_KEY}: {len(documents)} documents, where kube-scheduler reads one")
    return fields.an_object(documents[0], own.SCHEDULER_KEY)


def extenders(config: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The extenders of a KubeSchedulerConfiguration.

    Raises:
        WireError: it is none.
    """
    yield from fields.objects(config, "extenders", own.SCHEDULER_KEY)


def is_ours(extender: Mapping[str, Any]) -> bool:
    """Whether an extender is the controller, as far as its address tells."""
    url = str(extender.get("urlPrefix")).rstrip("/")
    return url.endswith((names.EXTENDER_PREFIX, names.NANO_PREFIX)) and not foreign.EXTENDER.search(url)


def entry_for_gpus(found: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The extender that is the controller, for GPU pods."""
    return next((each for each in extenders(found) if is_ours(each) and not _is_for_others(each)), None)


def problems(found: Mapping[str, Any], expected: Mapping[str, Any], scheduler: str) -> Iterator[str]:
    """Why GPU pods of a scheduler would get no GPUs, or other pods no node.

    Args:
        found: the configuration.
        expected: the extender as it is printed for this server.
        scheduler: the name that GPU pods have.
    """
    yield from _of_profiles(found, scheduler)
    yield from _of_others(found)
    ours = entry_for_gpus(found)
    if ours is None:
        yield f"no extender has the urlPrefix {expected['urlPrefix']}, so no one asks the controller"
        return
    yield from _of_entry(ours, expected)


def weaknesses(found: Mapping[str, Any]) -> Iterator[str]:
    """Why it works worse than it could."""
    if (share := found.get("percentageOfNodesToScore")) != 100:
        yield (
            f"percentageOfNodesToScore is {share}, not 100: in a large cluster it may stop looking before it comes to a"
            " node whose GPUs fit"
        )
    weight, needed = _number((entry_for_gpus(found) or {}).get("weight")), scores.needed(scores.UNASKED)
    if 0 < weight < needed:
        yield (
            f"weight of the extender is {weight}: below {needed} kube-scheduler's own scores decide where GPU pods go,"
            " not the policy, and GPUs are filled less"
        )
    client = fields.mapping(found, "clientConnection", own.SCHEDULER_KEY)
    qps, burst = _number(client.get("qps")) or scores.CLIENT_QPS, _number(client.get("burst")) or scores.CLIENT_BURST
    if qps <= scores.CLIENT_QPS or burst <= scores.CLIENT_BURST:
        yield (
            f"clientConnection has qps {qps} and burst {burst}: more requests than that to the API server wait in"
            " kube-scheduler, and with them the pods"
        )


def _of_profiles(found: Mapping[str, Any], scheduler: str) -> Iterator[str]:
    profiles = [profile.get("schedulerName") for profile in fields.objects(found, "profiles", own.SCHEDULER_KEY)]
    if scheduler not in profiles:
        others = f"; there is {', '.join(map(str, profiles))}" if profiles else ""
        yield f"no profile has the schedulerName {scheduler} that GPU pods have{others}"


def _of_others(found: Mapping[str, Any]) -> Iterator[str]:
    for other in filter(_is_for_others, extenders(found)):
        for verb in _VERBS:
            if verb != "prioritizeVerb" and other.get(verb):
                yield (
                    f"{verb} of the extender with {names.OTHERS_VERB} is {other[verb]}: it must have no other verb, or"
                    " pods without GPUs depend on the controller"
                )


def _of_entry(ours: Mapping[str, Any], expected: Mapping[str, Any]) -> Iterator[str]:
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


def _number(value: object) -> int:
    """Of a field; 0 if it is not there, and for what kube-scheduler refuses."""
    return int(value) if isinstance(value, int | float) and math.isfinite(value) else 0


def _is_for_others(extender: Mapping[str, Any]) -> bool:
    """Whether it is the entry that ranks pods without GPUs."""
    return extender.get("prioritizeVerb") == names.OTHERS_VERB
