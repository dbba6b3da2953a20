"""What pods asked for when the scheduler showed them, for binds that come before the watch has shown the pod.

It saves such a bind one request to the API server and decides nothing: without it the pod is read instead.
"""

import threading
from typing import Final

from gpushare.identity import PodUid
from gpushare.model.request import PodRequest, RequestShape

_MAX: Final = 1024


class Asked:
    """The latest requests. Safe for use by many threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._shapes: dict[PodUid, RequestShape] = {}

    def remember(self, request: PodRequest) -> None:
        """A pod that the scheduler is about to place."""
        with self._lock:
            self._shapes.pop(request.pod.uid, None)
            self._shapes[request.pod.uid] = request.shape
            if len(self._shapes) > _MAX:
                del self._shapes[next(iter(self._shapes))]

    def of(self, uid: PodUid) -> RequestShape | None:
        """What a pod asked for, if it is remembered."""
        with self._lock:
            return self._shapes.get(uid)
