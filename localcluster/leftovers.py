"""Remove a cluster from the machine, also one whose owner was killed and could not.

Every process of a cluster is in its network namespace or in a process namespace whose first process is, so killing what
the network namespace holds ends them all. A small file per cluster, below /run, says what belongs to it.
"""

import contextlib
import dataclasses
import fcntl
import json
import os
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path

from localcluster import cgroups, limits, network, process

STATE = Path("/run/gpushare-clusters")
KERNEL_SETTINGS = ("vm/overcommit_memory", "kernel/panic", "kernel/panic_on_oops")
"""What every kubelet writes for the whole machine; put back when the last cluster goes."""


@dataclasses.dataclass(frozen=True)
class Owned:
    """What a cluster owns on the machine, as written before the first of it exists."""

    name: str
    workdir: Path
    keep: bool
    """Whether logs and kubeconfig stay after the end."""
    owner: int
    owner_started: str
    kernel_settings: dict[str, str]

    @property
    def path(self) -> Path:
        """The file that says so."""
        return STATE / f"{self.name}.json"

    @property
    def abandoned(self) -> bool:
        """Whether the process that started it is gone."""
        return start_time(self.owner) != self.owner_started


def record(name: str, workdir: Path, *, keep: bool) -> Owned:
    """Write down that this process starts a cluster."""
    others = existing()
    settings = others[0].kernel_settings if others else _kernel_settings()
    owned = Owned(name, workdir, keep, os.getpid(), start_time(os.getpid()), settings)
    STATE.mkdir(exist_ok=True)
    owned.path.write_text(json.dumps({**dataclasses.asdict(owned), "workdir": str(workdir)}))
    return owned


def existing() -> list[Owned]:
    """Return all clusters of this machine."""
    clusters = []
    for path in sorted(STATE.glob("*.json")):
        document = json.loads(path.read_text())
        clusters.append(Owned(**{**document, "workdir": Path(document["workdir"])}))
    return clusters


def remove(owned: Owned) -> None:
    """End all processes of a cluster and remove what it created; harmless if some of it is gone already."""
    end_processes(owned.name)
    # The interfaces first: with the namespace they would go too, but some time later.
    if Path("/sys/class/net", owned.name).exists():
        process.run(["ip", "link", "delete", owned.name])
    if (network.NAMESPACES / owned.name).exists():
        process.run(["ip", "netns", "delete", owned.name])
    cgroups.remove(owned.name)
    _remove_files(owned)
    owned.path.unlink(missing_ok=True)
    if not existing():
        for name, value in owned.kernel_settings.items():
            Path("/proc/sys", name).write_text(value)
        with contextlib.suppress(OSError):
            STATE.rmdir()


def remove_abandoned() -> list[str]:
    """Remove every cluster whose owner is gone, and say so of each; call with ``exclusive`` held.

    One that resists keeps its name and addresses, so it stands in no other cluster's way.
    """
    said = []
    for owned in existing():
        if owned.abandoned:
            try:
                remove(owned)
            except (process.ClusterError, OSError) as error:
                said.append(f"{owned.name}, which a killed process had left, cannot be removed: {error}")
            else:
                said.append(f"removed {owned.name}, which a killed process had left")
    return said


def end_processes(name: str) -> None:
    """Kill every process of a cluster, and wait until they are gone."""
    limit = time.monotonic() + limits.PROCESS_END_S
    while victims := _processes(name):
        if time.monotonic() > limit:
            raise process.ClusterError(f"processes of {name} do not end: {sorted(victims)}")
        for pid in victims:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)


def start_time(pid: int) -> str:
    """Return when a process began, in clock ticks since boot; a process id alone may be somebody else's by now."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (FileNotFoundError, ProcessLookupError):
        return ""


def _processes(name: str) -> set[int]:
    pids = cgroups.pids(name)
    if (network.NAMESPACES / name).exists():
        pids.update(int(line) for line in process.run(["ip", "netns", "pids", name]).split())
    return {pid for pid in pids if not _is_zombie(pid)}


def _is_zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def _remove_files(owned: Owned) -> None:
    if not owned.keep:
        shutil.rmtree(owned.workdir, ignore_errors=True)
        return
    for path in owned.workdir.glob("*"):
        if path.name == "control" or path.name.startswith("node-"):
            shutil.rmtree(path, ignore_errors=True)


def _kernel_settings() -> dict[str, str]:
    return {name: Path("/proc/sys", name).read_text().strip() for name in KERNEL_SETTINGS}


@contextlib.contextmanager
def exclusive() -> Iterator[None]:
    """Hold the lock under which clusters come and go."""
    with Path("/run/gpushare-clusters.lock").open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
