"""Gives containers limits of their own below that of their pod, once the kubelet has told their IDs.

Most have them already: see `early`. This is for what that missed, and for what the plugin's restart interrupted.
"""

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from deviceplugin import cgroups, decide
from deviceplugin.limits.backend import LimitError
from deviceplugin.limits.cgroup import MIB, CgroupBackend
from gpushare.errors import WireError
from gpushare.identity import GpuUuid, PodUid
from gpushare.model.allocation import Grant
from gpushare.model.gpu import Gpu, Limit, NodeInventory
from gpushare.model.ledger import mib_on
from gpushare.runtime import logs
from gpushare.runtime.clock import Clock
from gpushare.wire import allocations
from gpushare.wire import pods as wire
from gpushare.wire.pods import Pod

_LOG: Final = logging.getLogger(__name__)
_LOOK_S: Final = 0.5
_AGAIN_S: Final = 60.0
"""After which limits that were set are set again, should someone have changed them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningContainer:
    """One with a grant, as the kubelet reports it."""

    pod: PodUid
    id: str
    """The runtime's: 64 hexadecimal digits."""
    grant: Grant
    gpus: tuple[Gpu, ...]


def running(pods: Sequence[Pod], inventory: NodeInventory) -> Sequence[RunningContainer]:
    """The containers with grants whose IDs are known. Pure; a pod that cannot be read is left out."""
    found: list[RunningContainer] = []
    for pod in pods:
        try:
            found += _running(pod, inventory)
        except WireError:
            continue
    return found


def _running(pod: Pod, inventory: NodeInventory) -> Iterator[RunningContainer]:
    ids = wire.container_ids(pod)
    allocation = allocations.granted(pod, inventory.unit) if ids else None
    for grant in decide.known(allocation.grants, inventory) if allocation else ():
        if grant.container in ids:
            gpus = tuple(inventory.by_uuid[gpu] for gpu in grant.gpus if gpu in inventory.by_uuid)
            yield RunningContainer(pod=wire.ref(pod).uid, id=ids[grant.container], grant=grant, gpus=gpus)


@dataclass(kw_only=True)
class LeafLimits:
    """Works only where limits nest. Used by one thread."""

    backend: CgroupBackend
    pods: Callable[[], Sequence[Pod]]
    inventory: Callable[[], NodeInventory | None]
    clock: Clock
    _done: set[tuple[str, GpuUuid]] = field(init=False, default_factory=set)
    _again_at: float = field(init=False, default=0.0)
    _told: dict[tuple[str, GpuUuid], str] = field(init=False, default_factory=dict)
    """What was wrong last, of containers that are not limited."""

    def run(self, stop: threading.Event) -> None:
        """Look again and again until `stop` is set."""
        while not self.clock.wait(stop, _LOOK_S):
            self.look()

    def look(self) -> None:
        """Limit the containers that are not yet, in pods that are."""
        inventory = self.inventory()
        if inventory is None or not self.backend.nests():
            return
        if self.clock.monotonic() >= self._again_at:
            self._again_at = self.clock.monotonic() + _AGAIN_S
            self._done.clear()
        containers = running(self.pods(), inventory)
        present = {(container.id, gpu.uuid) for container in containers for gpu in container.gpus}
        self._done &= present
        self._told = {key: problem for key, problem in self._told.items() if key in present}
        for container in containers:
            for gpu in container.gpus:
                # What starts under another limit may have been told its part of the whole GPU.
                if (
                    gpu.limit is Limit.CGROUP
                    and (container.id, gpu.uuid) not in self._done
                    and self._is_limited(container, gpu)
                ):
                    self._done.add((container.id, gpu.uuid))
                    self._told.pop((container.id, gpu.uuid), None)

    def _is_limited(self, container: RunningContainer, gpu: Gpu) -> bool:
        """Set the limit. Whether nothing is left to do."""
        pod = self.backend.pod_directory(container.pod)
        leaf = cgroups.container_directories(pod).get(container.id) if pod else None
        if pod is None or leaf is None:
            return False
        mib = mib_on(container.grant, gpu)
        try:
            # A pod that was started without a limit keeps what it has.
            if container.grant.whole or mib >= gpu.memory_mib or self.backend.driver.get(gpu.uuid, pod) is None:
                return True
            self.backend.driver.set(gpu.uuid, leaf, mib * MIB)
        except LimitError as error:
            if leaf.is_dir():  # it may have ended meanwhile
                self._tell((container.id, gpu.uuid), leaf, str(error))
            return False
        return True

    def _tell(self, key: tuple[str, GpuUuid], leaf: Path, problem: str) -> None:
        """Log it when it changes: it is tried again twice a second."""
        if self._told.get(key) != problem:
            level, event = logging.WARNING, "container not limited"
            logs.event(_LOG, event, level=level, gpu=key[1], cgroup=str(leaf), error=problem)
        self._told[key] = problem
