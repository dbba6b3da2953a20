"""Readings of the GPUs -> the node's inventory, how much of it may be granted, and the latest for all who wait."""

import logging
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from deviceplugin import resources
from deviceplugin.causes import Cause, Code
from deviceplugin.resources import Resource
from deviceplugin.source import GpuSource, GpuSourceError, OutdatedLibraryError, RawGpu
from gpushare import names, units
from gpushare.errors import SettingsError
from gpushare.identity import GpuUuid, NodeName
from gpushare.model.gpu import Gpu, GpuHealth, Limit, NodeInventory
from gpushare.model.request import is_model
from gpushare.runtime import logs
from gpushare.runtime.clock import Backoff, Clock
from gpushare.units import MIB, MemoryUnit

_LOG: Final = logging.getLogger(__name__)
NOT_LISTED: Final = Cause(Code.NOT_LISTED, "the driver does not list it any more")
_ALL: Final = 100
_MODEL: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._/-]{0,63}")
_DRIVER_S: Final = 30.0  # the longest time between two looks for a driver
_PATIENCE: Final = 3  # readings that may fail in a row before all GPUs count as unhealthy
_CONTAINER_S: Final = 20.0  # until a new container is needed: the runtime mounts the node's library when it makes one
_FIX: Final = "write a factor such as 1.5 for all GPUs, then MODEL=FACTOR for those of one model, with commas between"


def build(
    raw: Sequence[RawGpu],
    *,
    node: NodeName,
    unit: MemoryUnit,
    previous: NodeInventory | None = None,
    missing: Cause = NOT_LISTED,
) -> NodeInventory:
    """The inventory after one reading. Pure.

    A GPU of the previous inventory that the reading lacks stays listed as unhealthy, with `missing` as the cause: pods
    may hold it. It is forgotten once another GPU has taken its number. May raise GpuSourceError.
    """
    present = [_gpu(gpu).counted_in(unit) for gpu in raw]
    uuids, indices = {gpu.uuid for gpu in present}, {gpu.index for gpu in present}
    lost = [
        replace(gpu, health=GpuHealth.UNHEALTHY, reason=missing)
        for gpu in ((*previous.gpus, *previous.dra) if previous else ())
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
    raw: Mapping[GpuUuid, RawGpu]  # the GPUs as their source describes them, those that it did not list excepted


class InventoryFeed:
    """The latest inventory: written by one thread, awaited by many. The lock is never held for long."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self.latest: PostedInventory | None = None

    def post(self, inventory: NodeInventory, raw: Sequence[RawGpu] = ()) -> None:
        with self._changed:
            version, of_raw = self.latest.version + 1 if self.latest else 1, {GpuUuid(gpu.uuid): gpu for gpu in raw}
            self.latest = PostedInventory(version=version, inventory=inventory, raw=of_raw)
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


@dataclass(kw_only=True)
class HealthLoop:
    """Reads the source again and again, posts what changed, and ends when only a new process can read it."""

    source: GpuSource
    feed: InventoryFeed
    clock: Clock
    node: NodeName
    unit: MemoryUnit
    offered: Sequence[Resource]
    poll_s: float
    new_process_works: Callable[[], bool]  # whether a new process in this container can read the GPUs
    stages: Sequence[Callable[[NodeInventory], NodeInventory]] = ()  # what else the inventory says, one after another
    _current: NodeInventory | None = field(init=False, default=None)
    _failures: int = field(init=False, default=0)
    _outdated_since: float | None = field(init=False, default=None)
    _problems: logs.Changes = field(init=False, default_factory=lambda: logs.Changes(_LOG))

    @property
    def library_outdated(self) -> bool:
        """Whether this process has loaded the library of another driver than the node's, by the last reading."""
        return self._outdated_since is not None

    def run(self, stop: threading.Event) -> None:
        """Until `stop` is set, or `poll` gives up. A node without GPUs is asked again, not shown as empty."""
        backoff = Backoff(first_s=0.5, cap_s=_DRIVER_S)
        try:
            while not stop.is_set():
                if not self.poll():
                    return
                if self._current is None:
                    longest = self.poll_s if self.library_outdated else _DRIVER_S
                    self.clock.wait(stop, min(backoff.next_s(), longest))
                else:
                    self.source.wait(stop, self.poll_s)
        finally:
            self.source.close()

    def poll(self) -> bool:
        """Read once and post a change. False: the settings fit no GPUs, or only a new process can read them."""
        try:
            raw = self._read()
            latest = self._built(raw)
        except GpuSourceError as error:
            self._failures += 1
            self._problems.say("gpus unreadable", level=logging.ERROR, error=str(error))
            if isinstance(error, OutdatedLibraryError) and self._is_restart_due():
                logs.event(_LOG, "new process needed", level=logging.ERROR, error=str(error))
                return False
            if self._current is None or self._failures < _PATIENCE:
                return True
            raw = ()
            latest = self._built(raw, missing=error.reason)
        else:
            if self._failures:
                self._problems.clear()
            self._failures = 0
            self._outdated_since = None
        return latest == self._current or self._post(latest, raw)

    def _is_restart_due(self) -> bool:
        """At once if a new process would do better; else ending often would only make the kubelet wait ever longer."""
        now = self.clock.monotonic()
        if self._outdated_since is None:
            self._outdated_since = now
        return now - self._outdated_since >= _CONTAINER_S or self.new_process_works()

    def _read(self) -> Sequence[RawGpu]:
        raw = self.source.read()
        if not raw and self._current is None:
            reasons = "".join(f"; GPU {gpu.index}: {gpu.reason}" for gpu in self.source.left_out)
            raise GpuSourceError(
                f"there is no GPU that can be shared{reasons or '; run this plugin on GPU nodes only'}"
            )
        return raw

    def _built(self, raw: Sequence[RawGpu], missing: Cause = NOT_LISTED) -> NodeInventory:
        built = build(raw, node=self.node, unit=self.unit, previous=self._current, missing=missing)
        built = replace(built, left_out=tuple(self.source.left_out))
        for stage in self.stages:
            built = stage(built)
        return built

    def _post(self, latest: NodeInventory, raw: Sequence[RawGpu]) -> bool:
        try:
            memory, *_ = [resources.devices(latest, resource) for resource in self.offered]  # memory is the first
        except SettingsError as error:
            self._problems.say("gpus cannot be advertised", level=logging.ERROR, error=str(error))
            return self._current is not None
        self._current = latest
        self._problems.clear()
        self.feed.post(latest, raw)
        units: dict[str, Any] = {"healthy_units": len(memory.healthy), "unhealthy_units": len(memory.unhealthy)}
        faults = {gpu.uuid: gpu.reason for gpu in latest.gpus if gpu.reason}
        logs.event(_LOG, "gpus changed", gpus=len(latest.gpus), unit=latest.unit.name, **units, faults=faults)
        return True
