"""Before a container starts: gather what the kubelet and the API server know, decide, tell the pod's author.

Everything has a deadline, and all of them together stay well below the 30 s after which the kubelet gives up.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, assert_never

from deviceplugin import identify, pods
from deviceplugin.board import Board
from deviceplugin.decide import Accept, Decision, Reason, Refuse, Start, decide, unknown_pod
from deviceplugin.identify import Lister, ListerError, Owner, Recorded, Unknown
from deviceplugin.refusals import Refusals
from gpushare.errors import WireError
from gpushare.identity import ContainerName, NodeName
from gpushare.kube import api as kube
from gpushare.kube.api import KubeApi
from gpushare.runtime import logs
from gpushare.wire import pods as wire
from gpushare.wire.pods import Pod

_LOG: Final = logging.getLogger(__name__)
_LIST_S: Final = 3.0
_CACHE_S: Final = 1.0
_GET_S: Final = 2.0
_CHANGE_S: Final = 2.0
CHECKPOINT: Final = "kubelet_internal_checkpoint"


@dataclass(kw_only=True)
class Gate:
    """Decides about starts. Safe for use by many threads; keeps no state of its own."""

    node: NodeName
    board: Board
    cache: pods.PodCache
    api: KubeApi
    lister: Lister
    checkpoint: Path
    """The kubelet's record of devices and pods; it lies beside the sockets."""
    refusals: Refusals

    def check(self, device_ids: Sequence[str]) -> Decision:
        """May the container that holds these devices start? Never raises for what others do wrong."""
        ids = frozenset(device_ids)
        found = self._owner(ids)
        if isinstance(found, Refuse):
            return _logged(found, "unknown", ())
        pod = self._pod(found)
        if isinstance(pod, Refuse):
            return _logged(pod, _describe(found), found.containers)
        decision = self._decide(pod, found, len(ids))
        if isinstance(decision, Refuse):
            self.refusals.tell(wire.ref(pod), found.containers, decision)
        return _logged(decision, str(wire.ref(pod)), found.containers)

    def _owner(self, ids: frozenset[str]) -> Owner | Refuse:
        try:
            listed = self.lister.list(_LIST_S)
        except ListerError as error:
            return Refuse(Reason.KUBELET_SILENT, str(error))
        found = identify.owner(ids, listed, self._recorded())
        if isinstance(found, Unknown):
            return Refuse(Reason.UNIDENTIFIED, f"{found.message}; the kubelet will try again")
        return found

    def _recorded(self) -> Sequence[Recorded]:
        try:
            return identify.read_checkpoint(self.checkpoint.read_bytes())
        except (OSError, WireError) as error:
            logs.event(_LOG, "checkpoint unreadable", level=logging.WARNING, error=str(error))
            return ()

    def _pod(self, owner: Owner) -> Pod | Refuse:
        # A name alone does not tell the pod of a StatefulSet from its predecessor, which the watch may still show, so
        # only a UID is looked up in the mirror. And without a name there is nothing to ask the API server for.
        known: Pod | None = None
        if (uid := owner.uid) is not None:
            known = (
                self.cache.by_uid(uid) if owner.name else self.cache.wait_for(partial(self.cache.by_uid, uid), _CACHE_S)
            )
        if known is not None:
            return known
        unknown = unknown_pod(_describe(owner), self.node)
        if not owner.name:
            return unknown
        try:
            fetched = pods.reduce(self.api.get(kube.pod_path(owner.namespace, owner.name), timeout_s=_GET_S))
        except kube.NotFoundError:
            return unknown
        except kube.KubeError as error:
            return Refuse(Reason.API_SILENT, f"{_describe(owner)} cannot be read ({error}); the kubelet will try again")
        return fetched if owner.uid is None or wire.ref(fetched).uid == owner.uid else unknown

    def _decide(self, pod: Pod, owner: Owner, devices: int) -> Decision:
        decision = self._once(pod, owner.containers, devices)
        if isinstance(decision, Refuse) and decision.reason is Reason.OVER_COMMITTED:
            # Perhaps the watch has not told yet that an earlier pod has ended.
            later = self.cache.wait_for(lambda: _accepted(self._once(pod, owner.containers, devices)), _CHANGE_S)
            return later or decision
        return decision

    def _once(self, pod: Pod, containers: tuple[ContainerName, ...], devices: int) -> Decision:
        latest = self.board.latest
        if latest is None:
            return Refuse(
                Reason.GPU_GONE, f"the GPUs of node {self.node} are not known yet; the kubelet will try again"
            )
        return decide(
            Start(
                pod=pod,
                containers=containers,
                devices=devices,
                node=self.node,
                inventory=latest.inventory,
                others=self.cache.all(),
            )
        )


def _accepted(decision: Decision) -> Accept | None:
    return decision if isinstance(decision, Accept) else None


def _describe(owner: Owner) -> str:
    name = f"pod {owner.namespace}/{owner.name}" if owner.name else "pod"
    return f"{name} with uid {owner.uid}" if owner.uid else name


def _logged(decision: Decision, pod: str, containers: tuple[ContainerName, ...]) -> Decision:
    match decision:
        case Accept(grants):
            gpus = sorted({gpu for grant in grants for gpu in grant.gpus})
            logs.event(_LOG, "container accepted", pod=pod, containers=containers, gpus=gpus)
        case Refuse(reason, message):
            logs.event(
                _LOG,
                "container refused",
                level=logging.WARNING,
                pod=pod,
                containers=containers,
                reason=reason.value,
                message=message,
            )
        case _:
            assert_never(decision)
    return decision
