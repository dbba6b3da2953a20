"""Starts and back ends for tests of limits."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from deviceplugin.causes import Cause, Code
from deviceplugin.cdi import ContainerEdits
from deviceplugin.limits.node import PROVEN, LimitedStart, LimitError, Proofs
from gpushare.model.gpu import Gpu, Limit
from gpushare.model.ledger import Grant
from testing.builders import make_grant, make_inventory, make_ref


def start_of(*gpus: int, gib: int = 3, grant: Grant | None = None, **fields: Any) -> LimitedStart:
    """A start on GPUs of 15 GiB. Args: fields: others of LimitedStart."""
    given = grant or make_grant(*(gpus or (0,)), gib=gib)
    told: dict[str, Any] = {"pod": make_ref(), "grant": given, "of_pod": (given,), "inventory": make_inventory(15, 15)}
    return LimitedStart(**told | fields)


@dataclass
class FakeBackend:
    """See LimitBackend."""

    limit: Limit
    needs_edits: bool = False
    works: Callable[[Gpu], str] = lambda _gpu: PROVEN
    error: str = ""
    proofs: int = 0
    prepared: list[tuple[str, ...]] = field(default_factory=list)

    def prove(self, gpus: Sequence[Gpu]) -> Proofs:
        self.proofs += 1
        return {gpu.uuid: Cause(Code.OTHER, self.works(gpu)) for gpu in gpus}

    def prepare(self, start: LimitedStart, gpus: Sequence[Gpu]) -> ContainerEdits:
        if self.error:
            raise LimitError(self.error)
        self.prepared.append(tuple(gpu.uuid for gpu in gpus))
        return ContainerEdits(env=((f"BY_{self.limit.name}_{start.grant.container}", ",".join(self.prepared[-1])),))
