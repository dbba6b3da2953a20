"""A node on which pods can be started: all parts of the plugin but the process itself, over real sockets."""

import base64
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import orjson

from deviceplugin import pods
from deviceplugin.handover.devices import DeviceHandOver
from deviceplugin.identify import PodResources
from deviceplugin.pods import PodCache
from deviceplugin.prestart import LateStarts, StartCheck
from deviceplugin.refusals import Refusals
from deviceplugin.resources import MEMORY, Resource
from gpushare.kube.watch import Reflector
from gpushare.runtime.clock import SystemClock
from gpushare.units import ResourceConfig
from testing.builders import Json, make_inventory
from testing.deviceplugin.build import NODE, handing_over
from testing.deviceplugin.running import feed_with, in_threads, running_all
from testing.fakes.kube import FakeKube
from testing.fakes.kubelet import FakeKubelet, FakePodResources, Plugin, wait_until


@dataclass(kw_only=True)
class Node:
    plugins: Mapping[str, Plugin]  # by resource
    api: FakeKube
    cache: PodCache
    resources: FakePodResources
    checkpoint: Path
    entries: list[Json] = field(default_factory=list)

    @property
    def plugin(self) -> Plugin:
        return self.plugins[MEMORY.name]

    def bind(self, pod: Json) -> None:
        self.api.seed(f"/api/v1/namespaces/default/pods/{pod['metadata']['name']}", pod)
        wait_until(lambda: self.cache.by_uid(pod["metadata"]["uid"]))

    def admit(self, name: str, *containers: tuple[str, tuple[str, ...]], resource: Resource = MEMORY) -> None:
        """The kubelet admits a pod: it asks for each container, and notes the answers. Args: containers: device IDs."""
        for container, ids in containers:
            self.resources.hold(name, *ids, container=container, resource=resource.name)
            (answer,) = self.plugins[resource.name].answers(ids)
            self.record((f"uid-{name}", container, ids), resource=resource, response=answer.SerializeToString())

    def record(
        self, *entries: tuple[str, str, tuple[str, ...]], resource: Resource = MEMORY, response: bytes = b""
    ) -> None:
        """Add to the kubelet's checkpoint. Args: UID, container, device IDs."""
        self.entries += [
            {
                "PodUID": uid,
                "ContainerName": container,
                "ResourceName": resource.name,
                "DeviceIDs": {"-1": ids},
                "AllocResp": base64.b64encode(response).decode(),
            }
            for uid, container, ids in entries
        ]
        document = {"Data": {"PodDeviceEntries": self.entries, "RegisteredDevices": {}}, "Checksum": 1}
        self.checkpoint.write_bytes(orjson.dumps(document))

    def hold(self, name: str, ids: tuple[str, ...], resource: Resource = MEMORY) -> None:
        """The kubelet gave these devices to the container main of a pod."""
        self.resources.hold(name, *ids, resource=resource.name)
        self.record((f"uid-{name}", "main", ids), resource=resource)

    def start(self, ids: tuple[str, ...], resource: Resource = MEMORY) -> str:
        """PreStartContainer; the reason of a refusal, or nothing."""
        return self.plugins[resource.name].start(*ids)

    @property
    def events(self) -> list[Json]:
        return self.api.objects("/api/v1/namespaces/default/events")


@contextmanager
def watching(api: FakeKube, cache: PodCache) -> Iterator[None]:
    reflector = Reflector(
        api=api, path=pods.PATH, sink=cache, clock=SystemClock(), params={"fieldSelector": f"spec.nodeName={NODE}"}
    )
    with in_threads(reflector.run, wake=api.close):
        yield


@contextmanager
def serving(
    kubelet: FakeKubelet, pod_resources: FakePodResources, *offered: Resource, hand_over: DeviceHandOver | None = None
) -> Iterator[Node]:
    """A node with two GPUs of 15 GiB and a plugin that has registered these resources."""
    clock = SystemClock()
    api, cache = FakeKube(), PodCache(clock)
    hand_over = hand_over or handing_over()
    start_check = StartCheck(
        node=NODE,
        resource_config=ResourceConfig(whole_gpus=True),
        feed=feed_with(make_inventory(15, 15)),
        cache=cache,
        api=api,
        lister=PodResources(socket=pod_resources.socket, clock=clock).list,
        checkpoint=kubelet.directory / "kubelet_internal_checkpoint",
        refusals=Refusals(api=api, clock=clock),
        late=LateStarts(cache=cache, clock=clock),
        hand_over=hand_over,
    )
    with (
        watching(api, cache),
        running_all(
            *offered,
            directory=kubelet.directory,
            feed=start_check.feed,
            start_check=start_check.check,
            answer=hand_over.answer,
        ),
    ):
        plugins = {resource.name: kubelet.wait_for_devices(1, resource.name) for resource in offered}
        made = Node(plugins=plugins, api=api, cache=cache, resources=pod_resources, checkpoint=start_check.checkpoint)
        made.record()
        yield made
