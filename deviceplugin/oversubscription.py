"""How much of its GPUs a node lets be granted beyond what they have, if an administrator wants that."""

import logging
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final

from gpushare import names, units
from gpushare.model.gpu import Gpu, NodeInventory
from gpushare.model.selector import is_model
from gpushare.runtime import logs

_LOG: Final = logging.getLogger(__name__)
_ALL: Final = 100
_MODEL: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._/-]{0,63}")
_FIX: Final = "write a factor such as 1.5 for all GPUs, then MODEL=FACTOR for those of one model, with commas between"


@dataclass(frozen=True, slots=True)
class Factors:
    """By model. As per cent of a GPU's memory."""

    other: int = _ALL
    """Of GPUs of all other models."""
    of_models: tuple[tuple[str, int], ...] = ()
    """The first model that a GPU is of counts."""

    def of(self, gpu: Gpu) -> int:
        """That of a GPU."""
        return next((percent for model, percent in self.of_models if is_model(gpu.model, model)), self.other)

    def __str__(self) -> str:
        """As `parse` reads it."""
        models = [f"{model}={percent / 100:g}" for model, percent in self.of_models]
        return ",".join([f"{self.other / 100:g}", *models])


def parse(text: str) -> Factors:
    """Read the setting: a factor for all GPUs, MODEL=FACTOR for some, or both with commas between them.

    Raises:
        ValueError: it cannot be read.
    """
    other, models = _ALL, []
    for number, part in enumerate(text.split(",")):
        model, equals, factor = part.rpartition("=")
        if not equals and number == 0:
            other = units.parse_factor(factor)
        elif equals and _MODEL.fullmatch(model.strip()):
            models.append((model.strip(), units.parse_factor(factor)))
        else:
            raise ValueError(f"{part!r:.80} is not understood; {_FIX}")
    return Factors(other, tuple(models))


def applied(inventory: NodeInventory, setting: Factors, label: str | None) -> tuple[NodeInventory, str]:
    """The inventory with what may be granted of each GPU, and why the label cannot be read; empty if it can.

    The same whatever was applied before. MIG instances are never oversubscribed: all of one is what its hardware holds.

    Args:
        inventory: of the node.
        setting: by model.
        label: `gpushare.dev/oversubscription` of the node, which counts for all its GPUs; None until it was read, while
            the kubelet already has to know its devices again. One that cannot be read oversubscribes nothing.
    """
    factors, problem = setting, ""
    if label:
        try:
            factors = Factors(units.parse_factor(label))
        except ValueError as error:
            factors, problem = Factors(), f"label {names.LABEL_OVERSUBSCRIPTION} of the node: {error}"
    gpus = tuple(replace(gpu, extra_mib=_extra_mib(gpu, factors)) for gpu in inventory.gpus)
    return replace(inventory, gpus=gpus), problem


def _extra_mib(gpu: Gpu, factors: Factors) -> int:
    return 0 if gpu.mig else gpu.memory_mib * (factors.of(gpu) - _ALL) // 100


@dataclass(kw_only=True)
class Oversubscription:
    """Of one node."""

    setting: Factors
    label: Callable[[], str | None]
    """`gpushare.dev/oversubscription` of the Node; None until it was read."""
    _said: str = field(init=False, default="")

    def assess(self, inventory: NodeInventory) -> NodeInventory:
        """The inventory with what may be granted of each GPU."""
        found, problem = applied(inventory, self.setting, self.label())
        if problem and problem != self._said:
            logs.event(_LOG, "label not read", level=logging.WARNING, problem=problem)
        self._said = problem
        return found

    def agrees(self, inventory: NodeInventory) -> bool:
        """Whether others may be told what may be granted of the GPUs: before the Node was read, it is a guess."""
        label = self.label()
        return label is not None and applied(inventory, self.setting, label)[0] == inventory
