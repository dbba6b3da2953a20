"""The processes of the machine: which one has a PID, whose it is, and signals to exactly that one."""

import os
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Final

from deviceplugin import cgroups
from deviceplugin.usage.join import Process
from gpushare.runtime.clock import Clock

_LONGEST: Final = 65536  # bytes of one file: 12 hierarchies of version 1 with the longest paths
_MOST: Final = 4096  # processes that are read for one sample; a node runs far fewer on its GPUs
_STATE_TO_START: Final = 19  # fields of /proc/PID/stat from the state to the start time
TICKS: Final[int] = os.sysconf("SC_CLK_TCK")


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
            with self.hold(process.pid) as handle:
                if self.read(process.pid) != process:
                    return Sent.GONE
                self.signal(process.pid, handle, number)
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
        return Process(pid, started, cgroups.owner(cgroup))

    @contextmanager
    def hold(self, pid: int) -> Iterator[int | None]:
        """A pidfd, or ProcessLookupError; None before Linux 5.3, or where seccomp forbids it."""
        try:
            handle = os.pidfd_open(pid)
        except ProcessLookupError:
            raise
        except OSError:
            yield None
            return
        try:
            yield handle
        finally:
            os.close(handle)

    def signal(self, pid: int, handle: int | None, number: signal.Signals) -> None:
        """To the process behind a handle, or without one to that with this PID; ProcessLookupError if it has ended."""
        if handle is None:
            os.kill(pid, number)
        else:
            signal.pidfd_send_signal(handle, number)


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
