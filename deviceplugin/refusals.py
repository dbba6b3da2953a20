"""Tells a pod's author, by Events, why a container may not start, or what it did wrong; each once in half an hour."""

import logging
import threading
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Final

from gpushare import names
from gpushare.identity import PodRef
from gpushare.kube import api as kube
from gpushare.kube.api import KubeApi
from gpushare.runtime import logs
from gpushare.runtime.clock import Clock

_LOG: Final = logging.getLogger(__name__)
_REPEAT_S: Final = 1800.0  # the API server forgets an Event after an hour, so it is told again before
_REMEMBERED: Final = 1024
_TIMEOUT_S: Final = 2.0
_Key = tuple[str, str, tuple[str, ...]]


@dataclass(kw_only=True)
class Refusals:
    """Safe for use by many threads."""

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
            kube.post_event(self.api, body, timeout_s=_TIMEOUT_S)
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
