"""Control groups of a cluster, in both kernel layouts.

A kubelet wants its ``cgroupRoot`` to exist beforehand: with version 1 in every hierarchy, with version 2 with the
controllers passed down.
"""

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

from localcluster import limits, process

ROOT = Path("/sys/fs/cgroup")


def is_unified() -> bool:
    """Whether the machine has version 2 only."""
    return (ROOT / "cgroup.controllers").exists()


def hierarchies() -> list[Path]:
    """Return the mount point of every hierarchy, once for those that are reachable under two names."""
    if is_unified():
        return [ROOT]
    return [path for path in sorted(ROOT.iterdir()) if path.is_dir() and not path.is_symlink()]


def create(group: str) -> None:
    """Create a group, given as a path such as ``gpushare180/node-1``, in every hierarchy."""
    for hierarchy in hierarchies():
        path = hierarchy
        for part in Path(group).parts:
            if is_unified():
                _pass_down(path)
            parent, path = path, path / part
            path.mkdir(exist_ok=True)
            _copy_cpuset(parent, path)


def remove(group: str) -> None:
    """Remove a group and all below it; its processes must have ended."""
    for hierarchy in hierarchies():
        top = hierarchy / group
        limit = time.monotonic() + limits.PROCESS_END_S
        # The kernel keeps a group busy for a moment after its last process is gone.
        while top.exists() and time.monotonic() < limit:
            for path in reversed(list(_tree(top))):
                with contextlib.suppress(OSError):
                    path.rmdir()
            if top.exists():
                time.sleep(0.05)
        if top.exists():
            raise process.ClusterError(f"control group {top} is still in use")


def pids(group: str) -> set[int]:
    """Return the processes in a group and all below it."""
    members: set[int] = set()
    for hierarchy in hierarchies():
        for path in _tree(hierarchy / group):
            with contextlib.suppress(OSError):
                members.update(int(line) for line in (path / "cgroup.procs").read_text().split())
    return members


def _tree(top: Path) -> Iterator[Path]:
    """A group and all below it, parents first; kubelets remove groups meanwhile, which `os.walk` passes over."""
    return (Path(directory) for directory, _, _ in os.walk(top))


def _copy_cpuset(parent: Path, child: Path) -> None:
    for name in ("cpuset.cpus", "cpuset.mems"):
        # A new version 1 group starts with no processors, and so refuses every process.
        if (parent / name).exists() and (child / name).exists() and not is_unified():
            (child / name).write_text((parent / name).read_text())


def _pass_down(path: Path) -> None:
    for controller in (path / "cgroup.controllers").read_text().split():
        # One that a real-time process or a full subtree blocks is no reason to go without the others.
        with contextlib.suppress(OSError):
            (path / "cgroup.subtree_control").write_text(f"+{controller}")
