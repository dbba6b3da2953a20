"""Pods that have no GPUs yet -> why not, in the words of `gpushare explain`. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from gpushare import names
from gpushare.cluster import pod_records
from gpushare.cluster.pod_records import Bound, Bypassed, Pending, PodRecord
from gpushare.model.request import PodRequest, Policy
from gpushare.wire import fields
from gpushare.wire import pods as pods_wire
from gpushare_cli import world
from gpushare_cli.explain import decide
from gpushare_cli.reading import Objects, Settings

Object = Mapping[str, Any]
MOST: Final = 100
_LONGEST: Final = 2048  # characters of a reason: a pod's author may name as many scheduling gates as an object can hold
NOT_EVALUATED: Final = "not evaluated, because pods of too many kinds wait; see gpushare explain"


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
    # Whether a pod fits is the same with every policy, and binpack needs no look at the whole cluster.
    found = world.of(cluster, replace(settings, gpu_policy=Policy.BINPACK))
    told = []
    for i, group in enumerate(_groups(found.pods)):
        pod, record = group[0]
        said = decide.explain(pod, found) if i < MOST or cluster.forbidden else None
        headline, reason = (said.headline, said.summary) if said else (decide.WAITS, NOT_EVALUATED)
        ref, request = pods_wire.ref(pod), _request(record)
        told.append(
            Waiting(
                namespace=ref.namespace,
                name=ref.name,
                others=len(group) - 1,
                asks="; ".join(world.asked_for(request.shape)) if request else "",
                headline=headline,
                reason=reason if len(reason) <= _LONGEST else f"{reason[:_LONGEST]} …",
                good=said is not None and said.good,
                since=_created(pod),
            )
        )
    return tuple(told)


def of_scheduler(pods: Iterable[fields.JsonObject], settings: Settings) -> tuple[Waiting, ...]:
    """The same where nodes may not be read, or not be made sense of: what the scheduler has said."""
    return of_cluster(Objects(pods=tuple(pods), forbidden="nodes are left out"), settings)


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


def _request(record: PodRecord | None) -> PodRequest | None:
    match record:
        case Pending(request=request) | Bound(bypassed=Bypassed(request=request)):
            return request
        case _:
            return None


def _created(pod: Object) -> str:
    return fields.text(fields.mapping(pod, "metadata", "pod"), "creationTimestamp", "metadata")
