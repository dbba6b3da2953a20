"""Programs that allocate GPU memory in cgroups: what driver and kernel do about it, over the files of the stub.

The rules are those of the open kernel modules (`dmem`: a limit of any group above counts; `misc`: the nearest only,
and what was taken before there was one is free forever).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from testing.nvml import stub
from testing.nvml.stub import MIB, Stub


@dataclass
class Memory:
    """The GPUs' memory. Charges end with their cgroup."""

    stub: Stub
    mode: str
    _free: int = 0
    _held: dict[int, tuple[int, Path, int, Path | None]] = field(default_factory=dict)
    """By allocation: GPU, group of the process, bytes, group that is charged."""

    def __post_init__(self) -> None:
        self.stub.set({"limits": self.mode})

    def limits(self, gpu: int) -> Mapping[Path, int]:
        """Hard limits in bytes."""
        path = Path(f"{self.stub.control}.limits")
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        found: dict[Path, int] = {}
        for line in lines:
            device, inode, hard, cgroup = line.split(" ", 3)
            directory = Path(cgroup)
            if stub.gpu_of(device) == gpu and directory.is_dir() and directory.stat().st_ino == int(inode):
                found[directory] = int(hard)
        return found

    def allocate(self, gpu: int, cgroup: Path, mib: int) -> int | None:
        """Number of the allocation; None: out of memory."""
        limits, size = self.limits(gpu), mib * MIB
        above = [group for group in (cgroup, *cgroup.parents) if group in limits]
        counting = above if self.mode == "dmem" else above[:1]
        if any(self.charged(gpu, group) + size > limits[group] for group in counting):
            return None
        self._free += 1
        charged = cgroup if self.mode == "dmem" else next(iter(above), None)
        self._held[self._free] = (gpu, cgroup, size, charged)
        self._write()
        return self._free

    def free(self, allocation: int) -> None:
        del self._held[allocation]
        self._write()

    def end(self, cgroup: Path) -> None:
        """All programs of a group end."""
        self._held = {key: held for key, held in self._held.items() if held[1] != cgroup}
        self._write()

    def charged(self, gpu: int, group: Path) -> int:
        """Bytes that count against a group."""
        return sum(
            size
            for on, _, size, charged in self._held.values()
            if on == gpu and charged and (charged == group or (self.mode == "dmem" and group in charged.parents))
        )

    def used(self, gpu: int, group: Path) -> int:
        """MiB that programs in a group and below it really have."""
        sizes = (size for on, at, size, _ in self._held.values() if on == gpu and (at == group or group in at.parents))
        return sum(sizes) // MIB

    def _write(self) -> None:
        keys: dict[str, object] = {key: None for key in self.stub.keys if ".charge." in key}
        for gpu in range(int(str(self.stub.keys["gpus"]))):
            charges = [(size, charged) for on, _, size, charged in self._held.values() if on == gpu and charged]
            keys |= {f"{gpu}.charge.{i}": f"{size} {charged}" for i, (size, charged) in enumerate(charges, 1)}
        self.stub.set(keys)
