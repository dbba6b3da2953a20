"""Variables that frameworks obey: the last resort, where nothing stronger works."""

from collections.abc import Sequence
from typing import ClassVar

from deviceplugin.edits import ContainerEdits
from deviceplugin.limits import variables
from deviceplugin.limits.backend import PROVEN, LimitedStart, Proofs
from gpushare.model.gpu import Gpu, Limit


class AdvisoryBackend:
    """Works everywhere and holds against mistakes only. Without a CDI spec, the webhook's variables remain."""

    limit: ClassVar[Limit] = Limit.ADVISORY
    needs_edits: ClassVar[bool] = False

    def prove(self, gpus: Sequence[Gpu]) -> Proofs:
        """There is nothing that could fail."""
        return {gpu.uuid: PROVEN for gpu in gpus}

    def prepare(self, start: LimitedStart, gpus: Sequence[Gpu]) -> ContainerEdits:
        """The variables of the frameworks that the pod wants."""
        return ContainerEdits(env=variables.whole_gpu_reported(start, gpus))
