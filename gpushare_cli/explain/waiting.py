"""Pods that have no GPUs yet -> why not, in the words of `gpushare explain`. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from gpushare import names
from gpushare.cluster import pod_records
from gpushare.cluster.pod_records import Bound, Bypassed, Pending, PodRecord
from gpushare.model.request import PodRequest, Policy
from gpushare.placement.policies import Policies
from gpushare.wire import fields
from gpushare.wire import pods as pods_wire
from gpushare_cli import world
from gpushare_cli.explain import decide, render
from gpushare_cli.reading import Objects, Settings
from gpushare_cli.world import World

Object = Mapping[str, Any]
Why = tuple[str, str, bool]  # a headline, the reason, and whether it is a matter of moments
MOST: Final = 100
_LONGEST: Final = 2048  # characters of a reason: a pod's author may name as many scheduling gates as an object can hold
NOT_EVALUATED: Final = "not evaluated, because pods of too many kinds wait; see gpushare explain"
_POLICIES: Final = Policies(Policy.BINPACK)  # whether a pod fits is the same with every policy


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """Pods of one owner that ask for the same and have no GPUs yet."""

    namespace: str
    name: str
    others: int
    asks: str
    headline: str
    reason: str
    good: bool  # a node takes it; it is a matter of moments
    since: str


def may_wait(pod: Object) -> bool:
    """Whether a pod that concerns GPUs may have none, by a quick look."""
    bound = pods_wire.node_of(pod) is not None and names.ANNOTATION_ALLOCATION in pods_wire.annotations(pod)
    return not bound and pods_wire.counts(pod)


def of_cluster(cluster: Objects, settings: Settings) -> tuple[Waiting, ...]:
    """Why pods wait, the first at the top. SettingsError if nodes count in several units; WireError for odd objects."""
    found = world.of(cluster, settings)
    return tuple(
        _told(group, _why(*group[0], found) if i < MOST else (decide.WAITS, NOT_EVALUATED, False))
        for i, group in enumerate(_groups(found.pods))
    )


def of_scheduler(pods: Sequence[Object], settings: Settings) -> tuple[Waiting, ...]:
    groups = _groups([(pod, world.record(pod, settings.resource_config)) for pod in pods])
    return tuple(_told(group, _said(*group[0])) for group in groups)


_Recorded = tuple[Object, PodRecord | None]


def _groups(recorded: Iterable[_Recorded]) -> list[list[_Recorded]]:
    """Pods that wait: those of one owner that ask for the same together."""
    found: dict[tuple[str, ...], list[_Recorded]] = {}
    for pod, record in sorted(recorded, key=lambda each: (_created(each[0]), str(pods_wire.ref(each[0])))):
        if not pods_wire.counts(pod):
            continue
        match record:
            case Pending() | Bound(bypassed=Bypassed()):
                owner = str((pod_records.controller_of(pod) or {}).get("uid") or record.ref.uid)
                request = _request(record)
                asks = repr(request.shape) if request else ""
                key = record.ref.namespace, owner, asks, pods_wire.node_of(pod) or ""
                found.setdefault(key, []).append((pod, record))
            case _:
                pass
    return list(found.values())


def _told(group: Sequence[_Recorded], why: Why) -> Waiting:
    pod, record = group[0]
    ref = pods_wire.ref(pod)
    request = _request(record)
    headline, reason, good = why
    return Waiting(
        namespace=ref.namespace,
        name=ref.name,
        others=len(group) - 1,
        asks="; ".join(render.asks(request.shape)) if request else "",
        headline=headline,
        reason=reason if len(reason) <= _LONGEST else f"{reason[:_LONGEST]} …",
        good=good,
        since=_created(pod),
    )


def _why(pod: Object, record: PodRecord | None, state: World) -> Why:
    match record:
        case Bound(bypassed=Bypassed() as way):
            told = decide.bypassed(decide.blank_of(pod, state), pod, record, way, state)
            return told.headline, told.summary, told.good
        case Pending(request=PodRequest() as request):
            return decide.reason(pod, world.ask(state, pod, request, _POLICIES))
        case _:
            return _said(pod, record)


def _said(pod: Object, record: PodRecord | None) -> Why:
    if isinstance(record, Pending) and record.request is None:
        return decide.UNREADABLE, decide.fix(record), False
    node = pods_wire.node_of(pod)
    headline = f"on {node} without GPUs" if node else decide.WAITS
    return headline, decide.said(pod) or decide.NOTHING_SAID, False


def _request(record: PodRecord | None) -> PodRequest | None:
    match record:
        case Pending(request=request) | Bound(bypassed=Bypassed(request=request)):
            return request
        case _:
            return None


def _created(pod: Object) -> str:
    return fields.text(fields.mapping(pod, "metadata", "pod"), "creationTimestamp", "metadata")
