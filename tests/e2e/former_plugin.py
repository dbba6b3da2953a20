"""The device plugin of a system that is being replaced; runs in a pod, from a ConfigMap.

As those do, it makes device IDs that name a GPU, wants no PreStartContainer, and says itself which GPU is seen.
"""

import os
import signal
import sys
import time
from collections.abc import Iterator
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc

from deviceplugin.api import deviceplugin_pb2 as api

DIRECTORY = Path("/var/lib/kubelet/device-plugins")
REGISTERED = Path("/tmp/registered")
RESOURCE = os.environ.get("RESOURCE", "")
SOCKET = os.environ.get("SOCKET", "")
DEVICES = int(os.environ.get("DEVICES", "0"))
GPU = os.environ.get("GPU", "")
"""Number of the GPU that every container sees."""


def options(_request: Any, _context: Any) -> Any:
    return api.DevicePluginOptions()


def list_and_watch(_request: Any, context: Any) -> Iterator[Any]:
    ids = [f"GPU-{i % 4}-_-{i // 4}" for i in range(DEVICES)]
    yield api.ListAndWatchResponse(devices=[api.Device(ID=each, health="Healthy") for each in ids])
    while context.is_active():
        time.sleep(0.2)


def allocate(request: Any, _context: Any) -> Any:
    one = api.ContainerAllocateResponse(envs={"NVIDIA_VISIBLE_DEVICES": GPU})
    return api.AllocateResponse(container_responses=[one] * len(request.container_requests))


def serve() -> Any:
    unary, stream = grpc.unary_unary_rpc_method_handler, grpc.unary_stream_rpc_method_handler
    answers = {
        "GetDevicePluginOptions": (unary, options, api.Empty, api.DevicePluginOptions),
        "ListAndWatch": (stream, list_and_watch, api.Empty, api.ListAndWatchResponse),
        "Allocate": (unary, allocate, api.AllocateRequest, api.AllocateResponse),
    }
    handlers = {
        name: kind(answer, asked.FromString, response_serializer=said.SerializeToString)
        for name, (kind, answer, asked, said) in answers.items()
    }
    server = grpc.server(futures.ThreadPoolExecutor(8))
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("v1beta1.DevicePlugin", handlers),))
    (DIRECTORY / SOCKET).unlink(missing_ok=True)
    server.add_insecure_port(f"unix:{DIRECTORY / SOCKET}")
    server.start()
    return server


def register() -> None:
    request = api.RegisterRequest(version="v1beta1", endpoint=SOCKET, resource_name=RESOURCE)
    with grpc.insecure_channel(f"unix:{DIRECTORY / 'kubelet.sock'}") as channel:
        channel.unary_unary(
            "/v1beta1.Registration/Register",
            request_serializer=api.RegisterRequest.SerializeToString,
            response_deserializer=api.Empty.FromString,
        )(request, timeout=10)


def main() -> int:
    # The first process of a container ignores signals that it does not wait for.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
    server = serve()
    register()
    REGISTERED.touch()
    signal.sigwait({signal.SIGTERM, signal.SIGINT})
    (DIRECTORY / SOCKET).unlink(missing_ok=True)
    server.stop(grace=0.2).wait(5)
    return 0


if __name__ == "__main__":
    sys.exit(main())
