"""NVIDIA's MPS: CUDA keeps every process of a container within its limit.

A client that does not reach the daemon goes on without MPS and without a limit, unless the GPU is in the compute mode
EXCLUSIVE_PROCESS, so that mode is a part of the proof, and the daemon is asked before each start.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Final

from deviceplugin import mps
from deviceplugin.causes import Cause, Code
from deviceplugin.cdi import ContainerEdits, Mount
from deviceplugin.limits.node import PROVEN, LimitedStart, LimitError, Proofs, mps_variables
from deviceplugin.mps import EXCLUSIVE, MpsError, Status
from deviceplugin.pods import HeldPod
from gpushare import names
from gpushare.identity import GpuUuid
from gpushare.model.gpu import Gpu, Limit, NodeInventory
from gpushare.model.ledger import mib_on

_OPTIONS: Final = ("rw", "nosuid", "nodev", "bind")


def largest(held: Iterable[HeldPod], inventory: NodeInventory) -> Mapping[GpuUuid, int]:
    """MiB of the largest grant on each GPU that has one. Pure."""
    found: dict[GpuUuid, int] = {}
    for grant in (grant for pod in held for grant in pod.allocation.grants):
        for gpu in filter(None, map(inventory.by_uuid.get, grant.gpus)):
            found[gpu.uuid] = max(found.get(gpu.uuid, 0), min(mib_on(grant, gpu), gpu.memory_mib))
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class MpsBackend:
    limit: ClassVar[Limit] = Limit.MPS
    needs_edits: ClassVar[bool] = True
    directory: Path  # of the daemon: the same on the node, in this container and in others
    shared_memory: Path  # on the node: the daemon's /dev/shm
    held: Callable[[NodeInventory], Iterable[HeldPod]]

    def prove(self, gpus: Sequence[Gpu]) -> Proofs:
        try:
            status = mps.ask(self.directory, {})
        except MpsError as error:
            return {gpu.uuid: Cause(Code.MPS_SILENT, str(error)) for gpu in gpus}
        return {gpu.uuid: _problem(gpu, status) for gpu in gpus}

    def prepare(self, start: LimitedStart, gpus: Sequence[Gpu]) -> ContainerEdits:
        """Set the daemon's own limits to the largest grant of each GPU, and point the container at the daemon."""
        others = largest(self.held(start.inventory), start.inventory)
        defaults = {gpu.index: max(start.memory_mib(gpu), others.get(gpu.uuid, 0)) for gpu in gpus}
        try:
            status = mps.ask(self.directory, defaults)
        except MpsError as error:
            raise LimitError(str(error)) from error
        for gpu in gpus:
            if problem := _problem(gpu, status):
                raise LimitError(f"GPU {gpu.uuid}: {problem}")
        pipe = str(mps.pipe_directory(self.directory))
        # Exactly the GPUs that the container sees: with any other, CUDA drops all limits.
        limits = ",".join(f"{gpu.uuid}={start.memory_mib(gpu)}M" for gpu in gpus)
        env = [("CUDA_MPS_PIPE_DIRECTORY", pipe), (names.ENV_MPS_MEMORY_LIMIT, limits)]
        if start.grant.compute_percent:
            env.append((names.ENV_MPS_THREAD_PERCENTAGE, str(start.grant.compute_percent)))
        return ContainerEdits(
            env=(*env, *mps_variables(start, gpus)),
            mounts=(
                Mount(host_path=pipe, container_path=pipe, options=_OPTIONS),
                Mount(host_path=str(self.shared_memory), container_path="/dev/shm", options=_OPTIONS),  # noqa: S108 - where CUDA looks for it
            ),
        )


def _problem(gpu: Gpu, status: Status) -> Cause:
    if status.problem:
        return Cause(Code.MPS_SILENT, f"the MPS daemon does not work: {status.problem}")
    if gpu.mig:
        return Cause(Code.MIG, "MIG instances are not shared by MPS here")
    mode = status.modes.get(gpu.index, "unknown")
    if mode.lower() != EXCLUSIVE.lower():
        why = (
            f"its compute mode is {mode}, so that a program which does not reach MPS would have no limit; the DaemonSet"
            f" gpushare-mps sets {EXCLUSIVE} when it starts"
        )
        return Cause(Code.COMPUTE_MODE, why)
    return PROVEN
