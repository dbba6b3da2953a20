"""The driver's limit for the cgroup of a pod, and for those of its containers.

The limit of the pod is there before the container is. Where the kernel counts (its controller dmem), limits nest, and
a container gets one of its own when its cgroup appears, which CUDA then reports as the GPU's total. Where the driver
counts (misc), the nearest limit alone holds: CUDA reports the pod's, and one below it would let a container have what
it took before beside what it takes after, so none is set there. Frameworks are told their part of the pod's instead.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Final

from deviceplugin import cgroups
from deviceplugin.edits import ContainerEdits
from deviceplugin.limits import variables
from deviceplugin.limits.backend import PROVEN, LimitedStart, LimitError, Proofs
from deviceplugin.nvml.memory_limits import UNLIMITED, MemoryLimits
from gpushare.identity import GpuUuid, PodUid
from gpushare.model.allocation import Grant
from gpushare.model.gpu import Gpu, Limit
from gpushare.model.ledger import mib_on
from gpushare.model.request import ContainerKind

MIB: Final = 1024 * 1024
_PROBE: Final = "gpushare-probe"
_PROBE_BYTES: Final = 128 * MIB


def moments(grant: Grant, of_pod: Sequence[Grant]) -> Iterator[tuple[Grant, ...]]:
    """The grants of all containers that may run when this one does, at each moment at which it may start. Pure.

    Init containers run alone with the sidecars before them, and have ended when the others start; a sidecar may restart
    at any later moment.
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
    grants = (start.grant, *start.instead)
    return max(_bytes(at_once, gpu) for grant in grants for at_once in moments(grant, start.of_pod))


def _bytes(at_once: Sequence[Grant], gpu: Gpu) -> int:
    there = [each for each in at_once if gpu.uuid in each.gpus]
    mib = sum(mib_on(each, gpu) for each in there)
    if len(there) == 1 and mib >= gpu.memory_mib:
        return UNLIMITED
    return min(mib, gpu.memory_mib) * MIB


def reported_mib(start: LimitedStart, gpu: Gpu) -> int:
    """What CUDA reports as the total of one GPU where only the pod is limited. Pure."""
    return min(pod_bytes(start, gpu) // MIB, gpu.memory_mib)


def _leaf_limits(grant: Grant, gpus: Sequence[Gpu]) -> Iterator[tuple[GpuUuid, int]]:
    for gpu in gpus:
        if not grant.whole and mib_on(grant, gpu) < gpu.memory_mib:
            yield gpu.uuid, mib_on(grant, gpu) * MIB


@dataclass(kw_only=True)
class CgroupBackend:
    """Keeps no state but what it knows of the cgroup tree; the limits are the kernel's."""

    limit: ClassVar[Limit] = Limit.CGROUP
    needs_edits: ClassVar[bool] = False
    driver: MemoryLimits
    mount: Path = cgroups.MOUNT
    expect: Callable[[Path, tuple[tuple[GpuUuid, int], ...]], None] = lambda _pod, _limits: None
    """Is told the cgroup of a pod in which a container will appear, and the bytes that it may use of each GPU."""
    _hierarchy: Path | None = field(init=False, default=None)
    """The one in which a limit could be set."""
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
        return first or {gpu.uuid: f"{self.mount} has no cgroups; mount the node's there" for gpu in gpus}

    def _proofs(self, gpus: Sequence[Gpu], parent: Path) -> Proofs:
        probe = parent / _PROBE
        try:
            probe.mkdir(exist_ok=True)
        except OSError as error:
            why = f"no cgroup can be made in {parent} ({error.strerror}); mount the node's there, and not read-only"
            return {gpu.uuid: why for gpu in gpus}
        try:
            return {gpu.uuid: self._proof(gpu, probe) for gpu in gpus}
        finally:
            with suppress(OSError):  # it is empty, and used again
                probe.rmdir()

    def _proof(self, gpu: Gpu, probe: Path) -> str:
        if gpu.mig:
            return "the driver holds no limits for cgroups on MIG instances"
        try:
            self.driver.set(gpu.uuid, probe, _PROBE_BYTES)
            found = self.driver.get(gpu.uuid, probe)
            self.driver.set(gpu.uuid, probe, UNLIMITED)
        except LimitError as error:
            return str(error)
        if found is None or found.hard != _PROBE_BYTES:
            return f"the driver took a limit of {_PROBE_BYTES} bytes for {probe}, but shows {found and found.hard}"
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
            except LimitError as error:
                # Only until that fails too: a driver that hangs would hold up the start for each of the GPUs.
                with suppress(LimitError):
                    for each in fresh:
                        self.driver.set(each.uuid, directory, UNLIMITED)
                raise LimitError(f"GPU {gpu.uuid}, cgroup {directory}: {error}") from error
        if self.nests():
            self.expect(directory, tuple(_leaf_limits(start.grant, gpus)))
            return ContainerEdits()
        return ContainerEdits(env=variables.reported(start, gpus, lambda gpu: reported_mib(start, gpu)))

    def pod_directory(self, pod: PodUid) -> Path | None:
        """The cgroup of a pod. The kubelet's group is looked for again if it moved."""
        found = cgroups.pod_directory(self._bases, pod)
        if found is None and self._hierarchy is not None:
            self._bases = cgroups.kubepods(self._hierarchy)
            found = cgroups.pod_directory(self._bases, pod)
        return found

    def nests(self) -> bool:
        """Whether the kernel counts the memory of NVIDIA's GPUs, so that a limit below another one is one more."""
        with suppress(OSError):
            return "nvidia/" in ((self._hierarchy or self.mount) / "dmem.capacity").read_text(encoding="ascii")
        return False
