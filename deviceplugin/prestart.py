"""Before a container starts: gather what the kubelet and the API server know, decide, limit, hand over, tell.

Everything has a deadline, and all of them together stay well below the 30 s after which the kubelet gives up.
"""

import logging
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from deviceplugin import identify, pods
from deviceplugin.cdi import ContainerEdits
from deviceplugin.decide import Accept, Decision, Reason, Refuse, StartRequest, decide, unknown_pod
from deviceplugin.handover import devices
from deviceplugin.handover.devices import DeviceHandOver, HandOverError
from deviceplugin.identify import Lister, ListerError, Owner, Recorded
from deviceplugin.inventory import InventoryFeed
from deviceplugin.limits.node import LimitedStart, LimitError
from deviceplugin.node import Refusals
from deviceplugin.pods import PodCache
from deviceplugin.resources import Resource
from gpushare.errors import WireError
from gpushare.identity import ContainerName, NodeName, PodUid
from gpushare.kube import api as kube
from gpushare.kube.api import KubeApi
from gpushare.model.gpu import NodeInventory
from gpushare.model.ledger import Grant
from gpushare.runtime import logs
from gpushare.runtime.clock import Clock
from gpushare.units import ResourceConfig
from gpushare.wire import pods as wire
from gpushare.wire.pods import Pod

_LOG: Final = logging.getLogger(__name__)
_LIST_S: Final = 3.0
_CACHE_S: Final = 1.0
_GET_S: Final = 2.0
_CHANGE_S: Final = 2.0
REASON_REFUSED: Final = "GpuRefused"
LAG_S: Final = 3.0  # how far the kubelet's watch of the API server may be behind this plugin's
_REMEMBERED: Final = 1024
_OUTCOMES: Final = (("accepted", ""), *(("refused", reason.value) for reason in Reason))
_Key = tuple[PodUid, tuple[ContainerName, ...]]


@dataclass(kw_only=True)
class LateStarts:
    """Pods that were given their GPUs after they had come to the node. Safe for use by many threads.

    A kubelet makes a container's variables from a copy of the pod that may be much older than the watch's, and takes
    its latest one after a refusal. So a container of such a pod is refused once more when the allocation has been seen
    for some seconds: every later try comes from a copy that has it.
    """

    cache: PodCache
    clock: Clock
    _lock: threading.Lock = field(init=False, default_factory=threading.Lock)
    _refused: OrderedDict[_Key, float] = field(init=False, default_factory=OrderedDict)  # when; oldest first

    def up_to_date(self, uid: PodUid, containers: tuple[ContainerName, ...]) -> bool:
        """Whether the kubelet's copy of the pod has its allocation as it is now."""
        since = self.cache.allocation_seen_since(uid)
        with self._lock:
            refused = self._refused.get((uid, containers))
        return since is not None and refused is not None and refused - since >= LAG_S

    def refuse(self, uid: PodUid, containers: tuple[ContainerName, ...]) -> None:
        """Note that these are being refused; waits some seconds if that makes the next try the last."""
        since = self.cache.allocation_seen_since(uid)
        if since is not None and (left := since + LAG_S - self.clock.monotonic()) > 0:
            self.clock.wait(threading.Event(), left)
        with self._lock:
            self._refused[uid, containers] = self.clock.monotonic()
            self._refused.move_to_end((uid, containers))
            if len(self._refused) > _REMEMBERED:
                self._refused.popitem(last=False)


@dataclass(kw_only=True)
class StartCheck:
    """Safe for use by many threads."""

    node: NodeName
    resource_config: ResourceConfig
    feed: InventoryFeed
    cache: PodCache
    api: KubeApi
    lister: Lister
    checkpoint: Path  # the kubelet's record of devices and pods; it lies beside the sockets
    refusals: Refusals
    late: LateStarts
    limit: Callable[[LimitedStart], ContainerEdits] = lambda _start: ContainerEdits()  # may raise LimitError
    hand_over: DeviceHandOver
    _lock: threading.Lock = field(init=False, default_factory=threading.Lock)
    _starts: Counter[tuple[str, str]] = field(init=False, default_factory=lambda: Counter(dict.fromkeys(_OUTCOMES, 0)))

    def check(self, resource: Resource, device_ids: Sequence[str]) -> Decision:
        """May the container that holds these devices start? Never raises for what others do wrong."""
        ids = frozenset(device_ids)
        decision, about = self._decision(resource, ids)
        about = {**about, "resource": resource.name}
        if isinstance(decision, Refuse):
            outcome = ("refused", decision.reason.value)
            about |= {"reason": decision.reason.value, "message": decision.message}
            logs.event(_LOG, "container refused", level=logging.WARNING, **about)
        else:
            outcome = ("accepted", "")
            gpus = sorted({gpu for grant in decision.grants for gpu in grant.gpus})
            logs.event(_LOG, "container accepted", **about, gpus=gpus)
        with self._lock:
            self._starts[outcome] += 1
        return decision

    def starts(self) -> Mapping[tuple[str, str], int]:
        """By outcome and reason; all of them, as nothing increases for Prometheus that was not there before."""
        with self._lock:
            return dict(self._starts)

    def _decision(self, resource: Resource, ids: frozenset[str]) -> tuple[Decision, Mapping[str, Any]]:
        """And whom it is about, for the log. Whatever is refused has no devices afterwards."""
        owner = self._owner(resource, ids)
        if isinstance(owner, Refuse):
            self.hand_over.withdraw(ids)
            return owner, {"pod": "unknown", "containers": ()}
        pod = self._pod(owner, resource)
        if isinstance(pod, Refuse):
            self.hand_over.withdraw(ids, owner.uid)
            return pod, {"pod": _describe(owner), "containers": owner.containers}
        ref = wire.ref(pod)
        decision = self._decide(pod, owner.containers, resource, ids)
        latest = self.feed.latest
        if isinstance(decision, Accept) and latest is not None:
            decision = limited(self.limit, pod, decision, latest.inventory)
        if isinstance(decision, Accept):
            try:
                self.hand_over.prepare(ids, devices.recipients(pod, owner, decision, self.hand_over.choice()))
            except HandOverError as error:
                decision = Refuse(Reason.NOT_HANDED_OVER, f"pod {ref}: {error}")
        if isinstance(decision, Refuse):
            self.hand_over.withdraw(ids, ref.uid)
            if decision.reason is Reason.LATE:  # the next try will not meet it: nothing to tell anybody
                self.late.refuse(ref.uid, owner.containers)
            else:
                about = (*owner.containers, decision.message)
                self.refusals.post(ref, about, REASON_REFUSED, decision.message)
        return decision, {"pod": str(ref), "containers": owner.containers}

    def _owner(self, resource: Resource, ids: frozenset[str]) -> Owner | Refuse:
        try:
            listed = self.lister(resource, _LIST_S)
        except ListerError as error:
            return Refuse(Reason.KUBELET_SILENT, str(error))
        recorded: Sequence[Recorded] = ()
        try:
            recorded = identify.read_checkpoint(self.checkpoint.read_bytes(), resource)
        except (OSError, WireError) as error:
            logs.event(_LOG, "checkpoint unreadable", level=logging.WARNING, error=str(error))
        owner = identify.owner(ids, listed, recorded)
        if isinstance(owner, str):
            return Refuse(Reason.UNIDENTIFIED, f"{owner}; the kubelet will try again")
        return owner

    def _pod(self, owner: Owner, resource: Resource) -> Pod | Refuse:
        # A name alone does not tell the pod of a StatefulSet from its predecessor, which the watch may still show, so
        # only a UID is looked up in the cache. And without a name there is nothing to ask the API server for.
        if owner.uid is not None:
            wait_s = 0.0 if owner.name else _CACHE_S
            if (known := self.cache.wait_for(partial(self.cache.by_uid, owner.uid), wait_s)) is not None:
                return known
        unknown = unknown_pod(_describe(owner), self.node, resource)
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

    def _decide(
        self, pod: Pod, containers: tuple[ContainerName, ...], resource: Resource, ids: frozenset[str]
    ) -> Decision:
        # Found out once: what becomes known while this call waits says nothing about the copy it is made for.
        up_to_date = self.late.up_to_date(wire.ref(pod).uid, containers)
        decisions: list[Decision] = []

        def settled() -> bool | None:
            latest = self.feed.latest
            if latest is None:
                text = f"the GPUs of node {self.node} are not known yet; the kubelet will try again"
                decisions.append(Refuse(Reason.GPU_GONE, text))
                return True
            start = StartRequest(
                pod=pod,
                containers=containers,
                resource=resource,
                ids=ids,
                node=self.node,
                inventory=latest.inventory,
                resource_config=self.resource_config,
                others=self.cache.all(),
                up_to_date=up_to_date,
            )
            decisions.append(decision := decide(start))
            is_full = isinstance(decision, Refuse) and decision.reason is Reason.OVER_COMMITTED
            return None if is_full else True

        # Perhaps the watch has not told yet that an earlier pod has ended.
        self.cache.wait_for(settled, _CHANGE_S)
        return decisions[-1]


def limited(
    limit: Callable[[LimitedStart], ContainerEdits], pod: Pod, accepted: Accept, inventory: NodeInventory
) -> Decision:
    try:
        limits = {grant.container: limit(_limited_start(pod, grant, accepted, inventory)) for grant in accepted.grants}
    except LimitError as error:
        return Refuse(Reason.NOT_LIMITED, f"pod {wire.ref(pod)}: {error}")
    return replace(accepted, limits=limits)


def _limited_start(pod: Pod, grant: Grant, accepted: Accept, inventory: NodeInventory) -> LimitedStart:
    container = wire.container(pod, grant.container)
    return LimitedStart(
        pod=wire.ref(pod),
        grant=grant,
        of_pod=accepted.grants_of_pod,
        alternatives=tuple(each for each in accepted.grants if each != grant),
        inventory=inventory,
        variables=frozenset(entry["name"] for entry in container.get("env") or ()),
        open_env=bool(container.get("envFrom")),
        image=str(container.get("image") or ""),
        annotations=wire.annotations(pod),
    )


def _describe(owner: Owner) -> str:
    name = f"pod {owner.namespace}/{owner.name}" if owner.name else "pod"
    return f"{name} with uid {owner.uid}" if owner.uid else name
