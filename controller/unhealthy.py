"""Aliyun's way to say which GPUs must not be used: a ConfigMap for each node, with the numbers of its GPUs.

Other programs write them. Without them, or without the right to read them, everything keeps working.
"""

import logging
from dataclasses import dataclass, field
from typing import Final

from controller.optional import OptionalWatch
from controller.state import ClusterState
from gpushare import names
from gpushare.errors import WireError
from gpushare.identity import NodeName
from gpushare.kube.api import JsonObject, KubeApi
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
    _told: dict[NodeName, str] = field(default_factory=dict)
    """The last complaint about each node that a ConfigMap was seen for; empty if there was none."""

    def read(self, obj: JsonObject) -> Marked | None:
        """Which GPUs a ConfigMap means; None if it is about something else."""
        try:
            return unhealthy.parse(obj)
        except WireError as error:
            logs.event(_LOG, "object left out", level=logging.ERROR, kind="ConfigMap", error=str(error))
            return None

    def replace(self, marks: list[Marked]) -> None:
        """Mark the GPUs of these nodes and of no others."""
        fresh = {marked.node: marked for marked in marks}
        for node in self._told.keys() - fresh.keys():
            self._forget(node)
        for marked in fresh.values():
            self.upsert(marked)

    def remove(self, marked: Marked) -> None:
        """Take the marks from a node's GPUs."""
        self._forget(marked.node)

    def upsert(self, marked: Marked) -> None:
        """Mark these GPUs of a node and no others."""
        if marked.problem and self._told.get(marked.node) != marked.problem:
            name = f"{names.UNHEALTHY_NAMESPACE}/{names.PREFIX_UNHEALTHY}{marked.node}"
            logs.event(_LOG, "unhealthy GPUs unreadable", level=logging.ERROR, config_map=name, error=marked.problem)
        self._told[marked.node] = marked.problem
        if marked.gpus != self.state.index.unhealthy_on(marked.node):
            logs.event(_LOG, "GPUs called unhealthy", node=marked.node, gpus=sorted(marked.gpus))
        self.state.index.set_unhealthy(marked.node, marked.gpus)

    def _forget(self, node: NodeName) -> None:
        self._told.pop(node, None)
        self.state.index.set_unhealthy(node, frozenset())
        logs.event(_LOG, "GPUs called unhealthy", node=node, gpus=[])


def watch(*, api: KubeApi, state: ClusterState, clock: Clock) -> OptionalWatch:
    """Keeps what these ConfigMaps say up to date."""
    sink = UnhealthySink(state=state)  # the same for every list, as it knows which nodes to clear of their marks
    return OptionalWatch(
        api=api,
        clock=clock,
        paths=(PATH,),
        sink=lambda _path: sink,
        effect=f"ConfigMaps {names.PREFIX_UNHEALTHY}NODE keep no GPU from being used",
        right=f"list and watch of configmaps in namespace {names.UNHEALTHY_NAMESPACE}",
    )
