"""The plugin's side of the kubelet's gRPC interface: translates and delegates."""

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent import futures
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import grpc

from deviceplugin.advertise import Advertisement
from deviceplugin.api import deviceplugin_pb2 as api
from deviceplugin.decision import Decision, Reason, Refuse
from deviceplugin.handover.strategy import Answer
from deviceplugin.inventory_feed import InventoryFeed
from deviceplugin.resources import Resource
from gpushare.errors import GpuShareError
from gpushare.model.gpu import GpuHealth

_THREADS: Final = 8
"""Beside those in which containers start: starts may wait for seconds and must leave some for Allocate. A server makes
its threads as it needs them, so a resource that no one uses costs few."""
_OPTIONS: Final = (("grpc.max_receive_message_length", 16 * 1024 * 1024),)


class ServeError(GpuShareError):
    """The plugin cannot serve on its socket."""


StartCheck = Callable[[Resource, Sequence[str]], Decision]
"""Decides whether the container that holds these devices may start."""
Answering = Callable[[Resource, Sequence[str]], Answer]
"""What a container that gets these devices is told."""


def no_devices(_resource: Resource, _ids: Sequence[str]) -> Answer:
    """Leaves the devices to the pod's own variable."""
    return Answer()


def options() -> Any:
    """What the kubelet is asked for."""
    return api.DevicePluginOptions(pre_start_required=True, get_preferred_allocation_available=False)


def device_list(advertisement: Advertisement) -> Any:
    """The message of ListAndWatch."""
    healths = ((advertisement.healthy, GpuHealth.HEALTHY), (advertisement.unhealthy, GpuHealth.UNHEALTHY))
    return api.ListAndWatchResponse(
        devices=[api.Device(ID=device, health=health.value) for ids, health in healths for device in ids]
    )


@dataclass(kw_only=True)
class Servicer:
    """The five calls of the kubelet. One servicer for each server, because its streams end with it."""

    resource: Resource
    feed: InventoryFeed
    start_check: StartCheck
    answer: Answering = no_devices
    _stopping: threading.Event = field(init=False, default_factory=threading.Event)
    _lock: threading.Lock = field(init=False, default_factory=threading.Lock)
    _streams: int = field(init=False, default=0)
    _starts: threading.BoundedSemaphore = field(init=False)

    def __post_init__(self) -> None:
        self._starts = threading.BoundedSemaphore(self.resource.starts)

    @property
    def streams(self) -> int:
        """How many kubelets listen to the list of devices."""
        return self._streams

    def stop(self) -> None:
        """End all streams."""
        self._stopping.set()
        self.feed.wake()

    def get_options(self, _request: Any, _context: Any) -> Any:
        """GetDevicePluginOptions."""
        return options()

    def list_and_watch(self, _request: Any, context: Any) -> Iterator[Any]:
        """ListAndWatch: all devices now and after every change, until the server stops or the kubelet goes away."""
        context.add_callback(self.feed.wake)
        self._count(1)
        try:
            version = 0
            while snapshot := self.feed.newer(version, over=lambda: self._stopping.is_set() or not context.is_active()):
                version = snapshot.version
                yield device_list(snapshot.advertised[self.resource.name])
        finally:
            self._count(-1)

    def allocate(self, request: Any, _context: Any) -> Any:
        """Allocate: at once and without a look-up, because the kubelet does not say who is asking."""
        answers = [self.answer(self.resource, asked.devices_ids) for asked in request.container_requests]
        return api.AllocateResponse(container_responses=map(_response, answers))

    def pre_start(self, request: Any, context: Any) -> Any:
        """PreStartContainer: nothing, or an error that the kubelet shows as the reason why the container waits."""
        if not self._starts.acquire(blocking=False):
            context.abort(grpc.StatusCode.UNAVAILABLE, "too many containers start at once; the kubelet will try again")
        try:
            decision = self.start_check(self.resource, list(request.devices_ids))
        finally:
            self._starts.release()
        if isinstance(decision, Refuse):
            passing = decision.reason in {Reason.API_SILENT, Reason.KUBELET_SILENT, Reason.LATE}
            code = grpc.StatusCode.UNAVAILABLE if passing else grpc.StatusCode.FAILED_PRECONDITION
            context.abort(code, decision.message)
        return api.PreStartContainerResponse()

    def preferred(self, _request: Any, context: Any) -> Any:
        """GetPreferredAllocation is not offered: IDs mean nothing."""
        context.abort(grpc.StatusCode.UNIMPLEMENTED, "device IDs of this plugin are all alike")

    def _count(self, change: int) -> None:
        with self._lock:
            self._streams += change


def _response(answer: Answer) -> Any:
    return api.ContainerAllocateResponse(
        envs=answer.env,
        annotations=dict(answer.annotations),
        cdi_devices=[api.CDIDevice(name=device) for device in answer.cdi_devices],
        mounts=[api.Mount(container_path=path, host_path=source, read_only=True) for path, source in answer.mounts],
    )


class PluginServer:
    """A server on one unix socket. Use once."""

    def __init__(self, servicer: Servicer, socket: Path) -> None:
        self._servicer = servicer
        self._socket = socket
        self._pool = futures.ThreadPoolExecutor(servicer.resource.starts + _THREADS, thread_name_prefix="rpc")
        self._server: Any = grpc.server(self._pool, options=_OPTIONS)
        self._server.add_generic_rpc_handlers((_handlers(servicer),))
        self._mark: tuple[int, int] | None = None

    @property
    def streams(self) -> int:
        """How many kubelets listen."""
        return self._servicer.streams

    def start(self) -> None:
        """Serve. A file that an earlier process left is removed.

        Raises:
            ServeError: the socket cannot be made.
        """
        try:
            self._socket.unlink(missing_ok=True)
            self._server.add_insecure_port(f"unix:{self._socket}")
            self._server.start()
            self._mark = _mark(self._socket)
        except (OSError, RuntimeError) as error:
            self.stop()
            raise ServeError(f"cannot serve on {self._socket}: {error}") from error

    def intact(self) -> bool:
        """Whether the socket is still in its place."""
        return self._mark is not None and _mark(self._socket) == self._mark

    def stop(self) -> None:
        """End all calls, so that the kubelet has forgotten this server before the next one registers."""
        if self.intact():
            self._socket.unlink(missing_ok=True)
        self._servicer.stop()
        self._server.stop(grace=0.5).wait(5.0)
        self._pool.shutdown(wait=False, cancel_futures=True)


def _mark(socket: Path) -> tuple[int, int] | None:
    try:
        stat = socket.stat()
    except OSError:
        return None
    return stat.st_ino, stat.st_ctime_ns


def _handlers(servicer: Servicer) -> Any:
    def unary(behaviour: Callable[[Any, Any], Any], request: Any, response: Any) -> Any:
        return grpc.unary_unary_rpc_method_handler(
            behaviour, request_deserializer=request.FromString, response_serializer=response.SerializeToString
        )

    return grpc.method_handlers_generic_handler(
        "v1beta1.DevicePlugin",
        {
            "GetDevicePluginOptions": unary(servicer.get_options, api.Empty, api.DevicePluginOptions),
            "ListAndWatch": grpc.unary_stream_rpc_method_handler(
                servicer.list_and_watch,
                request_deserializer=api.Empty.FromString,
                response_serializer=api.ListAndWatchResponse.SerializeToString,
            ),
            "GetPreferredAllocation": unary(
                servicer.preferred, api.PreferredAllocationRequest, api.PreferredAllocationResponse
            ),
            "Allocate": unary(servicer.allocate, api.AllocateRequest, api.AllocateResponse),
            "PreStartContainer": unary(servicer.pre_start, api.PreStartContainerRequest, api.PreStartContainerResponse),
        },
    )
