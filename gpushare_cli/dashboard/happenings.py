"""What happened in the last hour, from what objects tell and from what has changed since the picture began. Pure."""

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any, Final

from gpushare import names, units
from gpushare.errors import WireError
from gpushare.model.gpu import GpuHealth
from gpushare.units import GIB
from gpushare.wire import allocations, fields
from gpushare.wire import pods as pods_wire
from gpushare_cli.dashboard.model import Card, Happening, NodeView

Object = Mapping[str, Any]
SPAN: Final = timedelta(hours=1)
MOST: Final = 200
STAMP: Final = "%Y-%m-%dT%H:%M:%SZ"


def latest(found: Iterable[Happening], now: datetime) -> tuple[Happening, ...]:
    """The newest of the last hour, the newest first. Times that are none are left out."""
    begin, until = since(now), (now + timedelta(minutes=5)).strftime(STAMP)
    recent = {each for each in found if begin <= each.at <= until}
    return tuple(sorted(recent, key=lambda each: (each.at, each.subject, each.text), reverse=True)[:MOST])


def since(now: datetime) -> str:
    """The earliest time that is of interest."""
    return (now - SPAN).strftime(STAMP)


def of_view(view: NodeView, begin: str = "") -> Iterator[Happening]:
    """When the pods of a node got their GPUs, from a time on."""
    held: dict[tuple[str, str, str], list[str]] = {}
    for card in view.cards:
        for block in card.blocks:
            if block.since < begin:
                continue
            amount = "all of it" if block.whole else units.memory(block.granted_mib)
            key = block.since, block.namespace, block.name
            held.setdefault(key, []).append(f"{amount} of GPU {card.label}")
    for (at, namespace, name), parts in held.items():
        if at:
            text = f"got {', '.join(parts)} on {view.name}"
            yield Happening(at=at, kind="granted", warning=False, subject=f"{namespace}/{name}", text=text)


def of_ended(pod: Object) -> Happening | None:
    """When a pod gave its GPUs back; None if it holds some, or held none."""
    node = pods_wire.node_of(pod)
    if pods_wire.holds_gpus(pod) or not _was_given(pod):
        return None
    ends = [
        fields.text(fields.mapping(fields.mapping(report, "state", path), "terminated", path), "finishedAt", path)
        for path, report in pods_wire.reports(pod)
    ]
    phase = fields.text(fields.mapping(pod, "status", "pod"), "phase", "status")
    text = f"ended on {node} ({phase}), and gave its GPU memory back"
    return Happening(
        at=max(ends, default=""),
        kind="ended",
        warning=phase == "Failed",
        subject=str(pods_wire.ref(pod)),
        text=text,
    )


def of_deleted(pod: Object, now: datetime) -> Happening | None:
    """A pod that is gone; None if it held nothing at its end."""
    if not pods_wire.holds_gpus(pod) or not _was_given(pod):
        return None
    text = f"deleted from {pods_wire.node_of(pod)}, and gave its GPU memory back"
    return Happening(at=now.strftime(STAMP), kind="ended", warning=False, subject=str(pods_wire.ref(pod)), text=text)


def of_event(event: Object) -> Happening:
    """An Event on a pod, as `objects.event` keeps it."""
    about = event["involvedObject"]
    stamps = [event.get(key) for key in ("lastTimestamp", "eventTime", "firstTimestamp")]
    return Happening(
        at=next((f"{stamp[:19]}Z" for stamp in stamps if isinstance(stamp, str) and stamp), ""),
        kind=event["reason"].removeprefix(names.EVENT_PREFIX),
        warning=event.get("type") == "Warning",
        subject=f"{about['namespace']}/{about['name']}",
        text=event["message"],
    )


def between(before: NodeView | None, after: NodeView | None, now: datetime) -> Iterator[Happening]:
    """What no object keeps: GPUs that changed their health, and pods that are gone."""
    at = now.strftime(STAMP)
    name = (after or before or _NOWHERE).name
    old = {card.uuid: card for card in before.cards} if before else {}
    new = {card.uuid: card for card in after.cards} if after else {}
    for uuid, card in new.items():
        if uuid in old and (old[uuid].health, old[uuid].why) != (card.health, card.why):
            healthy = card.health == GpuHealth.HEALTHY.value
            text = "is healthy again" if healthy else f"is {card.why}; nothing new is placed on it"
            yield Happening(at=at, kind="health", warning=not healthy, subject=_gpu(name, card), text=text)
    for uuid in old.keys() - new.keys():
        text = "is not listed by its node any more"
        yield Happening(at=at, kind="health", warning=True, subject=_gpu(name, old[uuid]), text=text)


def _was_given(pod: Object) -> bool:
    try:
        return allocations.granted(pod, GIB) is not None
    except WireError:
        return False


_NOWHERE: Final = NodeView(name="", address="", known=False, cards=())


def _gpu(node: str, card: Card) -> str:
    return f"GPU {card.label} of {node}"
