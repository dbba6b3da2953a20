"""Device IDs -> the container that holds them, from the kubelet's own two records; never by size or age.

PodResources knows names but lists no init containers; the checkpoint file knows UIDs and all containers.
"""

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import grpc
import orjson

from deviceplugin.api import podresources_pb2 as api
from deviceplugin.resources import Resource
from gpushare.errors import GpuShareError, WireError
from gpushare.identity import ContainerName, PodUid
from gpushare.runtime.clock import Clock
from gpushare.wire import fields

CHECKPOINT: Final = "kubelet_internal_checkpoint"  # it lies beside the sockets of device plugins
METHOD: Final = "/v1.PodResourcesLister/List"
_OPTIONS: Final = (
    ("grpc.max_receive_message_length", 16 * 1024 * 1024),  # a node full of small units names all its devices
    ("grpc.use_local_subchannel_pool", 1),  # else a channel shares the back-off of an earlier one to the same socket
)
_RETRY_S: Final = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedContainer:
    resource: str
    namespace: str
    name: str
    container: ContainerName
    ids: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    uid: PodUid
    container: ContainerName
    ids: frozenset[str]
    response: str = ""  # what Allocate answered, as the kubelet keeps it


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """Who holds the IDs. Without a UID there is a name, without a name a UID."""

    uid: PodUid | None
    namespace: str = ""
    name: str = ""
    containers: tuple[ContainerName, ...]  # each may be the one that starts: an init container's IDs are passed on
    responses: Mapping[ContainerName, str] | None = None  # what Allocate answered; None: not in the checkpoint


class ListerError(GpuShareError):
    """The kubelet does not say who holds which devices."""


Lister = Callable[[Resource, float], Sequence[ListedContainer]]
"""All containers with devices of a resource, as the kubelet knows them now; ListerError after so many seconds."""


def owner(ids: frozenset[str], listed: Iterable[ListedContainer], recorded: Iterable[Recorded]) -> Owner | str:
    """The container that holds exactly the IDs that PreStartContainer gets, or why it is not known.

    Pure. PodResources and the checkpoint are of the IDs' resource only; a checkpoint that could not be read is empty.
    """
    if not ids:
        return "the kubelet named no device IDs"
    listing = list(listed)
    records = [entry for entry in recorded if entry.ids == ids]
    exact = [entry for entry in listing if entry.ids == ids]
    # An init container is not listed itself, but a container that took over some of its IDs gives the pod's name.
    pods = {(entry.namespace, entry.name) for entry in exact or [e for e in listing if e.ids & ids]}
    uids = {entry.uid for entry in records}
    if len(uids) > 1 or len({(entry.namespace, entry.name) for entry in exact}) > 1:
        return f"several pods hold the devices {_some(ids)}"
    if not records and not exact:
        return f"neither PodResources nor {CHECKPOINT} knows a container with exactly the devices {_some(ids)}"
    containers = tuple(dict.fromkeys(entry.container for entry in records or exact))
    if records and not {entry.container for entry in exact} <= set(containers):
        return (
            f"PodResources gives the devices {_some(ids)} to container {exact[0].container}, {CHECKPOINT} to"
            f" {', '.join(containers)}"
        )
    namespace, name = pods.pop() if len(pods) == 1 else ("", "")
    return Owner(
        uid=uids.pop() if uids else None,
        namespace=namespace,
        name=name,
        containers=containers,
        responses={entry.container: entry.response for entry in records} if records else None,
    )


def read_checkpoint(text: bytes, resource: Resource) -> Sequence[Recorded]:
    """The entries of one resource in the kubelet's checkpoint file, of any kubelet version. May raise WireError."""
    at = "Data.PodDeviceEntries"
    try:
        data = fields.needed_mapping(fields.an_object(orjson.loads(text), ""), "Data", "")
        return [
            Recorded(
                uid=PodUid(fields.needed(entry, "PodUID", at)),
                container=ContainerName(fields.needed(entry, "ContainerName", at)),
                ids=_ids(entry, at),
                response=fields.text(entry, "AllocResp", at),
            )
            for entry in fields.objects(data, "PodDeviceEntries", "Data")
            if fields.needed(entry, "ResourceName", at) == resource.name
        ]
    except orjson.JSONDecodeError as error:
        raise WireError(f"{CHECKPOINT}: not JSON ({error})") from error
    except WireError as error:
        raise WireError(f"{CHECKPOINT}: {error}") from error


def _ids(entry: Mapping[str, Any], path: str) -> frozenset[str]:
    """A list up to Kubernetes 1.20, lists by NUMA node since."""
    if isinstance(entry.get("DeviceIDs"), list):
        return frozenset(fields.strings(entry, "DeviceIDs", path))
    by_node = fields.needed_mapping(entry, "DeviceIDs", path)
    return frozenset(device for node in by_node for device in fields.strings(by_node, node, f"{path}.DeviceIDs"))


def _some(ids: frozenset[str]) -> str:
    first = sorted(ids)[:3]
    return ", ".join(first) + (f" and {len(ids) - 3} more" if len(ids) > 3 else "")


@dataclass(kw_only=True)
class PodResources:
    """Safe for use by many threads.

    Calls that come while one is under way share the next one: the kubelet refuses more than a few at once, and a
    list that began after a caller came knows that caller's container.
    """

    socket: Path
    clock: Clock
    _turn: threading.Condition = field(init=False, default_factory=threading.Condition)
    _busy: bool = field(init=False, default=False)
    _begun: int = field(init=False, default=0)
    _done: int = field(init=False, default=0)
    _result: Sequence[ListedContainer] = field(init=False, default=())

    def list(self, resource: Resource, timeout_s: float) -> Sequence[ListedContainer]:
        return [container for container in self._all(timeout_s) if container.resource == resource.name]

    def _all(self, timeout_s: float) -> Sequence[ListedContainer]:
        end = self.clock.monotonic() + timeout_s
        with self._turn:
            needed = self._begun + 1
            # The clock of a condition is the machine's; the deadline is only there to end a wait at all.
            self._turn.wait_for(lambda: self._done >= needed or not self._busy, timeout_s)
            if self._done >= needed:
                return self._result
            if self._busy:
                raise self._silent("earlier calls still wait for an answer")
            self._busy, self._begun = True, needed
        result: Sequence[ListedContainer] | None = None
        try:
            with grpc.insecure_channel(f"unix:{self.socket}", options=_OPTIONS) as channel:
                sent, received = api.ListPodResourcesRequest.SerializeToString, api.ListPodResourcesResponse.FromString
                result = _listed(self._answer(channel.unary_unary(METHOD, sent, received), end))
        finally:
            with self._turn:
                self._busy = False
                if result is not None:
                    self._done, self._result = needed, result
                self._turn.notify_all()
        return result

    def _answer(self, call: Callable[..., Any], end: float) -> Any:
        while True:
            try:
                return call(api.ListPodResourcesRequest(), timeout=max(0.0, end - self.clock.monotonic()))
            except grpc.RpcError as error:
                # The kubelet lets 100 calls a second through and refuses the rest.
                crowded = error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
                if not crowded or self.clock.monotonic() + _RETRY_S > end:
                    raise self._silent(f"{error.code().name}: {error.details()}") from error
            self.clock.wait(threading.Event(), _RETRY_S)

    def _silent(self, cause: str) -> ListerError:
        where = f"the kubelet's PodResources API at {self.socket}"
        return ListerError(f"{where} does not answer ({cause}); the kubelet will try again")


def _listed(answer: Any) -> Sequence[ListedContainer]:
    found: list[ListedContainer] = []
    for pod in answer.pod_resources:  # of one name there may be two: a pod that ends, and the one after it
        for container in pod.containers:
            ids: dict[str, set[str]] = {}
            for entry in container.devices:  # one for each NUMA node
                ids.setdefault(entry.resource_name, set()).update(entry.device_ids)
            found += [
                ListedContainer(
                    resource=resource,
                    namespace=pod.namespace,
                    name=pod.name,
                    container=ContainerName(container.name),
                    ids=frozenset(each),
                )
                for resource, each in ids.items()
            ]
    return found
