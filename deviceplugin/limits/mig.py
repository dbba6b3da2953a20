"""MIG instances: the hardware keeps a container within its instance."""

from collections.abc import Sequence
from typing import ClassVar

from deviceplugin.edits import ContainerEdits
from deviceplugin.limits import variables
from deviceplugin.limits.backend import PROVEN, LimitedStart, Proofs
from gpushare.model.gpu import Gpu, Limit


class MigBackend:
    """Nothing has to be put in place for a whole instance; a part of one is advisory within it."""

    limit: ClassVar[Limit] = Limit.MIG
    needs_edits: ClassVar[bool] = False

    def prove(self, gpus: Sequence[Gpu]) -> Proofs:
        """The driver lists MIG instances as such."""
        return {gpu.uuid: PROVEN if gpu.mig else "it is not a MIG instance" for gpu in gpus}

    def prepare(self, start: LimitedStart, gpus: Sequence[Gpu]) -> ContainerEdits:
        """Variables for containers that share an instance; CUDA reports the instance's memory as the total."""
        return ContainerEdits(env=variables.whole_gpu_reported(start, gpus))
