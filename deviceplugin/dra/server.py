"""The kubelet's calls: it finds the registration socket, asks for the driver's, and then prepares claims there."""

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent import futures
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import grpc

from deviceplugin.api import dra_pb2 as api, drahealth_pb2 as health_api, registration_pb2 as registration_api
from deviceplugin.dra.driver import ClaimDriver, ClaimRef
from deviceplugin.dra.store import ClaimError
from deviceplugin.inventory import InventoryFeed
from deviceplugin.server import socket_mark, unary
from gpushare import names
from gpushare.identity import NodeName
from gpushare.model.gpu import GpuHealth
from gpushare.runtime import logs
from gpushare.runtime.clock import Backoff, Clock
from gpushare.wire import claims as wire
from gpushare.wire.claims import Claim

_LOG: Final = logging.getLogger(__name__)
_SERVICE: Final = "v1.DRAPlugin"
_HEALTH: Final = "v1alpha1.DRAResourceHealth"
_THREADS: Final = 16  # claims that are prepared at a time, and streams of health
_LOOK_S: Final = 0.5
_STALE_S: Final = 60  # after which the kubelet takes the health of a device for unknown


@dataclass(kw_only=True)
class DraServer:
    """Serves on two sockets until told to stop; a socket that others removed is made again."""

    kubelet: Path  # the kubelet's directory, at the same path as on the node
    node: NodeName
    driver: ClaimDriver
    feed: InventoryFeed
    clock: Clock
    on_registered: Callable[[], None] = lambda: None
    _stopping: threading.Event = field(init=False, default_factory=threading.Event)

    @property
    def socket(self) -> Path:
        return self.kubelet / "plugins" / names.DRA_DRIVER / "dra.sock"

    @property
    def registration(self) -> Path:
        return self.kubelet / "plugins_registry" / f"{names.DRA_DRIVER}-reg.sock"

    def run(self, stop: threading.Event) -> None:
        backoff = Backoff(first_s=0.25, cap_s=5.0)
        while not stop.is_set():
            try:
                self._serve(stop)
                backoff.reset()
            except (OSError, RuntimeError) as error:
                delay = backoff.next_s()
                logs.event(_LOG, "not serving", level=logging.ERROR, error=f"{self.kubelet}: {error}", retry_s=delay)
                self.clock.wait(stop, delay)

    def _serve(self, stop: threading.Event) -> None:
        """The driver's socket first: the kubelet calls it as soon as it sees the other one."""
        self._stopping.clear()
        with futures.ThreadPoolExecutor(_THREADS, thread_name_prefix="dra") as pool:
            servers = [
                (self.socket, self._started(pool, self.socket, self._driver_handlers())),
                (self.registration, self._started(pool, self.registration, [self._registration_handler()])),
            ]
            marks = {socket: socket_mark(socket) for socket, _ in servers}
            try:
                while not stop.is_set() and all(socket_mark(socket) == mark for socket, mark in marks.items()):
                    self.clock.wait(stop, _LOOK_S)
            finally:
                self._stopping.set()
                self.feed.wake()
                for socket, server in reversed(servers):
                    if socket_mark(socket) == marks[socket]:
                        socket.unlink(missing_ok=True)
                    server.stop(grace=0.5).wait(5.0)

    def _started(self, pool: futures.ThreadPoolExecutor, socket: Path, handlers: Sequence[Any]) -> Any:
        socket.parent.mkdir(parents=True, exist_ok=True)
        socket.unlink(missing_ok=True)
        server = grpc.server(pool)
        server.add_generic_rpc_handlers(tuple(handlers))
        server.add_insecure_port(f"unix:{socket}")
        server.start()
        return server

    def _registration_handler(self) -> Any:
        info = registration_api.PluginInfo(
            type="DRAPlugin", name=names.DRA_DRIVER, endpoint=str(self.socket), supported_versions=[_SERVICE, _HEALTH]
        )
        return grpc.method_handlers_generic_handler(
            "pluginregistration.Registration",
            {
                "GetInfo": unary(lambda _request, _context: info, registration_api.InfoRequest),
                "NotifyRegistrationStatus": unary(self._notified, registration_api.RegistrationStatus),
            },
        )

    def _notified(self, status: Any, _context: Any) -> Any:
        if status.plugin_registered:
            logs.event(_LOG, "registered", driver=names.DRA_DRIVER)
            self.on_registered()
        else:
            logs.event(_LOG, "not registered", level=logging.ERROR, driver=names.DRA_DRIVER, error=status.error)
        return registration_api.RegistrationStatusResponse()

    def _driver_handlers(self) -> Sequence[Any]:
        return (
            grpc.method_handlers_generic_handler(
                "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin",
                {
                    "NodePrepareResources": unary(self.prepare, api.NodePrepareResourcesRequest),
                    "NodeUnprepareResources": unary(self.unprepare, api.NodeUnprepareResourcesRequest),
                },
            ),
            grpc.method_handlers_generic_handler(
                _HEALTH,
                {
                    "NodeWatchResources": grpc.unary_stream_rpc_method_handler(
                        self.watch,
                        request_deserializer=health_api.NodeWatchResourcesRequest.FromString,
                        response_serializer=health_api.NodeWatchResourcesResponse.SerializeToString,
                    )
                },
            ),
        )

    def prepare(self, request: Any, context: Any) -> Any:
        answer = api.NodePrepareResourcesResponse()
        for asked in request.claims:
            about = {"claim": f"{asked.namespace}/{asked.name}", "uid": asked.uid}
            try:
                claim = self.driver.prepare(ClaimRef(asked.namespace, asked.name, asked.uid), context.is_active)
            except ClaimError as error:
                logs.event(_LOG, "claim refused", level=logging.WARNING, **about, error=str(error))
                answer.claims[asked.uid].error = str(error)
            else:
                logs.event(_LOG, "claim prepared", **about, devices=sorted({share.device for share in claim.shares}))
                answer.claims[asked.uid].devices.extend(self._devices(claim))
        return answer

    def _devices(self, claim: Claim) -> Iterator[Any]:
        told: set[str] = set()
        for share in claim.shares:
            # One CDI device has all GPUs of a request.
            device = f"{names.CDI_KIND}={claim.cdi_device(share.request)}"
            yield api.Device(
                request_names=[share.request],
                pool_name=self.node,
                device_name=share.device,
                cdi_device_ids=[] if share.request in told else [device],
                share_id=share.share_id or None,
            )
            told.add(share.request)

    def unprepare(self, request: Any, _context: Any) -> Any:
        answer = api.NodeUnprepareResourcesResponse()
        for asked in request.claims:
            try:
                self.driver.unprepare(asked.uid)
            except ClaimError as error:
                answer.claims[asked.uid].error = str(error)
            else:
                answer.claims[asked.uid].SetInParent()
                logs.event(_LOG, "claim unprepared", claim=f"{asked.namespace}/{asked.name}", uid=asked.uid)
        return answer

    def watch(self, _request: Any, context: Any) -> Iterator[Any]:
        """The health of all GPUs now, after each change, and often enough to be believed."""
        context.add_callback(self.feed.wake)
        version = 0
        while not self._stopping.is_set() and context.is_active():
            over = lambda: self._stopping.is_set() or not context.is_active()  # noqa: E731
            posted = self.feed.newer(version, over=over, seconds=_STALE_S / 2) or self.feed.latest
            if posted is None:
                continue
            version = posted.version
            now = int(self.clock.now().timestamp())
            yield health_api.NodeWatchResourcesResponse(
                devices=[
                    health_api.DeviceHealth(
                        device=health_api.DeviceIdentifier(pool_name=self.node, device_name=wire.device_name(gpu.uuid)),
                        health=health_api.HEALTHY if gpu.health is GpuHealth.HEALTHY else health_api.UNHEALTHY,
                        last_updated_time=now,
                        health_check_timeout_seconds=_STALE_S,
                        message=gpu.reason,
                    )
                    for gpu in posted.inventory.dra
                ]
            )
