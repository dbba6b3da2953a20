"""GPUs and their processes without hardware: from a YAML profile (`gpushare.wire.profile`) and a JSON file.

A fault comes after so many readings or seconds, counted from when the file was read, and stays until it recovers. `xid`
and `ecc` make a GPU unhealthy, `lost` takes it off the list. The file is read again when it changes.
"""

import logging
import random
import threading
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import orjson
import yaml

from deviceplugin import source
from deviceplugin.causes import NONE, Cause, Code
from deviceplugin.source import WITHOUT_INSTANCES, GpuProcess, GpuSourceError, Lists, RawGpu
from gpushare.errors import WireError
from gpushare.identity import GpuUuid, NodeName
from gpushare.model.gpu import LeftOut
from gpushare.runtime import logs
from gpushare.runtime.clock import Clock
from gpushare.units import MIB
from gpushare.wire import fields, profile
from gpushare.wire.profile import Fault, FaultKind, Profile

_LOG: Final = logging.getLogger(__name__)


@dataclass(kw_only=True)
class SimulatedSource:
    path: Path
    node: NodeName
    clock: Clock
    reserved: bool = False  # whether memory that the driver would keep for itself is shared too
    left_out: Sequence[LeftOut] = field(init=False, default=())
    _profile: Profile | None = field(init=False, default=None)
    _stamp: tuple[int, int, int] | None = field(init=False, default=None)
    _loaded_at: float = field(init=False)
    _polls: int = field(init=False)

    def read(self) -> Sequence[RawGpu]:
        current = self._load()
        gpus = [gpu for i in range(len(current.gpus)) for gpu in self._gpus(current, i)]
        without = [i for i in range(len(current.gpus)) if current.gpus[i].mig == ()]
        self.left_out = [LeftOut(index=i, reason=WITHOUT_INSTANCES) for i in without]
        self._polls += 1
        return gpus

    def wait(self, stop: threading.Event, seconds: float) -> None:
        self.clock.wait(stop, seconds)

    def close(self) -> None:
        """There is no library to give back."""

    def _load(self) -> Profile:
        try:
            stat = self.path.stat()
            stamp = (stat.st_mtime_ns, stat.st_ino, stat.st_size)
            if self._profile is not None and stamp == self._stamp:
                return self._profile
            self._stamp = stamp
            loaded = profile.parse(_yaml(self.path), self.node)
        except OSError as error:
            return self._fall_back(f"cannot be read ({error.strerror}); mount it or fix --gpu-source", error)
        except WireError as error:
            return self._fall_back(str(error), error)
        self._profile, self._loaded_at, self._polls = loaded, self.clock.monotonic(), 0
        return loaded

    def _fall_back(self, problem: str, cause: Exception) -> Profile:
        """A running plugin keeps the last good profile; one that never had a profile has nothing to show."""
        message = f"profile {self.path}: {problem}"
        if self._profile is None:
            self._stamp = None
            raise GpuSourceError(message) from cause
        logs.event(_LOG, "profile rejected", level=logging.WARNING, error=message)
        return self._profile

    def _gpus(self, current: Profile, index: int) -> Iterator[RawGpu]:
        hits = [fault for i, fault in enumerate(current.faults) if self._hits(current, i, fault, index)]
        for gpu in current.offered(self.node, index, reserved=self.reserved):
            number = gpu.mig.number if gpu.mig else None
            kinds = [fault.kind for fault in hits if fault.instance in {None, number}]
            if FaultKind.LOST in kinds:
                continue
            yield RawGpu(
                uuid=gpu.uuid,
                index=gpu.index,
                model=gpu.model,
                memory_bytes=gpu.memory_mib * MIB,
                numa=gpu.numa,
                simulated=True,
                fault=Cause(Code.SIMULATED, f"simulated {kinds[0].value}") if kinds else NONE,
                mig=gpu.mig,
            )

    def _hits(self, current: Profile, number: int, fault: Fault, index: int) -> bool:
        chosen = fault.gpu
        if chosen is None:
            # S311: a reproducible choice, no secret.
            chosen = random.Random(f"{current.seed}/{self.node}/fault {number}").randrange(len(current.gpus))  # noqa: S311
        if index != chosen or self.clock.monotonic() - self._loaded_at < fault.after_seconds:
            return False
        age = self._polls - fault.after_polls
        return age >= 0 and (fault.recovers_after_polls is None or age < fault.recovers_after_polls)


def _yaml(path: Path) -> Any:
    try:
        return yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f" at line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise WireError(f"not YAML{where}; check indentation and brackets") from error


@dataclass
class SimulatedProcesses:
    """Process lists from a JSON file that is read at every sample. See ProcessLists.

    {"processes": [{"gpu": "GPU-…", "pid": 4242, "memoryMiB": 1024}]}, with null where the driver would not say how
    much. No file: no processes. A GPU that stands in `"silent": ["GPU-…"]` does not answer.
    """

    path: Path | None  # None: there are no processes
    _problems: logs.Changes = field(init=False, default_factory=lambda: logs.Changes(_LOG))

    def read(self, gpus: Collection[GpuUuid]) -> Lists:
        """A file that cannot be read is a driver that does not answer."""
        if self.path is None:
            return dict.fromkeys(gpus, ())
        try:
            lists = _lists(self.path.read_bytes(), gpus)
        except FileNotFoundError:
            lists = dict.fromkeys(gpus, ())
        except (OSError, ValueError, WireError) as error:
            about = {"path": str(self.path), "error": str(error)}
            self._problems.say("processes unreadable", level=logging.WARNING, **about)
            return dict.fromkeys(gpus)
        self._problems.clear()
        return lists


def _lists(data: bytes, gpus: Collection[GpuUuid]) -> Lists:
    document = fields.an_object(orjson.loads(data), "")
    silent = fields.strings(document, "silent", "")
    found: dict[str, list[GpuProcess]] = {gpu: [] for gpu in gpus}
    for i, entry in enumerate(fields.objects(document, "processes", "")):
        path = f"processes[{i}]"
        mib = fields.optional_integer(entry, "memoryMiB", path)
        process = GpuProcess(fields.integer(entry, "pid", path, least=1), None if mib is None else mib * MIB)
        found.setdefault(fields.needed(entry, "gpu", path), []).append(process)
    return {gpu: None if gpu in silent else source.merged([found[gpu]]) for gpu in gpus}
