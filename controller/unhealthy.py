"""Aliyun's way to say which GPUs must not be used: a ConfigMap for each node, with the numbers of its GPUs.

Other programs write them. Without them, or without the right to read them, everything keeps working.
"""

import logging
import threading
from dataclasses import dataclass, field
from typing import Final

from controller.optional import OptionalWatch
from controller.state import ClusterState
from gpushare import names
from gpushare.errors import WireError
from gpushare.identity import NodeName
from gpushare.kube.api import JsonObject, KubeApi
from gpushare.kube.watch import Reflector
from gpushare.runtime import logs
from gpushare.runtime.clock import Clock
from gpushare.wire import unhealthy
from gpushare.wire.unhealthy import Marked

_LOG: Final = logging.getLogger(__name__)
PATH: Final = f"/api/v1/namespaces/{names.UNHEALTHY_NAMESPACE}/configmaps"


@dataclass(frozen=True, slots=True, kw_only=True)
class UnhealthySink:
    """Sink of the watch of ConfigMaps; all but the few that are meant leave no trace."""

    state: ClusterState
    _known: set[NodeName] = field(default_factory=set)
    """Nodes that a ConfigMap was seen for."""
    _told: dict[NodeName, str] = field(default_factory=dict)
    """The last complaint about each."""

    def read(self, obj: JsonObject) -> Marked | None:
        """See Sink."""
        try:
            return unhealthy.parse(obj)
        except WireError as error:
            logs.event(_LOG, "object left out", level=logging.ERROR, kind="ConfigMap", error=str(error))
            return None

    def replace(self, found: list[Marked]) -> None:
        """See Sink."""
        fresh = {marked.node: marked for marked in found}
        for node in self._known - fresh.keys():
            self._forget(node)
        for marked in fresh.values():
            self._take(marked)

    def upsert(self, found: Marked) -> None:
        """See Sink."""
        self._take(found)

    def remove(self, found: Marked) -> None:
        """See Sink."""
        self._forget(found.node)

    def _take(self, marked: Marked) -> None:
        self._known.add(marked.node)
        if marked.problem and self._told.get(marked.node) != marked.problem:
            name = f"{names.UNHEALTHY_NAMESPACE}/{names.PREFIX_UNHEALTHY}{marked.node}"
            logs.event(_LOG, "unhealthy GPUs unreadable", level=logging.ERROR, config_map=name, error=marked.problem)
        self._told[marked.node] = marked.problem
        if marked.gpus != self.state.cache.unhealthy_on(marked.node):
            logs.event(_LOG, "GPUs called unhealthy", node=marked.node, gpus=sorted(marked.gpus))
        self.state.cache.set_unhealthy(marked.node, marked.gpus)

    def _forget(self, node: NodeName) -> None:
        self._known.discard(node)
        self._told.pop(node, None)
        self.state.cache.set_unhealthy(node, frozenset())
        logs.event(_LOG, "GPUs called unhealthy", node=node, gpus=[])


class UnhealthyWatch:
    """Keeps what these ConfigMaps say up to date."""

    def __init__(self, *, api: KubeApi, state: ClusterState, clock: Clock) -> None:
        self._api = api
        # The same for every list, as it knows which nodes to clear of their marks.
        self._sink = UnhealthySink(state=state)
        self._clock = clock
        self.watch = OptionalWatch(
            api=api,
            clock=clock,
            paths=(PATH,),
            reflector=self._reflector,
            effect=f"ConfigMaps {names.PREFIX_UNHEALTHY}NODE keep no GPU from being used",
            right=f"list and watch of configmaps in namespace {names.UNHEALTHY_NAMESPACE}",
        )

    def _reflector(self, path: str, synced: threading.Event) -> Reflector[Marked]:
        return Reflector(api=self._api, path=path, sink=self._sink, clock=self._clock, optional=True, synced=synced)
