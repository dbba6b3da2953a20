"""Process lists of simulated GPUs, from a JSON file that is read at every sample.

{"processes": [{"gpu": "GPU-…", "pid": 4242, "memoryMiB": 1024}]}, with null where the driver would not say how much. No
file: no processes. A GPU that stands in `"silent": ["GPU-…"]` does not answer.
"""

import logging
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import orjson

from deviceplugin.usage import join
from deviceplugin.usage.values import GpuProcess, Lists
from gpushare.errors import WireError
from gpushare.identity import GpuUuid
from gpushare.runtime import logs
from gpushare.wire import fields

_LOG: Final = logging.getLogger(__name__)
_MIB: Final = 1024 * 1024


@dataclass
class SimulatedProcesses:
    """Used by one thread."""

    path: Path | None
    """None: there are no processes."""
    _complaint: str = field(init=False, default="")

    def read(self, gpus: Collection[GpuUuid]) -> Lists:
        """The processes on these GPUs; a file that cannot be read is a driver that does not answer."""
        if self.path is None:
            return dict.fromkeys(gpus, ())
        try:
            lists = _lists(self.path.read_bytes(), gpus)
        except FileNotFoundError:
            lists = dict.fromkeys(gpus, ())
        except (OSError, ValueError, WireError) as error:
            if str(error) != self._complaint:
                logs.event(_LOG, "processes unreadable", level=logging.WARNING, path=str(self.path), error=str(error))
            self._complaint = str(error)
            return dict.fromkeys(gpus)
        self._complaint = ""
        return lists


def _lists(data: bytes, gpus: Collection[GpuUuid]) -> Lists:
    document = fields.an_object(orjson.loads(data), "")
    silent = fields.strings(document, "silent", "")
    found: dict[str, list[GpuProcess]] = {gpu: [] for gpu in gpus}
    for i, entry in enumerate(fields.objects(document, "processes", "")):
        path = f"processes[{i}]"
        mib = fields.optional_integer(entry, "memoryMiB", path)
        process = GpuProcess(fields.integer(entry, "pid", path, least=1), None if mib is None else mib * _MIB)
        found.setdefault(fields.needed(entry, "gpu", path), []).append(process)
    return {gpu: None if gpu in silent else join.merged([found[gpu]]) for gpu in gpus}
