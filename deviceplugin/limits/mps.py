"""NVIDIA's MPS: CUDA keeps every process of a container within its limit.

A client that does not reach the daemon goes on without MPS and without a limit, unless the GPU is in the compute mode
EXCLUSIVE_PROCESS, so that mode is a part of the proof, and the daemon is asked before each start.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Final

from deviceplugin import decide
from deviceplugin.edits import ContainerEdits, Mount
from deviceplugin.limits import variables
from deviceplugin.limits.backend import PROVEN, LimitedStart, LimitError, Proofs
from deviceplugin.mps import wire
from deviceplugin.mps.control import EXCLUSIVE
from deviceplugin.mps.wire import Status
from gpushare import names
from gpushare.errors import WireError
from gpushare.identity import GpuUuid
from gpushare.model.gpu import Gpu, Limit, NodeInventory
from gpushare.model.ledger import mib_on
from gpushare.wire import allocations
from gpushare.wire import pods as wire_pods
from gpushare.wire.pods import Pod

_TIMEOUT_S: Final = 8.0
"""The supervisor's own deadlines are shorter."""
_OPTIONS: Final = ("rw", "nosuid", "nodev", "bind")


def largest(pods: Sequence[Pod], inventory: NodeInventory) -> Mapping[GpuUuid, int]:
    """MiB of the largest grant on each GPU that has one. Pure; a pod that cannot be read is left out."""
    found: dict[GpuUuid, int] = {}
    for pod in pods:
        try:
            allocation = allocations.granted(pod, inventory.unit) if wire_pods.holds_gpus(pod) else None
        except WireError:
            continue
        for grant in decide.known(allocation.grants, inventory) if allocation else ():
            for uuid in grant.gpus:
                gpu = inventory.by_uuid.get(uuid)
                found[uuid] = max(found.get(uuid, 0), min(mib_on(grant, gpu), gpu.memory_mib) if gpu else 0)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class MpsBackend:
    """Keeps no state; the daemon's is its own."""

    limit: ClassVar[Limit] = Limit.MPS
    needs_edits: ClassVar[bool] = True
    directory: Path
    """Of the daemon: the same on the node, in this container and in others."""
    shared_memory: Path
    """On the node: the daemon's /dev/shm."""
    pods: Callable[[], Sequence[Pod]]

    def prove(self, gpus: Sequence[Gpu]) -> Proofs:
        """Have the daemon obey a command, and look at the compute modes."""
        try:
            status = wire.ask(self.directory, {}, timeout_s=_TIMEOUT_S)
        except LimitError as error:
            return {gpu.uuid: str(error) for gpu in gpus}
        return {gpu.uuid: _problem(gpu, status) for gpu in gpus}

    def prepare(self, start: LimitedStart, gpus: Sequence[Gpu]) -> ContainerEdits:
        """Set the daemon's own limits to the largest grant of each GPU, and point the container at the daemon."""
        others = largest(self.pods(), start.inventory)
        defaults = {gpu.index: max(start.memory_mib(gpu), others.get(gpu.uuid, 0)) for gpu in gpus}
        status = wire.ask(self.directory, defaults, timeout_s=_TIMEOUT_S)
        for gpu in gpus:
            if problem := _problem(gpu, status):
                raise LimitError(f"GPU {gpu.uuid}: {problem}")
        pipe = str(wire.pipe_directory(self.directory))
        # Exactly the GPUs that the container sees: with any other, CUDA drops all limits.
        limits = ",".join(f"{gpu.uuid}={start.memory_mib(gpu)}M" for gpu in gpus)
        env = [("CUDA_MPS_PIPE_DIRECTORY", pipe), (names.ENV_MPS_MEMORY_LIMIT, limits)]
        if start.grant.compute_percent:
            env.append((names.ENV_MPS_THREAD_PERCENTAGE, str(start.grant.compute_percent)))
        return ContainerEdits(
            env=(*env, *variables.mps(start, gpus)),
            mounts=(
                Mount(host_path=pipe, container_path=pipe, options=_OPTIONS),
                Mount(host_path=str(self.shared_memory), container_path="/dev/shm", options=_OPTIONS),  # noqa: S108 - where CUDA looks for it
            ),
        )


def _problem(gpu: Gpu, status: Status) -> str:
    if status.problem:
        return f"the MPS daemon does not work: {status.problem}"
    if gpu.mig:
        return "MIG instances are not shared by MPS here"
    mode = status.modes.get(gpu.index, "unknown")
    if mode.lower() != EXCLUSIVE.lower():
        return (
            f"its compute mode is {mode}, so that a program which does not reach MPS would have no limit; the DaemonSet"
            f" gpushare-mps sets {EXCLUSIVE} when it starts"
        )
    return PROVEN
