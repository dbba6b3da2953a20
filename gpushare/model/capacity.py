"""What is free on a node, as far as it matters for how well pods pack: the GPUs, and the host's CPU and memory."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

from gpushare.model.gpu import Gpu
from gpushare.model.ledger import NodeLedger
from gpushare.model.request import ANY_GPU, Choice, MigChoice, Need, PodRequest, RequestShape, takes_mig


class FreeGpu(NamedTuple):
    """One GPU. Equal ones are alike for every decision here."""

    total_mib: int  # that may be granted in all
    free_mib: int
    free_percent: int = 100  # of compute that is not set aside
    mig: bool = False  # a MIG instance: no one has it for a whole GPU, or beside others, without asking for that
    extra_mib: int = 0  # of `total_mib`, what the GPU does not have: it is oversubscribed
    held: bool = False  # someone is on it who has taken nothing: it is full for pods that ask for it whole

    @classmethod
    def of(cls, gpu: Gpu, ledger: NodeLedger) -> "FreeGpu":
        mib, left, percent = ledger.grantable_mib(gpu), ledger.left_mib(gpu), ledger.free_percent(gpu)
        held = left == mib and percent == 100 and not ledger.untouched(gpu)
        return cls(mib, left, percent, gpu.mig is not None, mib - gpu.memory_mib, held)

    @property
    def has_mib(self) -> int:
        """Its own memory."""
        return self.total_mib - self.extra_mib

    @property
    def untouched(self) -> bool:
        """Whether no one holds anything on it."""
        return self.free_mib == self.total_mib and self.free_percent == 100 and not self.held

    def holds(self, need: Need) -> bool:
        """Whether there is room for so much; no pod gets more memory than the GPU has, however much may be granted."""
        return self.has_mib >= need.memory_mib <= self.free_mib and need.compute_percent <= self.free_percent

    def without(self, need: Need) -> "FreeGpu":
        free_mib, free_percent = self.free_mib - need.memory_mib, self.free_percent - need.compute_percent
        held = self.held and free_mib == self.total_mib and free_percent == 100
        return FreeGpu(self.total_mib, free_mib, free_percent, self.mig, self.extra_mib, held)


class FreeHost(NamedTuple):
    """CPU and memory of a node that no pod has requested."""

    cpu_milli: int
    memory_mib: int

    @classmethod
    def of(cls, request: PodRequest) -> "FreeHost":
        return cls(request.cpu_milli, request.host_mib)

    def fits(self, host: "FreeHost") -> bool:
        return self.cpu_milli <= host.cpu_milli and self.memory_mib <= host.memory_mib

    def plus(self, takes: "FreeHost") -> "FreeHost":
        return FreeHost(self.cpu_milli + takes.cpu_milli, self.memory_mib + takes.memory_mib)

    def without(self, takes: "FreeHost") -> "FreeHost":
        return FreeHost(self.cpu_milli - takes.cpu_milli, self.memory_mib - takes.memory_mib)

    def left_by(self, pods: Iterable["FreeHost"]) -> "FreeHost":
        """What pods leave of a node; never less than nothing, as it may have shrunk."""
        cpu, memory = self
        for pod in pods:
            cpu, memory = cpu - pod.cpu_milli, memory - pod.memory_mib
        return FreeHost(max(cpu, 0), max(memory, 0))


NOTHING: Final = FreeHost(0, 0)


@dataclass(frozen=True, slots=True)
class NodeCapacity:
    """What is free on one node. Equal ones are alike."""

    model: str  # of its GPUs; of the first one where they differ
    gpus: tuple[FreeGpu, ...]  # sorted, so that the order of a node's GPUs changes nothing
    host: FreeHost | None = None  # None if it is not known, and counts as enough

    @classmethod
    def of(cls, ledger: NodeLedger, host: FreeHost | None = None) -> "NodeCapacity":
        gpus = ledger.inventory.gpus
        rooms = [FreeGpu.of(gpu, ledger) for gpu in ledger.inventory.healthy]
        return cls(model=gpus[0].model if gpus else "", gpus=tuple(sorted(rooms)), host=host)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """What a pod takes of a node. `gpus` is 0 for a pod that takes CPU and memory only."""

    gpus: int = 0
    memory_mib: int = 0  # on each GPU; or `memory_percent` of each, or all of it, as `ContainerRequest` has it
    memory_percent: int = 0
    compute_percent: int = 0
    whole: bool = False
    cpu_milli: int = 0  # of the host, as `host_mib`
    host_mib: int = 0
    models: Choice = ANY_GPU.models  # which GPUs it accepts
    mig: MigChoice | None = None  # whether it takes MIG instances

    @classmethod
    def of(cls, shape: RequestShape, takes: FreeHost = NOTHING) -> "Ask":
        most = max(shape.containers, key=lambda asked: (asked.whole, asked.memory_percent, asked.memory_mib))
        return cls(
            gpus=max(container.gpu_count for container in shape.containers),
            memory_mib=most.memory_mib,
            memory_percent=most.memory_percent,
            compute_percent=most.compute_percent,
            whole=most.whole,
            cpu_milli=takes.cpu_milli,
            host_mib=takes.memory_mib,
            models=shape.gpus.models,
            mig=shape.gpus.mig,
        )

    @classmethod
    def of_pod(cls, request: PodRequest) -> "Ask":
        return cls.of(request.shape, FreeHost.of(request))

    @classmethod
    def of_host(cls, takes: FreeHost) -> "Ask":
        """Of a pod without GPUs."""
        return cls(cpu_milli=takes.cpu_milli, host_mib=takes.memory_mib)

    @property
    def host(self) -> FreeHost:
        return FreeHost(self.cpu_milli, self.host_mib)

    def need(self, gpu: FreeGpu) -> Need:
        """What it takes of one GPU. Parts are rounded down, as everywhere."""
        if self.whole:
            return Need(gpu.total_mib, 100)
        if self.memory_percent:
            return Need(max(gpu.has_mib * self.memory_percent // 100, 1), self.compute_percent)
        return Need(self.memory_mib, self.compute_percent)

    def fits(self, gpu: FreeGpu) -> bool:
        """Whether one GPU has room for it, and may be had as it asks."""
        has_room = gpu.untouched and gpu.total_mib > 0 if self.whole else gpu.holds(self.need(gpu))
        return has_room and self.takes(mig=gpu.mig)

    def takes(self, *, mig: bool) -> bool:
        """Whether it may get GPUs, or MIG instances."""
        if not mig:
            return self.mig is not MigChoice.ONLY
        return self.mig is not MigChoice.NEVER and takes_mig(self.mig, self.gpus, whole=self.whole)
