"""Whether the machine has enough inotify instances; five clusters of two nodes use up what Linux allows by default."""

import contextlib
import os
from pathlib import Path
from typing import Final

from localcluster.process import ClusterError

SETTING: Final = "fs.inotify.max_user_instances"
OF_NODE: Final = 10
OF_CONTROL_PLANE: Final = 4
"""Instances that root's processes hold: a node's kubelet, containerd and shims; kube-apiserver and the others."""


def check(nodes: int, proc: Path = Path("/proc")) -> None:
    """Raise if too few are left for so many nodes; a kubelet would end with "too many open files" of its cAdvisor."""
    limit = int((proc / "sys" / SETTING.replace(".", "/")).read_text())
    used = in_use(proc)
    needed = OF_CONTROL_PLANE + nodes * OF_NODE
    if used + needed > limit:
        raise ClusterError(
            f"a cluster of {nodes} nodes needs about {needed} inotify instances, but {used} of this machine's {limit} "
            f"are in use; end other clusters (python -m localcluster down), or raise the limit: "
            f"sysctl -w {SETTING}={max(512, 2 * (used + needed))}"
        )


def in_use(proc: Path = Path("/proc")) -> int:
    """How many instances the processes of this user hold; the limit is for each user."""
    instances = 0
    for process in proc.glob("[0-9]*"):
        # Processes and their files come and go meanwhile.
        with contextlib.suppress(OSError):
            if process.stat().st_uid == os.geteuid():
                instances += sum(_is_instance(file) for file in (process / "fd").iterdir())
    return instances


def _is_instance(file: Path) -> bool:
    try:
        return str(file.readlink()) == "anon_inode:inotify"
    except OSError:
        return False
