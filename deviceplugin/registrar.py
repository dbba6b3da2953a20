"""Life with a kubelet: serve, register, and start over when either socket is replaced.

The kubelet forgets its plugins and removes their sockets when it starts. Its own socket then often has the same inode
number as before, so the time of its creation is compared as well.
"""

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import grpc

from deviceplugin import server
from deviceplugin.api import deviceplugin_pb2 as api
from deviceplugin.inventory_feed import InventoryFeed
from deviceplugin.resources import Resource
from gpushare.runtime import logs
from gpushare.runtime.clock import Backoff, Clock

_LOG: Final = logging.getLogger(__name__)
KUBELET_SOCKET: Final = "kubelet.sock"
METHOD: Final = "/v1beta1.Registration/Register"
_POLL_S: Final = 0.25
_REGISTER_S: Final = 5.0
_STEADY_S: Final = 10.0
_Mark = tuple[int, int]


@dataclass(kw_only=True)
class Registrar:
    """Keeps one resource of the plugin registered."""

    resource: Resource
    directory: Path
    feed: InventoryFeed
    start_check: server.StartCheck
    clock: Clock
    answer: server.Answering = server.no_devices
    ready: Callable[[], bool] = lambda: True
    """Whether the first registration may happen; see `ready_by`."""
    ready_by: float = 0.0
    """Moment of the clock's `monotonic` after which it is not waited for any more: after a reboot, pods are rejected
    until the plugin has registered."""
    on_registered: Callable[[], None] = lambda: None
    on_beat: Callable[[bool], None] = lambda _registered: None
    """Called four times a second, with whether the kubelet listens."""
    lonely_s: float = 5.0
    """Without a listening kubelet for so long, the registration is repeated; a kubelet connects within milliseconds."""
    _absent: bool = field(init=False, default=False)

    def run(self, stop: threading.Event) -> None:
        """Serve and register, again and again, until `stop` is set."""
        self._wait_first(stop)
        backoff = Backoff(first_s=0.25, cap_s=5.0)
        while not stop.is_set():
            kubelet = self._kubelet()
            if kubelet is None:
                self._say_absent()
                self._pause(stop, _POLL_S)
                continue
            self._absent = False
            started = self.clock.monotonic()
            self._serve(stop, kubelet)
            if self.clock.monotonic() - started > _STEADY_S:
                backoff.reset()
            if self._kubelet() == kubelet:
                # The kubelet is the same, so the fault may be lasting; a new one is served at once.
                self._pause(stop, backoff.next_s())

    def _wait_first(self, stop: threading.Event) -> None:
        while self.feed.latest is None and not stop.is_set():
            self.feed.newer(0, over=stop.is_set, seconds=_POLL_S)
            self.on_beat(False)
        while not self.ready() and not stop.is_set() and self.clock.monotonic() < self.ready_by:
            self.clock.wait(stop, 0.02)

    def _serve(self, stop: threading.Event, kubelet: _Mark) -> None:
        """Serve and register once; returns when that has to be done again."""
        own = server.PluginServer(
            server.Servicer(resource=self.resource, feed=self.feed, start_check=self.start_check, answer=self.answer),
            self.directory / self.resource.socket,
        )
        try:
            own.start()
        except server.ServeError as error:
            logs.event(_LOG, "not serving", level=logging.ERROR, error=str(error))
            return
        try:
            if self._register():
                reason = self._watch(stop, own, kubelet)
                logs.event(_LOG, "registration ends", resource=self.resource.name, reason=reason)
        finally:
            own.stop()
            self.on_beat(False)

    def _register(self) -> bool:
        request = api.RegisterRequest(
            version="v1beta1",
            endpoint=self.resource.socket,
            resource_name=self.resource.name,
            options=server.options(),
        )
        # A pool of its own, else a new channel shares the back-off of an earlier one to the same socket.
        options = (("grpc.use_local_subchannel_pool", 1),)
        try:
            with grpc.insecure_channel(f"unix:{self.directory / KUBELET_SOCKET}", options=options) as channel:
                register = channel.unary_unary(METHOD, api.RegisterRequest.SerializeToString, api.Empty.FromString)
                register(request, timeout=_REGISTER_S)
        except grpc.RpcError as error:
            reason = f"{error.code().name}: {error.details()}"
            logs.event(_LOG, "not registered", level=logging.WARNING, resource=self.resource.name, error=reason)
            return False
        logs.event(_LOG, "registered", resource=self.resource.name)
        self.on_registered()
        return True

    def _watch(self, stop: threading.Event, own: server.PluginServer, kubelet: _Mark) -> str:
        """Wait until the registration is worth nothing any more; returns why."""
        heard = self.clock.monotonic()
        while not stop.is_set():
            if self._kubelet() != kubelet:
                return "the kubelet was restarted"
            if not own.intact():
                return "the plugin's socket was removed"
            now = self.clock.monotonic()
            if own.streams:
                heard = now
            elif now - heard > self.lonely_s:
                return "no kubelet listens"
            self.on_beat(own.streams > 0)
            self.clock.wait(stop, _POLL_S)
        return "the plugin stops"

    def _pause(self, stop: threading.Event, seconds: float) -> None:
        """Wait, but not when a kubelet appears meanwhile."""
        before = self._kubelet()
        end = self.clock.monotonic() + seconds
        while not stop.is_set() and self._kubelet() == before and (left := end - self.clock.monotonic()) > 0:
            self.on_beat(False)
            self.clock.wait(stop, min(left, _POLL_S))

    def _say_absent(self) -> None:
        if not self._absent:
            resource, socket = self.resource.name, str(self.directory / KUBELET_SOCKET)
            fix = "is --device-plugins-dir right?"
            logs.event(_LOG, "no kubelet", level=logging.WARNING, resource=resource, socket=socket, fix=fix)
        self._absent = True

    def _kubelet(self) -> _Mark | None:
        try:
            stat = (self.directory / KUBELET_SOCKET).stat()
        except OSError:
            return None
        return stat.st_ino, stat.st_mtime_ns
