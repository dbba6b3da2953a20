"""Asks the kubelet's PodResources API which container holds which device IDs."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import grpc

from deviceplugin.api import podresources_pb2 as api
from deviceplugin.identify import ListedContainer, ListerError
from deviceplugin.resources import Resource
from gpushare.identity import ContainerName
from gpushare.runtime.clock import Clock

METHOD: Final = "/v1.PodResourcesLister/List"
_OPTIONS: Final = (
    ("grpc.max_receive_message_length", 16 * 1024 * 1024),  # a node full of small units names all its devices
    ("grpc.use_local_subchannel_pool", 1),  # else a channel shares the back-off of an earlier one to the same socket
)
_RETRY_S: Final = 0.05


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
