"""Aliyun's way to say which GPUs must not be used: a ConfigMap for each node, with the numbers of its GPUs.

Somebody else writes them. Without them, or without the right to read them, everybody goes on working.
"""

import logging
import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from controller.optional import OptionalWatch
from controller.state import ClusterState
from controller.watches import Freshness
from gpushare import names
from gpushare.errors import WireError
from gpushare.identity import NodeName
from gpushare.kube.api import JsonObject, KubeApi
from gpushare.kube.watch import Reflector
from gpushare.runtime import logs
from gpushare.runtime.clock import Clock
from gpushare.wire import shape

_LOG: Final = logging.getLogger(__name__)
PATH: Final = f"/api/v1/namespaces/{names.UNHEALTHY_NAMESPACE}/configmaps"
_NUMBER: Final = re.compile(r"[0-9]{1,4}")


@dataclass(frozen=True, slots=True)
class Marked:
    """What one ConfigMap says."""

    node: NodeName
    gpus: frozenset[int] = frozenset()
    problem: str = ""
    """What of it cannot be read; the rest counts."""


def parse(config_map: Mapping[str, object]) -> Marked | None:
    """What a ConfigMap says of a node's GPUs; None if it is about something else.

    Raises:
        WireError: it is no ConfigMap.
    """
    name = shape.text(shape.mapping(config_map, "metadata", "ConfigMap"), "name", "metadata")
    node = name.removeprefix(names.PREFIX_UNHEALTHY)
    if node in {"", name}:
        return None
    text = shape.mapping(config_map, "data", "ConfigMap").get(names.UNHEALTHY_KEY) or ""
    if not isinstance(text, str):
        return Marked(NodeName(node), problem=f"{names.UNHEALTHY_KEY}: expected a text")
    entries = [entry for part in text.split(",") if (entry := part.strip())]
    odd = [entry for entry in entries if _NUMBER.fullmatch(entry) is None]
    gpus = frozenset(int(entry) for entry in entries if entry not in odd)
    if not odd:
        return Marked(NodeName(node), gpus)
    quoted = ", ".join(f"{entry!r:.40}" for entry in odd[:5])
    return Marked(NodeName(node), gpus, f"{names.UNHEALTHY_KEY}: no numbers of GPUs: {quoted}")


@dataclass(frozen=True, slots=True, kw_only=True)
class UnhealthySink:
    """Sink of the watch of ConfigMaps; all but the few that are meant leave no trace."""

    state: ClusterState
    freshness: Freshness
    _known: set[NodeName] = field(default_factory=set)
    """Nodes that a ConfigMap was seen for."""
    _told: dict[NodeName, str] = field(default_factory=dict)
    """The last complaint about each."""

    def keep(self, obj: JsonObject) -> JsonObject:
        """Reduce a ConfigMap to what matters as soon as it was read."""
        try:
            return {"marked": parse(obj)}
        except WireError as error:
            logs.event(_LOG, "object left out", level=logging.ERROR, kind="ConfigMap", error=str(error))
            return {"marked": None}

    def replace(self, objects: list[JsonObject]) -> None:
        """See Sink."""
        fresh = {marked.node: marked for obj in objects if (marked := _marked(obj)) is not None}
        for node in self._known - fresh.keys():
            self._forget(node)
        for marked in fresh.values():
            self._take(marked)
        self.freshness.touch()

    def upsert(self, obj: JsonObject) -> None:
        """See Sink."""
        if (marked := _marked(obj)) is not None:
            self._take(marked)
        self.freshness.touch()

    def remove(self, obj: JsonObject) -> None:
        """See Sink."""
        if (marked := _marked(obj)) is not None:
            self._forget(marked.node)
        self.freshness.touch()

    def _take(self, marked: Marked) -> None:
        self._known.add(marked.node)
        if marked.problem and self._told.get(marked.node) != marked.problem:
            name = f"{names.UNHEALTHY_NAMESPACE}/{names.PREFIX_UNHEALTHY}{marked.node}"
            logs.event(_LOG, "unhealthy GPUs unreadable", level=logging.ERROR, config_map=name, error=marked.problem)
        self._told[marked.node] = marked.problem
        if marked.gpus != self.state.unhealthy_on(marked.node):
            logs.event(_LOG, "GPUs called unhealthy", node=marked.node, gpus=sorted(marked.gpus))
        self.state.set_unhealthy(marked.node, marked.gpus)

    def _forget(self, node: NodeName) -> None:
        self._known.discard(node)
        self._told.pop(node, None)
        self.state.set_unhealthy(node, frozenset())
        logs.event(_LOG, "GPUs called unhealthy", node=node, gpus=[])


class UnhealthyWatch:
    """Keeps what these ConfigMaps say up to date."""

    def __init__(self, *, api: KubeApi, state: ClusterState, clock: Clock) -> None:
        self.freshness = Freshness(clock)
        self._api = api
        self._state = state
        self._clock = clock
        self.watch = OptionalWatch(
            api=api,
            clock=clock,
            paths=(PATH,),
            reflector=self._reflector,
            effect=f"ConfigMaps {names.PREFIX_UNHEALTHY}NODE keep no GPU from being used",
            right=f"list and watch of configmaps in namespace {names.UNHEALTHY_NAMESPACE}",
        )

    def _reflector(self, path: str, synced: threading.Event) -> Reflector:
        sink = UnhealthySink(state=self._state, freshness=self.freshness)
        return Reflector(api=self._api, path=path, sink=sink, clock=self._clock, keep=sink.keep, synced=synced)


def _marked(obj: JsonObject) -> Marked | None:
    marked: Marked | None = obj["marked"]
    return marked
