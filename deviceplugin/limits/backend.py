"""What holds limits: its interface, what it is told, and the two back ends that only write variables. Pure.

A variable caps what one framework allocates in one process; a program may ignore or change it. A back end is a file
beside this one, its name in `gpushare.model.gpu.Limit`, its place in `node`, and a line in `deviceplugin.main`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Final, Protocol

from deviceplugin.cdi import ContainerEdits
from gpushare import names
from gpushare.errors import GpuShareError
from gpushare.identity import GpuUuid, PodRef
from gpushare.model.gpu import Gpu, Limit, NodeInventory
from gpushare.model.ledger import Grant, mib_on
from gpushare.units import MIB
from gpushare.wire import frameworks
from gpushare.wire.frameworks import Framework

PROVEN: Final = ""  # what a back end says of a GPU on which it works
Proofs = Mapping[GpuUuid, str]  # of one back end: `PROVEN`, or why it does not work on that GPU and what to do
Variables = tuple[tuple[str, str], ...]
_MPS_USABLE: Final = 0.95  # under MPS, the context of a process counts against its limit: some hundred MiB


class LimitError(GpuShareError):
    """A limit cannot be put in place; the message says which, why, and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitedStart:
    """A container that was accepted and is about to start. What is known of its pod is what `pods.reduce` keeps."""

    pod: PodRef
    grant: Grant
    of_pod: tuple[Grant, ...]  # of all containers of the pod, in the order in which they start
    alternatives: tuple[Grant, ...] = ()  # of containers that have the same devices: any of them may be the one
    inventory: NodeInventory
    variables: frozenset[str] = frozenset()  # names of variables in the container's own `env`
    open_env: bool = False  # whether it takes variables from elsewhere as well (envFrom)
    image: str = ""
    annotations: Mapping[str, str] = field(default_factory=dict)

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        return tuple(gpu for gpu in self.inventory.gpus if gpu.uuid in self.grant.gpus)

    def memory_mib(self, gpu: Gpu) -> int:
        return min(mib_on(self.grant, gpu), gpu.memory_mib)


class LimitBackend(Protocol):
    """One way to hold limits. Safe for use by many threads; each call has a deadline of its own."""

    @property
    def limit(self) -> Limit: ...

    @property
    def needs_edits(self) -> bool:
        """Whether it works through mounts and variables, which a container gets by a CDI spec only: not by envvar."""

    def prove(self, gpus: Sequence[Gpu]) -> Proofs:
        """Whether it works, from a real call for each GPU. Never raises, and leaves nothing behind."""

    def prepare(self, start: LimitedStart, gpus: Sequence[Gpu]) -> ContainerEdits:
        """Put the limit of a container in place on some of its GPUs before it exists. May raise LimitError."""


class AdvisoryBackend:
    """Works everywhere and holds against mistakes only. Without a CDI spec, the webhook's variables remain."""

    limit: ClassVar[Limit] = Limit.ADVISORY
    needs_edits: ClassVar[bool] = False

    def prove(self, gpus: Sequence[Gpu]) -> Proofs:
        return {gpu.uuid: PROVEN for gpu in gpus}

    def prepare(self, start: LimitedStart, gpus: Sequence[Gpu]) -> ContainerEdits:
        return ContainerEdits(env=reported(start, gpus, lambda gpu: gpu.memory_mib))


class MigBackend(AdvisoryBackend):
    """The hardware keeps a container within its MIG instance; a part of one is advisory within it."""

    limit: ClassVar[Limit] = Limit.MIG

    def prove(self, gpus: Sequence[Gpu]) -> Proofs:
        return {gpu.uuid: PROVEN if gpu.mig else "it is not a MIG instance" for gpu in gpus}


def reported(start: LimitedStart, gpus: Sequence[Gpu], total_mib: Callable[[Gpu], int]) -> Variables:
    """Where CUDA reports so many MiB of a GPU, and nothing holds the container to its part. May raise LimitError."""
    share = _fraction(start, gpus, total_mib)
    memory = min(map(start.memory_mib, gpus))
    values = {
        Framework.JAX: share,
        Framework.PADDLE: str(memory),
        Framework.CUPY: str(memory * MIB),
        Framework.PYTORCH: f"per_process_memory_fraction:{share}",
    }
    return _told(start, values if share else {})


def mps_variables(start: LimitedStart, gpus: Sequence[Gpu]) -> Variables:
    """Under MPS, which holds the limit: for JAX, which takes three quarters of what CUDA reports, the whole GPU."""
    share = _fraction(start, gpus, lambda gpu: gpu.memory_mib, usable=_MPS_USABLE)
    return _told(start, {Framework.JAX: share} if share else {})


def _told(start: LimitedStart, values: Mapping[Framework, str]) -> Variables:
    """Those that the pod wants and its author has not set, as far as that can be known. May raise LimitError."""
    try:
        wanted = frameworks.parse(start.annotations.get(names.ANNOTATION_FRAMEWORK_VARIABLES))
    except ValueError as error:
        raise LimitError(f"annotation {names.ANNOTATION_FRAMEWORK_VARIABLES}: {error}") from error
    if start.open_env:
        return ()
    known = ((frameworks.FRAMEWORK_VARIABLES[each], values[each]) for each in wanted if each in values)
    return tuple((variables[0], value) for variables, value in known if start.variables.isdisjoint(variables))


def _fraction(start: LimitedStart, gpus: Sequence[Gpu], total_mib: Callable[[Gpu], int], *, usable: float = 1.0) -> str:
    """The part of each total, rounded down, so that no GPU's share is exceeded; empty where it is everything."""
    totals = [(start.memory_mib(gpu), total_mib(gpu)) for gpu in gpus]
    part = min(memory / total if total else 1.0 for memory, total in totals)
    return "" if part >= 1 else f"{max(int(part * usable * 10_000), 1) / 10_000:.4f}"
