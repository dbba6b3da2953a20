"""A reading of the GPUs -> the node's inventory, how much of it may be granted, and the latest for all who wait."""

import logging
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from deviceplugin.resources import Advertisement
from deviceplugin.source import GpuSourceError, RawGpu
from gpushare import names, units
from gpushare.identity import GpuUuid, NodeName
from gpushare.model.gpu import Gpu, GpuHealth, Limit, NodeInventory
from gpushare.model.selector import is_model
from gpushare.runtime import logs
from gpushare.units import MIB, MemoryUnit

_LOG: Final = logging.getLogger(__name__)
NOT_LISTED: Final = "the driver does not list it any more"
_ALL: Final = 100
_MODEL: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._/-]{0,63}")
_FIX: Final = "write a factor such as 1.5 for all GPUs, then MODEL=FACTOR for those of one model, with commas between"


def build(
    raw: Sequence[RawGpu],
    *,
    node: NodeName,
    unit: MemoryUnit,
    previous: NodeInventory | None = None,
    missing: str = NOT_LISTED,
) -> NodeInventory:
    """The inventory after one reading. Pure.

    A GPU of the previous inventory that the reading lacks stays listed as unhealthy, with `missing` as the cause: pods
    may hold it. It is forgotten once another GPU has taken its number. May raise GpuSourceError.
    """
    present = [_gpu(gpu).counted_in(unit) for gpu in raw]
    uuids, indices = {gpu.uuid for gpu in present}, {gpu.index for gpu in present}
    lost = [
        replace(gpu, health=GpuHealth.UNHEALTHY, reason=missing)
        for gpu in (previous.gpus if previous else ())
        if gpu.uuid not in uuids and gpu.index not in indices
    ]
    try:
        gpus = sorted([*present, *lost], key=lambda gpu: gpu.index)
        return NodeInventory(node=node, gpus=tuple(gpus), unit=unit)
    except ValueError as error:
        raise GpuSourceError(f"{error}; the GPU source is broken") from error


def _gpu(raw: RawGpu) -> Gpu:
    return Gpu(
        uuid=GpuUuid(raw.uuid),
        index=raw.index,
        model=raw.model,
        memory_mib=raw.memory_bytes // MIB,
        numa=raw.numa,
        health=GpuHealth.UNHEALTHY if raw.fault else GpuHealth.HEALTHY,
        reason=raw.fault,
        limit=Limit.MIG if raw.mig else Limit.ADVISORY,
        mig=raw.mig,
    )


def unusable(inventory: NodeInventory, why: str) -> NodeInventory:
    gpus = tuple(replace(gpu, health=GpuHealth.UNHEALTHY, reason=why) for gpu in inventory.gpus)
    return replace(inventory, gpus=gpus)


@dataclass(frozen=True, slots=True)
class Factors:
    """By how much GPUs are oversubscribed, by model; per cent of a GPU's memory."""

    other: int = _ALL  # of GPUs of all other models
    of_models: tuple[tuple[str, int], ...] = ()  # the first model that a GPU is of counts

    def of(self, gpu: Gpu) -> int:
        return next((percent for model, percent in self.of_models if is_model(gpu.model, model)), self.other)

    def __str__(self) -> str:
        """As `parse_factors` reads it."""
        models = [f"{model}={percent / 100:g}" for model, percent in self.of_models]
        return ",".join([f"{self.other / 100:g}", *models])


def parse_factors(text: str) -> Factors:
    """A factor for all GPUs, MODEL=FACTOR for some, or both with commas between them. May raise ValueError. Pure."""
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


def oversubscribed(inventory: NodeInventory, setting: Factors, label: str | None) -> tuple[NodeInventory, str]:
    """The inventory with what may be granted of each GPU, and why the label cannot be read; empty if it can. Pure.

    The same whatever was applied before. MIG instances are never oversubscribed. The label counts for all GPUs; a wrong
    one oversubscribes nothing, and until it was read (None) the setting counts: the kubelet has to know its devices.
    """
    factors, problem = setting, ""
    if label:
        try:
            factors = Factors(units.parse_factor(label))
        except ValueError as error:
            factors, problem = Factors(), f"label {names.LABEL_OVERSUBSCRIPTION} of the node: {error}"
    gpus = tuple(
        replace(gpu, extra_mib=0 if gpu.mig else gpu.memory_mib * (factors.of(gpu) - _ALL) // 100)
        for gpu in inventory.gpus
    )
    return replace(inventory, gpus=gpus), problem


@dataclass(frozen=True, slots=True, kw_only=True)
class Oversubscription:
    setting: Factors
    label: Callable[[], str | None]  # `gpushare.dev/oversubscription` of the Node; None until it was read
    _labels: logs.Changes = field(init=False, default_factory=lambda: logs.Changes(_LOG))

    def assess(self, inventory: NodeInventory) -> NodeInventory:
        found, problem = oversubscribed(inventory, self.setting, self.label())
        if problem:
            self._labels.say("label not read", level=logging.WARNING, problem=problem)
        else:
            self._labels.clear()
        return found

    def agrees(self, inventory: NodeInventory) -> bool:
        """Whether others may be told what may be granted of the GPUs: before the Node was read, it is a guess."""
        label = self.label()
        return label is not None and oversubscribed(inventory, self.setting, label)[0] == inventory


@dataclass(frozen=True, slots=True, kw_only=True)
class PostedInventory:
    version: int  # counts up with every change, from 1
    inventory: NodeInventory
    advertised: Mapping[str, Advertisement]  # by the name of the resource
    raw: Mapping[GpuUuid, RawGpu]  # the GPUs as their source describes them, those that it did not list excepted


class InventoryFeed:
    """The latest inventory: written by one thread, awaited by many. The lock is never held for long."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self.latest: PostedInventory | None = None

    def post(
        self, inventory: NodeInventory, advertised: Mapping[str, Advertisement], raw: Sequence[RawGpu] = ()
    ) -> None:
        with self._changed:
            version, of_raw = self.latest.version + 1 if self.latest else 1, {GpuUuid(gpu.uuid): gpu for gpu in raw}
            self.latest = PostedInventory(version=version, inventory=inventory, advertised=advertised, raw=of_raw)
            self._changed.notify_all()

    def wake(self) -> None:
        """Let all who wait look at their `over` again."""
        with self._changed:
            self._changed.notify_all()

    def newer(self, version: int, *, over: Callable[[], bool], seconds: float | None = None) -> PostedInventory | None:
        """The state after a version, 0 for any; None after so many seconds, or once `over`, asked at each `wake`."""
        with self._changed:
            self._changed.wait_for(lambda: over() or self._is_newer(version), seconds)
            return self.latest if self._is_newer(version) and not over() else None

    def _is_newer(self, version: int) -> bool:
        return self.latest is not None and self.latest.version > version
