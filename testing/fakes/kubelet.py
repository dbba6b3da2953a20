"""A kubelet's side of the device plugin interface, on real unix sockets."""

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc

from deviceplugin.api import deviceplugin_pb2 as api, podresources_pb2 as resources

Devices = Mapping[str, str]


def wait_until(condition: Callable[[], object]) -> None:
    """Without a limit of its own: how long is too long depends on the machine, and pytest ends a test that hangs."""
    while not condition():
        time.sleep(0.01)


class Plugin:
    """A registered resource as the kubelet sees it: one connection, one stream of devices."""

    def __init__(self, socket: Path, resource: str) -> None:
        self.resource = resource
        self._channel = grpc.insecure_channel(f"unix:{socket}", options=(("grpc.use_local_subchannel_pool", 1),))
        self.lists: list[Devices] = []
        self.ended = threading.Event()
        self.options = self.call("GetDevicePluginOptions", api.Empty(), api.DevicePluginOptions)
        self._stream = self._channel.unary_stream(
            "/v1beta1.DevicePlugin/ListAndWatch",
            request_serializer=api.Empty.SerializeToString,
            response_deserializer=api.ListAndWatchResponse.FromString,
        )(api.Empty())
        self._thread = threading.Thread(target=self._listen)
        self._thread.start()

    def call(self, method: str, request: Any, answer: Any, timeout: float = 15.0) -> Any:
        return self._channel.unary_unary(
            f"/v1beta1.DevicePlugin/{method}",
            request_serializer=type(request).SerializeToString,
            response_deserializer=answer.FromString,
        )(request, timeout=timeout)

    def allocate(self, *ids: Sequence[str]) -> list[dict[str, str]]:
        """The variables of each answer."""
        return [dict(response.envs) for response in self.answers(*ids)]

    def answers(self, *ids: Sequence[str]) -> list[Any]:
        requests = [api.ContainerAllocateRequest(devices_ids=devices) for devices in ids]
        answer = self.call("Allocate", api.AllocateRequest(container_requests=requests), api.AllocateResponse)
        return list(answer.container_responses)

    def start(self, *ids: str) -> str:
        """PreStartContainer; the reason of a refusal, or nothing."""
        request = api.PreStartContainerRequest(devices_ids=ids)
        try:
            self.call("PreStartContainer", request, api.PreStartContainerResponse)
        except grpc.RpcError as error:
            return f"{error.code().name}: {error.details()}"
        return ""

    def close(self) -> None:
        self._stream.cancel()
        self._channel.close()
        self._thread.join()

    def _listen(self) -> None:
        try:
            for message in self._stream:
                self.lists.append({device.ID: device.health for device in message.devices})
        except grpc.RpcError:
            pass
        self.ended.set()


class _Served:
    """A gRPC service on a unix socket."""

    def __init__(self, socket: Path, service: str, handlers: Mapping[str, Any]) -> None:
        self._pool = futures.ThreadPoolExecutor(8)
        self._server = grpc.server(self._pool)
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
        self._server.add_insecure_port(f"unix:{socket}")
        self._server.start()

    def stop(self) -> None:
        self._server.stop(grace=None).wait()
        self._pool.shutdown(wait=True)


class FakeKubelet:
    """Serves Registration and dials back, as the kubelet does."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.registrations: list[Any] = []
        self.plugins: list[Plugin] = []
        self.dials_back = True
        self.refused: Mapping[str, str] = {}
        """Resources, and why they are refused."""
        self._served: _Served | None = None

    @property
    def socket(self) -> Path:
        return self.directory / "kubelet.sock"

    def start(self) -> None:
        """Forgets all plugins and removes their sockets, as a real kubelet does when it starts."""
        for file in self.directory.iterdir():
            if file.name != "kubelet_internal_checkpoint":
                file.unlink(missing_ok=True)
        handler = grpc.unary_unary_rpc_method_handler(
            self._register,
            request_deserializer=api.RegisterRequest.FromString,
            response_serializer=api.Empty.SerializeToString,
        )
        self._served = _Served(self.socket, "v1beta1.Registration", {"Register": handler})

    def stop(self) -> None:
        for plugin in self.plugins:
            plugin.close()
        if self._served is not None:
            self._served.stop()
            self._served = None

    def restart_with_the_same_inode(self) -> None:
        """What a plugin sees of a kubelet restart on file systems that give a freed inode number to the next file."""
        for plugin in self.plugins:
            plugin.close()
        for file in self.directory.glob("gpushare*.sock"):
            file.unlink()
        os.utime(self.socket)

    def of(self, resource: str) -> list[Plugin]:
        return [plugin for plugin in list(self.plugins) if plugin.resource == resource]

    def wait_for_devices(self, registrations: int = 1, resource: str = "aliyun.com/gpu-mem") -> Plugin:
        wait_until(lambda: len(found := self.of(resource)) >= registrations and found[-1].lists)
        return self.of(resource)[-1]

    def _register(self, request: Any, context: Any) -> Any:
        if problem := self.refused.get(request.resource_name):
            self.registrations.append(request)
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, problem)
        if self.dials_back:
            # Fails the registration if the plugin does not serve yet.
            self.plugins.append(Plugin(self.directory / request.endpoint, request.resource_name))
        self.registrations.append(request)
        return api.Empty()


class FakePodResources:
    """Serves PodResources from a table: (namespace, pod, container, resource) -> device IDs."""

    def __init__(self, socket: Path) -> None:
        self.socket = socket
        self.held: dict[tuple[str, str, str, str], Sequence[str]] = {}
        self.ending: list[tuple[str, Sequence[str]]] = []
        """Pods that end, which a successor of the same name may follow, and device IDs of their container main."""
        self.calls = 0
        self.crowded = 0
        """So many calls are refused as too many."""
        self.delay_s = 0.0
        self.answers = threading.Event()
        """Until it is set, calls wait."""
        self.answers.set()
        handler = grpc.unary_unary_rpc_method_handler(
            self._list,
            request_deserializer=resources.ListPodResourcesRequest.FromString,
            response_serializer=resources.ListPodResourcesResponse.SerializeToString,
        )
        self._served = _Served(socket, "v1.PodResourcesLister", {"List": handler})

    def hold(self, name: str, *ids: str, container: str = "main", resource: str = "aliyun.com/gpu-mem") -> None:
        self.held["default", name, container, resource] = ids

    def stop(self) -> None:
        self._served.stop()

    def _list(self, _request: Any, context: Any) -> Any:
        self.calls += 1
        if self.crowded:
            self.crowded -= 1
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "rejected by rate limit")
        time.sleep(self.delay_s)
        self.answers.wait()
        answer = resources.ListPodResourcesResponse()
        ending = [(("default", name, "main", "aliyun.com/gpu-mem"), ids) for name, ids in self.ending]
        for (namespace, name, container, resource), ids in [*ending, *self.held.items()]:
            devices = resources.ContainerDevices(resource_name=resource, device_ids=ids)
            holder = resources.ContainerResources(name=container, devices=[devices])
            answer.pod_resources.append(resources.PodResources(namespace=namespace, name=name, containers=[holder]))
        return answer
