"""What the plugin reads and writes at the API server: the Node, with the inventory for all others, and Events."""

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from deviceplugin.inventory import InventoryFeed, PostedInventory
from gpushare import names, units
from gpushare.errors import WireError
from gpushare.identity import GpuUuid, NodeName, PodRef
from gpushare.kube import api as kube
from gpushare.kube.api import KubeApi, PatchKind
from gpushare.model.gpu import HandOver, Mode, NodeInventory
from gpushare.runtime import logs
from gpushare.runtime.clock import Backoff, Clock
from gpushare.wire import fields, inventory as wire

_LOG: Final = logging.getLogger(__name__)
_TIMEOUT_S: Final = 3.0
_SOON_S: Final = 0.1
_EVENT_S: Final = 2.0
_REPEAT_S: Final = 1800.0  # the API server forgets an Event after an hour, so it is told again before
_REMEMBERED: Final = 1024
_Key = tuple[str, str, tuple[str, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFacts:
    runtime: str = ""  # such as containerd://2.1.9; empty while the Node could not be read
    kubelet: str = ""  # such as v1.36.2
    hand_over_label: str = ""  # this and those below are values of labels
    default_label: str = ""
    limits_label: str = ""
    oversubscription_label: str = ""
    published: HandOver | None = None  # what an inventory says that is on the Node already
    modes: Mapping[GpuUuid, Mode] = field(default_factory=dict)  # the same, of its GPUs
    mode: str = ""  # this and those below are values of annotations
    cordon: str = ""
    uid: str = ""


def read_node(node: Mapping[str, Any]) -> NodeFacts:
    metadata, status = fields.mapping(node, "metadata", "node"), fields.mapping(node, "status", "node")
    info, labels = fields.mapping(status, "nodeInfo", "status"), fields.mapping(metadata, "labels", "metadata")
    annotations = fields.mapping(metadata, "annotations", "metadata")
    try:
        posted = wire.of_node(node)
    except WireError:
        posted = None
    return NodeFacts(
        runtime=fields.text(info, "containerRuntimeVersion", "status.nodeInfo"),
        kubelet=fields.text(info, "kubeletVersion", "status.nodeInfo"),
        hand_over_label=fields.text(labels, names.LABEL_HAND_OVER, "metadata.labels"),
        default_label=fields.text(labels, names.LABEL_NVIDIA_DEFAULT, "metadata.labels"),
        limits_label=fields.text(labels, names.LABEL_LIMITS, "metadata.labels"),
        oversubscription_label=fields.text(labels, names.LABEL_OVERSUBSCRIPTION, "metadata.labels"),
        published=posted.hand_over if posted else None,
        modes={gpu.uuid: mode for mode, gpus in posted.of_modes.items() for gpu in gpus} if posted else {},
        mode=fields.text(annotations, names.ANNOTATION_MODE, "metadata.annotations"),
        cordon=fields.text(annotations, names.ANNOTATION_CORDON, "metadata.annotations"),
        uid=fields.text(metadata, "uid", "metadata"),
    )


@dataclass(kw_only=True)
class Publisher:
    api: KubeApi
    feed: InventoryFeed
    clock: Clock
    node: NodeName
    recheck_s: float  # how often to look whether somebody changed what was written
    final: Callable[[NodeInventory], bool] = lambda _inventory: True  # may others be told? If not, another comes soon
    published: threading.Event = field(default_factory=threading.Event)  # set once the first inventory is on the Node
    done: int = field(init=False, default=0)  # the version of the inventory that is on the Node
    _again: bool = field(init=False, default=False)

    def run(self, stop: threading.Event) -> None:
        """Publish every change until `stop` is set; an API server that does not answer is tried again."""
        backoff = Backoff()
        checked = self.clock.monotonic()
        while not stop.is_set():
            snapshot = self.feed.newer(self.done, over=lambda: stop.is_set() or self._again, seconds=1.0)
            if self._again or self.clock.monotonic() - checked >= self.recheck_s:
                snapshot = self.feed.latest
            if stop.is_set() or snapshot is None:
                continue
            if not self.final(snapshot.inventory):
                self.clock.wait(stop, _SOON_S)
                continue
            self._again, checked = False, self.clock.monotonic()
            try:
                self._publish(snapshot, known=snapshot.version == self.done)
            except kube.KubeError as error:
                delay = backoff.next_s()
                logs.event(_LOG, "not published", level=logging.WARNING, error=_explain(error), retry_s=delay)
                self.clock.wait(stop, delay)
                self.done = 0
            else:
                self.done = snapshot.version
                self.published.set()
                backoff.reset()

    def recheck(self) -> None:
        """Look at the Node soon: a kubelet that starts may have recreated it."""
        self._again = True
        self.feed.wake()

    def _publish(self, snapshot: PostedInventory, *, known: bool) -> None:
        """Args: known: whether it was published before, so that only what differs is written."""
        annotation, amounts = wire.encode(snapshot.inventory), _amounts(snapshot.inventory)
        path = kube.node_path(self.node)
        if known:
            node = self.api.get(path, timeout_s=_TIMEOUT_S)
            present = (node["metadata"].get("annotations") or {}).get(names.ANNOTATION_INVENTORY)
            capacity = (node.get("status") or {}).get("capacity") or {}
            if present == annotation and amounts.items() <= capacity.items():
                return
            logs.event(_LOG, "inventory was changed by others", level=logging.WARNING, node=self.node)
        metadata = {"annotations": {names.ANNOTATION_INVENTORY: annotation}}
        self.api.patch(path, {"metadata": metadata}, kind=PatchKind.MERGE, timeout_s=_TIMEOUT_S)
        status = {"capacity": amounts, "allocatable": amounts}
        path = kube.node_path(self.node, "status")
        self.api.patch(path, {"status": status}, kind=PatchKind.STRATEGIC, timeout_s=_TIMEOUT_S)
        logs.event(_LOG, "published", node=self.node, gpus=len(snapshot.inventory.gpus), version=snapshot.version)


def _amounts(inventory: NodeInventory) -> Mapping[str, str]:
    """Without a device behind them. GPUs that do not work count: a kubelet makes allocatable equal to capacity."""
    count = len(inventory.gpus)  # Aliyun's tools divide the node's memory by it
    return {names.GPU_COUNT: units.spelled(count), names.GPU_CORE: units.spelled(100 * count)}


def _explain(error: kube.KubeError) -> str:
    if isinstance(error, kube.ForbiddenError):
        return f"{error}; the plugin's ClusterRole needs get and patch on nodes and patch on nodes/status"
    return f"{error}; is --node-name the name of this Node?" if isinstance(error, kube.NotFoundError) else str(error)


@dataclass(kw_only=True)
class Refusals:
    """Tells a pod's author why a container may not start, or what it did wrong. Safe for use by many threads."""

    api: KubeApi
    clock: Clock
    _lock: threading.Lock = field(init=False, default_factory=threading.Lock)
    _told: OrderedDict[_Key, float] = field(init=False, default_factory=OrderedDict)  # when; oldest first

    def post(self, pod: PodRef, about: tuple[str, ...], reason: str, message: str) -> None:
        """Post an Event unless one about the same was posted lately. A failure is logged and changes nothing."""
        key = (pod.uid, reason, about)
        if not self._claim(key):
            return
        warning, now = kube.EventType.WARNING, self.clock.now()
        body = kube.event(pod, warning, reason, message, component=names.PLUGIN, now=now)
        try:
            kube.post_event(self.api, body, timeout_s=_EVENT_S)
        except kube.KubeError as error:
            logs.event(_LOG, "event not posted", level=logging.WARNING, pod=str(pod), error=str(error))
            with self._lock:
                self._told.pop(key, None)

    def _claim(self, key: _Key) -> bool:
        now = self.clock.monotonic()
        with self._lock:
            if now - self._told.get(key, -_REPEAT_S) < _REPEAT_S:
                return False
            self._told[key] = now
            self._told.move_to_end(key)
            if len(self._told) > _REMEMBERED:
                self._told.popitem(last=False)
            return True
