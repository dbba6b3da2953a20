"""Life with a kubelet, which forgets its plugins when it starts: serve, register, and do so again."""

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent import futures
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import grpc

from deviceplugin import resources
from deviceplugin.api import deviceplugin_pb2 as api
from deviceplugin.decide import Decision, Reason, Refuse
from deviceplugin.inventory import InventoryFeed
from deviceplugin.resources import Advertisement, Resource
from gpushare.model.gpu import GpuHealth
from gpushare.runtime import logs
from gpushare.runtime.clock import Backoff, Clock

_LOG: Final = logging.getLogger(__name__)
KUBELET_SOCKET: Final = "kubelet.sock"
METHOD: Final = "/v1beta1.Registration/Register"
_THREADS: Final = 8  # beside those in which containers start: starts may wait, and must leave some for Allocate
_OPTIONS: Final = (("grpc.max_receive_message_length", 16 * 1024 * 1024),)
_POLL_S: Final = 0.25
_REGISTER_S: Final = 5.0
_STEADY_S: Final = 10.0
_PASSING: Final = frozenset({Reason.API_SILENT, Reason.KUBELET_SILENT, Reason.LATE})
StartCheck = Callable[[Resource, Sequence[str]], Decision]  # may the container that holds these devices start?
Allocating = Callable[[Resource, Sequence[str]], Any]  # what a container that gets these devices is told


def options() -> Any:
    return api.DevicePluginOptions(pre_start_required=True, get_preferred_allocation_available=False)


def device_list(advertisement: Advertisement) -> Any:
    healths = ((advertisement.healthy, GpuHealth.HEALTHY), (advertisement.unhealthy, GpuHealth.UNHEALTHY))
    return api.ListAndWatchResponse(
        devices=[api.Device(ID=device, health=health.value) for ids, health in healths for device in ids]
    )


@dataclass(kw_only=True)
class PluginServer:
    """Answers the kubelet's calls for one resource, on a socket of its own. Use once: its streams end with it."""

    resource: Resource
    directory: Path
    feed: InventoryFeed
    start_check: StartCheck
    answer: Allocating
    _stopping: threading.Event = field(init=False, default_factory=threading.Event)
    _lock: threading.Lock = field(init=False, default_factory=threading.Lock)
    streams: int = field(init=False, default=0)  # kubelets that listen
    _starts: threading.BoundedSemaphore = field(init=False)
    _pool: futures.ThreadPoolExecutor = field(init=False)
    _server: Any = field(init=False)
    _mark: tuple[int, int] | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self._starts = threading.BoundedSemaphore(self.resource.starts)
        self._pool = futures.ThreadPoolExecutor(self.resource.starts + _THREADS, thread_name_prefix="rpc")
        self._server = grpc.server(self._pool, options=_OPTIONS)
        self._server.add_generic_rpc_handlers((self._handlers(),))

    @property
    def socket(self) -> Path:
        return self.directory / self.resource.socket

    def start(self) -> None:
        """Serve. A file that an earlier process left is removed. Raises OSError or RuntimeError: there is no socket."""
        self.socket.unlink(missing_ok=True)
        self._server.add_insecure_port(f"unix:{self.socket}")
        self._server.start()
        self._mark = socket_mark(self.socket)

    def intact(self) -> bool:
        return self._mark is not None and socket_mark(self.socket) == self._mark

    def stop(self) -> None:
        """End all calls, so that the kubelet has forgotten this server before the next one registers."""
        if self.intact():
            self.socket.unlink(missing_ok=True)
        self._stopping.set()
        self.feed.wake()
        self._server.stop(grace=0.5).wait(5.0)
        self._pool.shutdown(wait=False, cancel_futures=True)

    def list_and_watch(self, _request: Any, context: Any) -> Iterator[Any]:
        """ListAndWatch: all devices now and after every change, until the server stops or the kubelet goes away."""
        context.add_callback(self.feed.wake)
        self._count(1)
        try:
            version = 0
            while posted := self.feed.newer(version, over=lambda: self._stopping.is_set() or not context.is_active()):
                version = posted.version
                yield device_list(resources.devices(posted.inventory, self.resource))
        finally:
            self._count(-1)

    def _count(self, change: int) -> None:
        with self._lock:
            self.streams += change

    def allocate(self, request: Any, _context: Any) -> Any:
        """Allocate: at once and without a look-up, because the kubelet does not say who is asking."""
        answers = (self.answer(self.resource, asked.devices_ids) for asked in request.container_requests)
        return api.AllocateResponse(container_responses=answers)

    def pre_start(self, request: Any, context: Any) -> Any:
        """PreStartContainer: nothing, or an error that the kubelet shows as the reason why the container waits."""
        if not self._starts.acquire(blocking=False):
            context.abort(grpc.StatusCode.UNAVAILABLE, "too many containers start at once; the kubelet will try again")
        try:
            decision = self.start_check(self.resource, list(request.devices_ids))
        finally:
            self._starts.release()
        if isinstance(decision, Refuse):
            is_passing = decision.reason in _PASSING
            code = grpc.StatusCode.UNAVAILABLE if is_passing else grpc.StatusCode.FAILED_PRECONDITION
            context.abort(code, decision.message)
        return api.PreStartContainerResponse()

    def _handlers(self) -> Any:
        """Without GetPreferredAllocation: device IDs are all alike, so the options tell the kubelet not to ask."""
        return grpc.method_handlers_generic_handler(
            "v1beta1.DevicePlugin",
            {
                "GetDevicePluginOptions": unary(lambda _request, _context: options(), api.Empty),
                "ListAndWatch": grpc.unary_stream_rpc_method_handler(
                    self.list_and_watch,
                    request_deserializer=api.Empty.FromString,
                    response_serializer=api.ListAndWatchResponse.SerializeToString,
                ),
                "Allocate": unary(self.allocate, api.AllocateRequest),
                "PreStartContainer": unary(self.pre_start, api.PreStartContainerRequest),
            },
        )


def unary(behaviour: Callable[[Any, Any], Any], request: Any) -> Any:
    """A handler of one call. Args: request: its message; what is answered serialises itself."""
    return grpc.unary_unary_rpc_method_handler(
        behaviour,
        request_deserializer=request.FromString,
        response_serializer=lambda answer: answer.SerializeToString(),
    )


def socket_mark(socket: Path) -> tuple[int, int] | None:
    """What tells a socket from a later one in its place, which often has the same inode number; None if none is."""
    try:
        stat = socket.stat()
    except OSError:
        return None
    return stat.st_ino, stat.st_mtime_ns


@dataclass(kw_only=True)
class Registrar:
    resource: Resource
    directory: Path
    feed: InventoryFeed
    start_check: StartCheck
    clock: Clock
    answer: Allocating
    ready: Callable[[], bool] = lambda: True  # whether the first registration may happen; see `ready_by`
    ready_by: float = 0.0  # moment of `monotonic` until which it is waited for: till then, pods are rejected
    on_registered: Callable[[], None] = lambda: None
    on_beat: Callable[[bool], None] = lambda _registered: None  # four times a second: whether the kubelet listens
    lonely_s: float = 5.0  # without a listening kubelet, until the registration is repeated
    _problems: logs.Changes = field(init=False, default_factory=lambda: logs.Changes(_LOG))

    def run(self, stop: threading.Event) -> None:
        self._wait_first(stop)
        backoff = Backoff(first_s=0.25, cap_s=5.0)
        while not stop.is_set():
            kubelet = self._kubelet()
            if kubelet is None:
                about = {"resource": self.resource.name, "socket": str(self.directory / KUBELET_SOCKET)}
                fix = "is --device-plugins-dir right?"
                self._problems.say("no kubelet", level=logging.WARNING, **about, fix=fix)
                self._pause(stop, _POLL_S)
                continue
            self._problems.clear()
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

    def _serve(self, stop: threading.Event, kubelet: tuple[int, int]) -> None:
        own = PluginServer(
            resource=self.resource,
            directory=self.directory,
            feed=self.feed,
            start_check=self.start_check,
            answer=self.answer,
        )
        try:
            own.start()
        except (OSError, RuntimeError) as error:
            own.stop()
            logs.event(_LOG, "not serving", level=logging.ERROR, error=f"cannot serve on {own.socket}: {error}")
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
            version="v1beta1", endpoint=self.resource.socket, resource_name=self.resource.name, options=options()
        )
        # A pool of its own, else a new channel shares the back-off of an earlier one to the same socket.
        pool = (("grpc.use_local_subchannel_pool", 1),)
        try:
            with grpc.insecure_channel(f"unix:{self.directory / KUBELET_SOCKET}", options=pool) as channel:
                register = channel.unary_unary(METHOD, api.RegisterRequest.SerializeToString, api.Empty.FromString)
                register(request, timeout=_REGISTER_S)
        except grpc.RpcError as error:
            reason = f"{error.code().name}: {error.details()}"
            logs.event(_LOG, "not registered", level=logging.WARNING, resource=self.resource.name, error=reason)
            return False
        logs.event(_LOG, "registered", resource=self.resource.name)
        self.on_registered()
        return True

    def _watch(self, stop: threading.Event, own: PluginServer, kubelet: tuple[int, int]) -> str:
        """Wait until the registration is no longer worth anything; returns why."""
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

    def _kubelet(self) -> tuple[int, int] | None:
        return socket_mark(self.directory / KUBELET_SOCKET)
