"""A memory limit as the kubelet sets it for a container: a control group, in version 1 or 2, with the manifest's limit.

with groups.limited("webhook", groups.manifest_limit("gpushare-webhook", "webhook")) as group:
    process = subprocess.Popen(group.enter(argv))
    ...
    assert group.kills() == 0, group.report()
"""

import contextlib
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from localcluster import cgroups
from testing.manifests import tree

ROOT = Path(__file__).parents[2]
_SUFFIXES = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30}
_ENTER = 'echo $$ > "$0" && exec "$@"'


@dataclass(frozen=True, slots=True)
class MemoryGroup:
    """A group of processes that the kernel keeps below a limit, or kills."""

    directory: Path
    limit: int
    """In bytes; swap counts as well."""

    def enter(self, argv: Sequence[str]) -> list[str]:
        """A command line that starts the program inside the group; the process id is that of the program."""
        return ["/bin/sh", "-c", _ENTER, str(self.directory / "cgroup.procs"), *argv]

    def peak(self) -> int:
        """The most bytes so far, with page cache, which the kernel takes back before it kills. 0 if it is not known."""
        found = self._read("memory.peak") or self._read("memory.max_usage_in_bytes")
        return int(found or 0)

    def anonymous(self) -> int:
        """Bytes that the processes hold now and that cannot be taken back."""
        fields = _fields(self._read("memory.stat"))
        return fields["anon"] if "anon" in fields else fields["total_rss"]

    def kills(self) -> int:
        """Processes that the kernel has killed for memory."""
        return _fields(self._read("memory.events") or self._read("memory.oom_control")).get("oom_kill", 0)

    def report(self) -> str:
        """For the message of a failed test."""
        mib = 2**20
        return f"limit {self.limit // mib} MiB, peak {self.peak() // mib} MiB, killed {self.kills()}"

    def _read(self, name: str) -> str:
        path = self.directory / name
        return path.read_text() if path.exists() else ""


@contextlib.contextmanager
def limited(name: str, limit: int) -> Iterator[MemoryGroup]:
    """A group with this limit in bytes; its processes are killed at the end.

    Skips the test where no such group can be made.
    """
    group = f"gpushare-memory-{name}-{secrets.token_hex(4)}"
    try:
        try:
            cgroups.create(group)
            made = _limit(group, limit)
        except OSError as error:
            pytest.skip(f"memory limits need a memory control group (root on Linux): {error}")
        yield made
    finally:
        _end(group)


@contextlib.contextmanager
def program(workload: str, container: str, argv: Sequence[str], log: Path, **environ: str) -> Iterator["Program"]:
    """A container's program below its limit, ended with the block; its standard error goes to `log`."""
    with limited(container, manifest_limit(workload, container)) as group, log.open("wb") as output:
        command = group.enter([sys.executable, "-m", *argv])
        process = subprocess.Popen(command, cwd=ROOT, stderr=output, env={**os.environ, **environ})
        try:
            yield Program(process, group, log)
            assert group.kills() == 0, group.report()
        finally:
            process.kill()
            process.wait(20)


@dataclass(frozen=True)
class Program:
    process: subprocess.Popen[bytes]
    group: MemoryGroup
    log: Path

    def check(self) -> None:
        """It still runs."""
        assert self.process.poll() is None, f"{self.group.report()}\n{self.log.read_text()[-2000:]}"


def manifest_limit(workload: str, container: str) -> int:
    """The memory limit in bytes that the base manifests give a container."""
    specs = dict(tree.workloads(tree.installed()))
    [found] = [each for each in specs[workload]["containers"] if each["name"] == container]
    limit = found["resources"]["limits"]["memory"]
    return int(limit[:-2]) * _SUFFIXES[limit[-2:]]


def _limit(group: str, limit: int) -> MemoryGroup:
    """Raises: OSError: it cannot be limited."""
    if cgroups.is_unified():
        directory = cgroups.ROOT / group
        (directory / "memory.max").write_text(str(limit))
        swap, no_swap = directory / "memory.swap.max", "0"
    else:
        directory = cgroups.ROOT / "memory" / group
        (directory / "memory.limit_in_bytes").write_text(str(limit))
        swap, no_swap = directory / "memory.memsw.limit_in_bytes", str(limit)
    if swap.exists():  # it does not where the kernel counts no swap
        swap.write_text(no_swap)
    return MemoryGroup(directory, limit)


def _end(group: str) -> None:
    while running := cgroups.pids(group):
        for pid in running:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)
    cgroups.remove(group)


def _fields(text: str) -> dict[str, int]:
    return {key: int(value) for key, value in (line.split() for line in text.splitlines())}
