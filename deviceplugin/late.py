"""Pods that were given their GPUs after they had come to the node.

A kubelet makes a container's variables from the copy of the pod with which it began to look after it; images may have
been pulled since, so that copy may be much older than the one that the watch shows. But after a refusal the kubelet
begins again with its latest copy. So a container of such a pod is refused once more when the allocation has been seen
for some seconds: every later try comes from a copy that has it.
"""

import threading
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Final

from deviceplugin.pods import PodCache
from gpushare.identity import ContainerName, PodUid
from gpushare.runtime.clock import Clock

LAG_S: Final = 3.0
"""How far the kubelet's watch of the API server may be behind this plugin's."""
_REMEMBERED: Final = 1024
_Key = tuple[PodUid, tuple[ContainerName, ...]]


@dataclass(kw_only=True)
class LateStarts:
    """Which containers the kubelet has begun again since. Safe for use by many threads; forgotten with the process."""

    cache: PodCache
    clock: Clock
    _lock: threading.Lock = field(init=False, default_factory=threading.Lock)
    _refused: OrderedDict[_Key, float] = field(init=False, default_factory=OrderedDict)
    """When each was last refused for this reason, oldest first."""

    def up_to_date(self, uid: PodUid, containers: tuple[ContainerName, ...]) -> bool:
        """Whether the kubelet starts these from a copy of the pod that has its allocation as it is now."""
        since = self.cache.shown_since(uid)
        with self._lock:
            refused = self._refused.get((uid, containers))
        return since is not None and refused is not None and refused - since >= LAG_S

    def refuse(self, uid: PodUid, containers: tuple[ContainerName, ...]) -> None:
        """Note that these are being refused; waits some seconds if that makes the next try the last."""
        since = self.cache.shown_since(uid)
        if since is not None and (left := since + LAG_S - self.clock.monotonic()) > 0:
            self.clock.wait(threading.Event(), left)
        with self._lock:
            self._refused[uid, containers] = self.clock.monotonic()
            self._refused.move_to_end((uid, containers))
            if len(self._refused) > _REMEMBERED:
                self._refused.popitem(last=False)
