"""Which pod and container a process belongs to, where their cgroups are, and signals to exactly that process.

Paths are the kubelet's and the container runtime's: both cgroup versions, both cgroup drivers, any cgroup root.
A program in a container may make groups below its own one and name them as it likes, so the outermost pod counts.
"""

import os
import re
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Final

from gpushare.identity import PodUid
from gpushare.runtime.clock import Clock

MOUNT: Final = Path("/sys/fs/cgroup")
_UID: Final = r"([0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32})"
"""A static pod has the hash of its manifest: 32 digits."""
_KUBEPODS: Final = re.compile(r"(?:.*-)?kubepods(?:\.slice|[-.].*)?")
_POD: Final = re.compile(rf"(?:(?:.*-)?kubepods(?:-burstable|-besteffort)?-)?pod{_UID}(?:\.slice)?(?::[^:]*:(.*))?")
"""The last part is of a containerd that uses cgroupfs beside a kubelet that uses systemd."""
_CONTAINER: Final = re.compile(r"(?:(?!crio-conmon-)[a-z-]+-)?([0-9a-f]{64})(?:\.scope)?")
"""Not the group of CRI-O's monitor, which has the container's ID as well."""
_QOS: Final = ("", "burstable", "besteffort")  # A guaranteed pod has no level of its own
_DEPTH: Final = 4  # how deep a kubelet's cgroup root may lie below the mount
_V1: Final = ("unified", "memory", "devices", "pids", "systemd")
"""Hierarchies of version 1 in which runtimes make groups for containers; the first is version 2 beside it."""
_LONGEST: Final = 65536  # bytes of one file: 12 hierarchies of version 1 with the longest paths
_MOST: Final = 4096  # processes that are read for one sample; a node runs far fewer on its GPUs
_STATE_TO_START: Final = 19  # fields of /proc/PID/stat from the state to the start time
TICKS: Final[int] = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class CgroupOwner:
    pod: PodUid  # with dashes, as the API has it; for a static pod the hash of its manifest
    container: str  # the runtime's ID, 64 hexadecimal digits; empty for a process of the pod that is in no container


def owner(text: str) -> CgroupOwner | None:
    """Whose process has this text in /proc/PID/cgroup. None: no pod's, or the hierarchies do not agree."""
    found = [who for line in text.splitlines() if (who := owner_of_path(line.split(":", 2)[-1])) is not None]
    pods = {who.pod for who in found}
    containers = {who.container for who in found if who.container}
    if len(pods) != 1 or len(containers) > 1:
        return None
    return CgroupOwner(pods.pop(), containers.pop() if containers else "")


def owner_of_path(path: str) -> CgroupOwner | None:
    """Whose the group at this path is.

    A reader in a cgroup namespace of its own sees the way from its own group: `/..` up to what both lie below, then
    names. For another pod of the same kubelet the first name may be its QoS level or the pod itself.
    """
    parts = iter(path.removesuffix(" (deleted)").split("/"))
    kubepods = beside = False
    for part in parts:
        kubepods = kubepods or _KUBEPODS.fullmatch(part) is not None
        if (kubepods or beside) and (pod := _POD.fullmatch(part)):
            uid = PodUid(pod[1].replace("_", "-"))
            ids = (_CONTAINER.fullmatch(below) for below in ([pod[2]] if pod[2] else parts))
            return CgroupOwner(uid, next((match[1] for match in ids if match), ""))
        beside = part == ".." or (beside and part in _QOS)
    return None


def hierarchies(mount: Path = MOUNT) -> tuple[Path, ...]:
    """The roots below which pods have groups, best first: one for version 2, several for version 1."""
    if (mount / "cgroup.controllers").exists():
        return (mount,)
    return tuple(mount / name for name in _V1 if (mount / name).is_dir())


def kubepods(directory: Path, depth: int = _DEPTH) -> tuple[Path, ...]:
    """The kubelets' groups in a hierarchy: usually one. Reads directories, so keep the answer."""
    found: list[Path] = []
    for child in _directories(directory):
        if child.name in {"kubepods", "kubepods.slice"} or child.name.endswith("-kubepods.slice"):
            found.append(child)
        elif depth > 1:
            found += kubepods(child, depth - 1)
    return tuple(found)


def pod_paths(base: Path, pod: PodUid) -> tuple[Path, ...]:
    """Where the group of a pod can be below the kubelet's group `base`, one path for each QoS level. Pure."""
    if base.suffix != ".slice":
        return tuple(base / level / f"pod{pod}" for level in _QOS)
    stem, name = base.name.removesuffix(".slice"), f"pod{pod.replace('-', '_')}.slice"
    return tuple(
        base / f"{stem}-{level}.slice" / f"{stem}-{level}-{name}" if level else base / f"{stem}-{name}"
        for level in _QOS
    )


def pod_directory(bases: tuple[Path, ...], pod: PodUid) -> Path | None:
    return next((path for base in bases for path in pod_paths(base, pod) if path.is_dir()), None)


def container_directories(pod: Path) -> Mapping[str, Path]:
    """The groups of a pod's containers by the runtime's ID, the pod's sandbox among them."""
    found = {child: _CONTAINER.fullmatch(child.name) for child in _directories(pod)}
    return {match[1]: path for path, match in found.items() if match}


def _directories(parent: Path) -> list[Path]:
    """Children that are there now: pods and containers end at any moment."""
    with suppress(OSError), os.scandir(parent) as entries:  # a group has many files: none of them is looked at
        return sorted(Path(entry.path) for entry in entries if entry.is_dir())
    return []


@dataclass(frozen=True, slots=True)
class Process:
    """One process, told from every other that has its PID before or after it."""

    pid: int
    started: int  # clock ticks since the machine's start
    owner: CgroupOwner | None  # None: it belongs to no pod


class Sent(Enum):
    DONE = "done"
    GONE = "gone"  # the process has ended, or its PID is another's: no one was sent anything
    FAILED = "failed"  # it was not allowed


@dataclass
class Procfs:
    """Linux's /proc, of the process namespace in which this plugin runs."""

    root: Path = Path("/proc")

    def send(self, process: Process, number: signal.Signals) -> Sent:
        """A signal to this process, and to no other that has its PID by now, or is in another container."""
        try:
            with self.hold(process.pid) as kill:
                if self.read(process.pid) != process:
                    return Sent.GONE
                kill(number)
        except ProcessLookupError:
            return Sent.GONE
        except PermissionError:
            return Sent.FAILED
        return Sent.DONE

    def read(self, pid: int) -> Process | None:
        try:
            # All files are of one process: what is opened below the directory of one that has ended is gone.
            directory = os.open(self.root / str(pid), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                stat, cgroup = _text("stat", directory), _text("cgroup", directory)
            finally:
                os.close(directory)
            # The name of the program is in brackets, and may have brackets and blanks.
            started = int(stat.rpartition(")")[2].split()[_STATE_TO_START])
        except (OSError, ValueError, IndexError):
            return None
        return Process(pid, started, owner(cgroup))

    @contextmanager
    def hold(self, pid: int) -> Iterator[Callable[[signal.Signals], None]]:
        """What sends signals to the process that has this PID now, or raises ProcessLookupError.

        Before Linux 5.3, or where seccomp forbids it, to that which has it then.
        """
        try:
            handle = os.pidfd_open(pid)
        except ProcessLookupError:
            raise
        except OSError:
            yield partial(os.kill, pid)
            return
        try:
            yield partial(signal.pidfd_send_signal, handle)
        finally:
            os.close(handle)


def trusted_processes(
    since: Mapping[int, float], table: Procfs, clock: Clock, *, until: float
) -> Mapping[int, Process]:
    """The processes behind these PIDs that are older than the entries with these PIDs in the lists.

    A younger one may have got its PID from one that has ended: the driver lists the PID while a child has the memory,
    so a tenant could have it counted as another's. The clock counts from the machine's start, as start times do.
    """
    found: dict[int, Process] = {}
    for number, pid in enumerate(sorted(since)):
        if number >= _MOST or clock.monotonic() >= until:
            break
        process = table.read(pid)
        if process is not None and process.started < int(since[pid] * TICKS):
            found[pid] = process
    return found


def _text(name: str, directory: int) -> str:
    with open(name, "rb", opener=partial(os.open, dir_fd=directory)) as file:
        return file.read(_LONGEST).decode(errors="replace")
