"""The driver's limit for the cgroup of a pod, and for those of its containers.

The pod's limit is there before the container is. Where the kernel counts (controller dmem), limits nest: a container
gets its own when its cgroup appears, and CUDA reports that as the GPU's total. Where the driver counts (misc), the
nearest limit alone holds, and one below the pod's would let a container have what it took before beside what it takes
after: frameworks are told their part of the pod's instead.
"""

import logging
import queue
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar, Final

from deviceplugin import cgroups
from deviceplugin.causes import Cause, Code
from deviceplugin.cdi import ContainerEdits
from deviceplugin.limits.node import PROVEN, LimitedStart, LimitError, Proofs, reported
from deviceplugin.nvml.driver import UNLIMITED, DriverError, MemoryLimits
from deviceplugin.pods import HeldPod
from gpushare.identity import GpuUuid, PodUid
from gpushare.model.gpu import Gpu, Limit, NodeInventory
from gpushare.model.ledger import Grant, mib_on
from gpushare.model.request import ContainerKind
from gpushare.runtime import logs
from gpushare.runtime.clock import Clock
from gpushare.units import MIB

_LOG: Final = logging.getLogger(__name__)
_PROBE: Final = "gpushare-probe"
_PROBE_BYTES: Final = 128 * MIB
_EARLY_S: Final = 0.01  # between looks for a container that is about to appear
_REFUSED_S: Final = 0.1  # after the driver refused a group that has just appeared: it may not have its controllers yet
_LONGEST_S: Final = 10.0  # that a runtime may take; afterwards the kubelet's report is waited for
_AGED: Final = 0.05  # of the time since PreStartContainer: after which to look again
_REPORTED_S: Final = 0.5  # between looks at the containers that the kubelet reports
_AGAIN_S: Final = 60.0  # after which limits that were set are set again, should someone have changed them


def moments(grant: Grant, of_pod: Sequence[Grant]) -> Iterator[tuple[Grant, ...]]:
    """The grants of all containers that may run when this one does, at each moment at which it may start. Pure.

    Init containers run alone with the sidecars before them; a sidecar may restart at any later moment.
    """
    number = next((i for i, each in enumerate(of_pod) if each.container == grant.container), 0)
    if grant.kind is ContainerKind.INIT:
        yield (*(each for each in of_pod[:number] if each.kind is ContainerKind.SIDECAR), grant)
        return
    yield tuple(each for each in of_pod if each.kind is not ContainerKind.INIT)
    if grant.kind is ContainerKind.SIDECAR:
        for each in of_pod[number:]:
            if each.kind is ContainerKind.INIT:
                yield from moments(each, of_pod)


def pod_bytes(start: LimitedStart, gpu: Gpu) -> int:
    """What the pod may use of one GPU while this container runs; UNLIMITED for a GPU that is all its own. Pure."""
    grants = (start.grant, *start.alternatives)
    return max(_bytes(at_once, gpu) for grant in grants for at_once in moments(grant, start.of_pod))


def _bytes(at_once: Sequence[Grant], gpu: Gpu) -> int:
    there = [each for each in at_once if gpu.uuid in each.gpus]
    mib = sum(mib_on(each, gpu) for each in there)
    if len(there) == 1 and mib >= gpu.memory_mib:
        return UNLIMITED
    return min(mib, gpu.memory_mib) * MIB


def _container_bytes(grant: Grant, gpu: Gpu) -> int | None:
    """What a container may use of one GPU; None for all of it. Pure."""
    mib = mib_on(grant, gpu)
    return None if grant.whole or mib >= gpu.memory_mib else mib * MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedContainer:
    pod: Path  # the cgroup of its pod
    known: frozenset[str]  # IDs of the containers that have groups in it already
    limits: tuple[tuple[GpuUuid, int], ...]  # bytes that it may use of each GPU
    after: float = 0.0  # when to look for it
    until: float = 0.0


@dataclass(kw_only=True)
class CgroupBackend:
    limit: ClassVar[Limit] = Limit.CGROUP
    needs_edits: ClassVar[bool] = False
    driver: MemoryLimits
    mount: Path = cgroups.MOUNT
    expected: "queue.SimpleQueue[ExpectedContainer]" = field(default_factory=queue.SimpleQueue)  # where limits nest
    _hierarchy: Path | None = field(init=False, default=None)  # the one in which a limit could be set
    _bases: tuple[Path, ...] = field(init=False, default=())

    def prove(self, gpus: Sequence[Gpu]) -> Proofs:
        """Set a limit on a cgroup that is made for it, and read it back."""
        first: Proofs = {}
        for hierarchy in cgroups.hierarchies(self.mount):
            bases = cgroups.kubepods(hierarchy)
            proofs = self._proofs(gpus, (*bases, hierarchy)[0])
            if PROVEN in proofs.values():
                self._hierarchy, self._bases = hierarchy, bases
                return proofs
            first = first or proofs
        why = Cause(Code.NO_CGROUP, f"{self.mount} has no cgroups; mount the node's there")
        return first or dict.fromkeys((gpu.uuid for gpu in gpus), why)

    def _proofs(self, gpus: Sequence[Gpu], parent: Path) -> Proofs:
        probe = parent / _PROBE
        try:
            probe.mkdir(exist_ok=True)
        except OSError as error:
            why = f"no cgroup can be made in {parent} ({error.strerror}); mount the node's there, and not read-only"
            return {gpu.uuid: Cause(Code.NO_CGROUP, why) for gpu in gpus}
        try:
            return {gpu.uuid: self._proof(gpu, probe) for gpu in gpus}
        finally:
            with suppress(OSError):  # it is empty, and used again
                probe.rmdir()

    def _proof(self, gpu: Gpu, probe: Path) -> Cause:
        if gpu.mig:
            return Cause(Code.MIG, "the driver holds no limits for cgroups on MIG instances")
        try:
            self.driver.set(gpu.uuid, probe, _PROBE_BYTES)
            found = self.driver.get(gpu.uuid, probe)
            self.driver.set(gpu.uuid, probe, UNLIMITED)
        except DriverError as error:
            return error.cause
        if found != _PROBE_BYTES:
            why = f"the driver took a limit of {_PROBE_BYTES} bytes for {probe}, but shows {found}"
            return Cause(Code.DRIVER_ERROR, why)
        return PROVEN

    def prepare(self, start: LimitedStart, gpus: Sequence[Gpu]) -> ContainerEdits:
        """Limit the pod. What was set is taken back if that fails for one of the GPUs."""
        directory = self.pod_directory(start.pod.uid)
        if directory is None:
            raise LimitError(
                f"the kubelet has made no cgroup for pod {start.pod} with uid {start.pod.uid} below"
                f" {self._hierarchy or self.mount}; it needs --cgroups-per-qos, which is its default"
            )
        fresh: list[Gpu] = []
        for gpu in gpus:
            try:
                hard = pod_bytes(start, gpu)
                before = self.driver.get(gpu.uuid, directory)
                if before is None and hard == UNLIMITED:
                    continue
                fresh += [gpu] if before is None else []
                self.driver.set(gpu.uuid, directory, hard)
            except DriverError as error:
                # Only until that fails too: a driver that hangs would hold up the start for each of the GPUs.
                with suppress(DriverError):
                    for each in fresh:
                        self.driver.set(each.uuid, directory, UNLIMITED)
                raise LimitError(f"GPU {gpu.uuid}, cgroup {directory}: {error}") from error
        if not self.nests():
            totals = {gpu: min(pod_bytes(start, gpu) // MIB, gpu.memory_mib) for gpu in gpus}
            return ContainerEdits(env=reported(start, gpus, totals.__getitem__))
        limits = tuple((gpu.uuid, most) for gpu in gpus if (most := _container_bytes(start.grant, gpu)) is not None)
        if limits:
            known = frozenset(cgroups.container_directories(directory))
            self.expected.put(ExpectedContainer(pod=directory, known=known, limits=limits))
        return ContainerEdits()

    def pod_directory(self, pod: PodUid) -> Path | None:
        """The cgroup of a pod. The kubelet's group is looked for again if it moved."""
        found = cgroups.pod_directory(self._bases, pod)
        if found is None and self._hierarchy is not None:
            self._bases = cgroups.kubepods(self._hierarchy)
            found = cgroups.pod_directory(self._bases, pod)
        return found

    def nests(self) -> bool:
        with suppress(OSError):
            return "nvidia/" in ((self._hierarchy or self.mount) / "dmem.capacity").read_text(encoding="ascii")
        return False


@dataclass(kw_only=True)
class ContainerLimits:
    """Gives containers limits of their own below that of their pod, where limits nest. Used by one thread.

    The kubelet tells the ID of a container only after its start, but starts the containers of a pod one after another:
    the first new group after PreStartContainer is this one's, mostly early enough for what CUDA tells the program. What
    that missed is limited once the kubelet has told the ID.
    """

    backend: CgroupBackend
    held: Callable[[NodeInventory], Iterable[HeldPod]]
    inventory: Callable[[], NodeInventory | None]
    clock: Clock
    _waiting: list[ExpectedContainer] = field(init=False, default_factory=list)
    _done: set[tuple[str, GpuUuid]] = field(init=False, default_factory=set)  # where nothing is left to do
    _again_at: float = field(init=False, default=0.0)
    _problems: logs.Changes = field(init=False, default_factory=lambda: logs.Changes(_LOG))

    def run(self, stop: threading.Event) -> None:
        reported_at = 0.0
        while not stop.is_set():
            if not self._waiting:
                with suppress(queue.Empty):
                    self._expect(self.backend.expected.get(timeout=_REPORTED_S))
            else:
                self.clock.wait(stop, _EARLY_S)
            self.look_at_expected()
            if self.clock.monotonic() >= reported_at:
                self.look_at_reported()
                reported_at = self.clock.monotonic() + _REPORTED_S

    def _expect(self, container: ExpectedContainer) -> None:
        self._waiting.append(replace(container, until=self.clock.monotonic() + _LONGEST_S))

    def look_at_expected(self) -> None:
        with suppress(queue.Empty):
            while True:
                self._expect(self.backend.expected.get_nowait())
        now = self.clock.monotonic()
        self._waiting = [each for each in self._waiting if now < each.until]
        for pod in {each.pod for each in self._waiting if each.after <= now}:
            self._look_at(pod, now)

    def _look_at(self, pod: Path, now: float) -> None:
        groups = cgroups.container_directories(pod)
        found = [each for each in self._waiting if each.pod == pod and groups.keys() - each.known]
        if not found:
            # Less and less often, so that many that take long cost little.
            self._waiting = [
                replace(each, after=now + _AGED * (now + _LONGEST_S - each.until)) if each.pod == pod else each
                for each in self._waiting
            ]
            return
        new = {path for each in found for name, path in groups.items() if name not in each.known}
        others = [each for each in self._waiting if each not in found]
        # Of several it is not known which one is which: then the kubelet's report decides.
        is_clear = len(new) == 1 and len({each.limits for each in found}) == 1
        if is_clear and not self._is_limited(min(new), found[0]):
            others += [replace(each, after=now + _REFUSED_S) for each in found]
        self._waiting = others

    def _is_limited(self, group: Path, expected: ExpectedContainer) -> bool:
        with suppress(DriverError):
            for gpu, hard in expected.limits:
                self.backend.driver.set(gpu, group, hard)
            return True
        return False

    def look_at_reported(self) -> None:
        """Limit the containers that the kubelet reports and that are not limited yet, in pods that are."""
        inventory = self.inventory()
        if inventory is None or not self.backend.nests():
            return
        if self.clock.monotonic() >= self._again_at:
            self._again_at = self.clock.monotonic() + _AGAIN_S
            self._done.clear()
        reported = {
            (pod.container_ids[grant.container], gpu.uuid): (pod.allocation.pod.uid, grant, gpu)
            for pod in self.held(inventory)
            for grant in pod.allocation.grants
            if grant.container in pod.container_ids
            for gpu in inventory.every
            if gpu.uuid in grant.gpus
        }
        self._done &= reported.keys()
        self._problems.keep(reported.keys())
        for key, (pod, grant, gpu) in reported.items():
            # What starts under another limit may have been told its part of the whole GPU.
            is_open = gpu.limit is Limit.CGROUP and key not in self._done
            if is_open and self._is_reported_limited(pod, key[0], grant, gpu):
                self._done.add(key)
                self._problems.clear(key)
            if is_open:  # the driver takes its time, and what starts meanwhile must not wait for all of these
                self.look_at_expected()

    def _is_reported_limited(self, pod: PodUid, container: str, grant: Grant, gpu: Gpu) -> bool:
        """Set the limit. Whether nothing is left to do."""
        directory = self.backend.pod_directory(pod)
        group = cgroups.container_directories(directory).get(container) if directory else None
        if directory is None or group is None:
            return False
        hard = _container_bytes(grant, gpu)
        try:
            # A pod that was started without a limit keeps what it has.
            if hard is None or self.backend.driver.get(gpu.uuid, directory) is None:
                return True
            self.backend.driver.set(gpu.uuid, group, hard)
        except DriverError as error:
            if group.is_dir():  # it may have ended meanwhile
                about = {"gpu": gpu.uuid, "cgroup": str(group), "error": str(error)}
                self._problems.say("container not limited", (container, gpu.uuid), level=logging.WARNING, **about)
            return False
        return True
