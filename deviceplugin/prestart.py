"""Before a container starts: gather what the kubelet and the API server know, decide, tell the pod's author.

Everything has a deadline, and all of them together stay well below the 30 s after which the kubelet gives up.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, assert_never

from deviceplugin import identify, pods
from deviceplugin.decide import decide, unknown_pod
from deviceplugin.decision import Accept, Decision, Reason, Refuse, Start
from deviceplugin.handover import recipients
from deviceplugin.handover.devices import DeviceHandOver
from deviceplugin.handover.grant_edits import HandOverError
from deviceplugin.identify import Lister, ListerError, Owner, Recorded, Unknown
from deviceplugin.inventory_feed import InventoryFeed
from deviceplugin.late import LateStarts
from deviceplugin.refusals import Refusals
from deviceplugin.resources import Resource
from gpushare.errors import WireError
from gpushare.identity import ContainerName, NodeName, PodRef
from gpushare.kube import api as kube
from gpushare.kube.api import KubeApi
from gpushare.model.gpu import NodeInventory
from gpushare.runtime import logs
from gpushare.units import ResourceConfig
from gpushare.wire import pods as wire
from gpushare.wire.pods import Pod

_LOG: Final = logging.getLogger(__name__)
_LIST_S: Final = 3.0
_CACHE_S: Final = 1.0
_GET_S: Final = 2.0
_CHANGE_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class _Asked:
    """Devices of a container that is about to start."""

    resource: Resource
    ids: frozenset[str]


@dataclass(kw_only=True)
class StartCheck:
    """Decides about starts. Safe for use by many threads; keeps no state of its own."""

    node: NodeName
    resource_config: ResourceConfig
    feed: InventoryFeed
    cache: pods.PodCache
    api: KubeApi
    lister: Lister
    checkpoint: Path
    """The kubelet's record of devices and pods; it lies beside the sockets."""
    refusals: Refusals
    late: LateStarts
    limit: Callable[[Pod, Accept, NodeInventory], Decision] = lambda _pod, accepted, _inventory: accepted
    """Puts the limits of what was accepted in place."""
    hand_over: DeviceHandOver

    def check(self, resource: Resource, device_ids: Sequence[str]) -> Decision:
        """May the container that holds these devices start? Never raises for what others do wrong."""
        asked = _Asked(resource, frozenset(device_ids))
        owner = self._owner(asked)
        if isinstance(owner, Refuse):
            self.hand_over.withdraw(asked.ids)
            return _logged(owner, "unknown", asked, ())
        pod = self._pod(owner, asked)
        if isinstance(pod, Refuse):
            self.hand_over.withdraw(asked.ids, owner.uid)
            return _logged(pod, _describe(owner), asked, owner.containers)
        decision = self._limited(pod, self._decide(pod, owner.containers, asked))
        if isinstance(decision, Accept):
            decision = self._handed_over(decision, pod, owner, asked)
        if isinstance(decision, Refuse):
            self.hand_over.withdraw(asked.ids, wire.ref(pod).uid)
            self._refuse(wire.ref(pod), owner.containers, decision)
        return _logged(decision, str(wire.ref(pod)), asked, owner.containers)

    def _refuse(self, pod: PodRef, containers: tuple[ContainerName, ...], refusal: Refuse) -> None:
        """Do what a refusal leads to. One that the next try will not meet is nothing to tell anybody."""
        if refusal.reason is Reason.LATE:
            self.late.refuse(pod.uid, containers)
        else:
            self.refusals.tell(pod, containers, refusal)

    def _handed_over(self, accept: Accept, pod: Pod, owner: Owner, asked: _Asked) -> Decision:
        try:
            found = recipients.of(pod, owner, accept, self.hand_over.choice())
            self.hand_over.prepare(asked.ids, found)
        except HandOverError as error:
            return Refuse(Reason.NOT_HANDED_OVER, f"pod {wire.ref(pod)}: {error}")
        return accept

    def _owner(self, asked: _Asked) -> Owner | Refuse:
        try:
            listed = self.lister.list(asked.resource, _LIST_S)
        except ListerError as error:
            return Refuse(Reason.KUBELET_SILENT, str(error))
        owner = identify.owner(asked.ids, listed, self._recorded(asked.resource))
        if isinstance(owner, Unknown):
            return Refuse(Reason.UNIDENTIFIED, f"{owner.message}; the kubelet will try again")
        return owner

    def _recorded(self, resource: Resource) -> Sequence[Recorded]:
        try:
            return identify.read_checkpoint(self.checkpoint.read_bytes(), resource)
        except (OSError, WireError) as error:
            logs.event(_LOG, "checkpoint unreadable", level=logging.WARNING, error=str(error))
            return ()

    def _pod(self, owner: Owner, asked: _Asked) -> Pod | Refuse:
        # A name alone does not tell the pod of a StatefulSet from its predecessor, which the watch may still show, so
        # only a UID is looked up in the cache. And without a name there is nothing to ask the API server for.
        if owner.uid is not None:
            wait_s = 0.0 if owner.name else _CACHE_S
            if (known := self.cache.wait_for(partial(self.cache.by_uid, owner.uid), wait_s)) is not None:
                return known
        unknown = unknown_pod(_describe(owner), self.node, asked.resource)
        if not owner.name:
            return unknown
        try:
            path = kube.pod_path(owner.namespace, owner.name)
            fetched = self.api.read_object(path, keep=pods.reduce, timeout_s=_GET_S)
        except kube.NotFoundError:
            return unknown
        except (kube.KubeError, WireError) as error:
            return Refuse(Reason.API_SILENT, f"{_describe(owner)} cannot be read ({error}); the kubelet will try again")
        return fetched if owner.uid is None or wire.ref(fetched).uid == owner.uid else unknown

    def _decide(self, pod: Pod, containers: tuple[ContainerName, ...], asked: _Asked) -> Decision:
        # Found out once: what becomes known while this call waits says nothing about the copy it is made for.
        up_to_date = self.late.up_to_date(wire.ref(pod).uid, containers)
        decisions: list[Decision] = []

        def settled() -> bool | None:
            decisions.append(self._once(pod, containers, asked, up_to_date=up_to_date))
            return None if _is_full(decisions[-1]) else True

        # Perhaps the watch has not told yet that an earlier pod has ended.
        self.cache.wait_for(settled, _CHANGE_S)
        return decisions[-1]

    def _limited(self, pod: Pod, decision: Decision) -> Decision:
        latest = self.feed.latest
        if latest is None or isinstance(decision, Refuse):
            return decision
        return self.limit(pod, decision, latest.inventory)

    def _once(self, pod: Pod, containers: tuple[ContainerName, ...], asked: _Asked, *, up_to_date: bool) -> Decision:
        latest = self.feed.latest
        if latest is None:
            return Refuse(
                Reason.GPU_GONE, f"the GPUs of node {self.node} are not known yet; the kubelet will try again"
            )
        return decide(
            Start(
                pod=pod,
                containers=containers,
                resource=asked.resource,
                ids=asked.ids,
                node=self.node,
                inventory=latest.inventory,
                resource_config=self.resource_config,
                others=self.cache.all(),
                up_to_date=up_to_date,
            )
        )


def _is_full(decision: Decision) -> bool:
    return isinstance(decision, Refuse) and decision.reason is Reason.OVER_COMMITTED


def _describe(owner: Owner) -> str:
    name = f"pod {owner.namespace}/{owner.name}" if owner.name else "pod"
    return f"{name} with uid {owner.uid}" if owner.uid else name


def _logged(decision: Decision, pod: str, asked: _Asked, containers: tuple[ContainerName, ...]) -> Decision:
    about: dict[str, Any] = {"pod": pod, "containers": containers, "resource": asked.resource.name}
    match decision:
        case Accept(grants):
            gpus = sorted({gpu for grant in grants for gpu in grant.gpus})
            logs.event(_LOG, "container accepted", **about, gpus=gpus)
        case Refuse(reason, message):
            logs.event(_LOG, "container refused", level=logging.WARNING, **about, reason=reason.value, message=message)
        case _:
            assert_never(decision)
    return decision
