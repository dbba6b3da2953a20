"""The interface of a back end, and what one is told of a container that is about to start."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from deviceplugin.edits import ContainerEdits
from gpushare.errors import GpuShareError
from gpushare.identity import GpuUuid, PodRef
from gpushare.model.allocation import Grant
from gpushare.model.gpu import Gpu, Limit, NodeInventory
from gpushare.model.ledger import mib_on

PROVEN: Final = ""
"""What a back end says of a GPU on which it works."""
Proofs = Mapping[GpuUuid, str]
"""Of one back end: `PROVEN`, or why it does not work on that GPU and what to do."""


class LimitError(GpuShareError):
    """A limit cannot be put in place; the message says which, why, and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitedStart:
    """A container that was accepted and is about to start."""

    pod: PodRef
    grant: Grant
    of_pod: tuple[Grant, ...]
    """Of all containers of the pod, in the order in which they start."""
    instead: tuple[Grant, ...] = ()
    """Of containers that have the same devices, so that any of them may be the one that starts: an init container's are
    passed on to another one."""
    inventory: NodeInventory
    variables: frozenset[str] = frozenset()
    """Names of variables in the container's own `env`."""
    open_env: bool = False
    """Whether it takes variables from elsewhere as well (envFrom)."""
    image: str = ""
    annotations: Mapping[str, str] = field(default_factory=dict)

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        """The GPUs of the grant, by index."""
        return tuple(gpu for gpu in self.inventory.gpus if gpu.uuid in self.grant.gpus)

    def memory_mib(self, gpu: Gpu) -> int:
        """MiB that the container may use of one GPU."""
        return min(mib_on(self.grant, gpu), gpu.memory_mib)


class LimitBackend(Protocol):
    """One way to hold limits. Safe for use by many threads; each call has a deadline of its own."""

    @property
    def limit(self) -> Limit:
        """Which one it is."""
        ...

    @property
    def needs_edits(self) -> bool:
        """Whether it works through mounts and variables, which a container gets by a CDI spec only.

        The container runtime reads one under `cdi`, NVIDIA's runtime under `volume-mounts`, and none under `envvar`.
        """
        ...

    def prove(self, gpus: Sequence[Gpu]) -> Proofs:
        """Whether it works, from a real call for each GPU. Never raises, and leaves nothing behind."""
        ...

    def prepare(self, start: LimitedStart, gpus: Sequence[Gpu]) -> ContainerEdits:
        """Put the limit of a container in place on some of its GPUs before it exists.

        Raises:
            LimitError: it cannot be held.
        """
        ...
