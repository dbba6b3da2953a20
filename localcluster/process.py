"""Child processes with a log file each, and waiting with a reason.

Every child starts in a session of its own, so that Ctrl-C in a terminal reaches only us and the tear-down stays in
order.
"""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from localcluster import limits
from localcluster.provision import ProvisionError

SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class ClusterError(RuntimeError):
    """The cluster did not do what it should; the message names the log to read."""


def clean_environment() -> dict[str, str]:
    """Return the environment for all children: no proxy and no Kubernetes settings of the caller."""
    return {"PATH": SYSTEM_PATH, "HOME": str(Path.home()), "LANG": "C.UTF-8"}


def run(argv: Sequence[str | Path], *, timeout_s: float = limits.COMMAND_S) -> str:
    """Run a short command to its end and return its output; failure carries what it said."""
    words = [str(word) for word in argv]
    done = subprocess.run(
        words, check=False, capture_output=True, text=True, timeout=timeout_s, env=clean_environment()
    )
    if done.returncode != 0:
        said = (done.stderr + done.stdout).strip()
        raise ClusterError(f"{' '.join(words)}: exit status {done.returncode}: {said}")
    return done.stdout


def children(pid: int) -> list[int]:
    """Return the process ids whose parent is the given one."""
    pids = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        # A process may end while we look at it.
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            # The command name, in parentheses, may hold spaces; the parent is the second field after it.
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
            if int(fields[1]) == pid:
                pids.append(int(entry.name))
    return pids


def wait_until(condition: Callable[[], bool], what: str, timeout_s: float, *watched: "Process") -> None:
    """Poll until the condition holds; a watched process that ended, or the time limit, is an error."""
    limit = time.monotonic() + timeout_s
    while not condition():
        for process in watched:
            process.check_alive()
        if time.monotonic() > limit:
            logs = ", ".join(str(process.log) for process in watched)
            raise ClusterError(f"{what}: not within {timeout_s:.0f} s; logs: {logs or 'none'}")
        time.sleep(0.05)


class Process:
    """One supervised child; it can be started again after it ended, and appends to the same log."""

    def __init__(
        self,
        name: str,
        argv: Sequence[str | Path],
        log: Path,
        *,
        wrapped: bool = False,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Describe the child.

        Args:
            name: What to call it in messages.
            argv: The command line.
            log: Where both of its outputs go.
            wrapped: Whether the command line begins with a wrapper that forks (nsenter into a process
                namespace): signals then go to the wrapper's child, for the wrapper would not pass them on.
            environment: Variables beside those of `clean_environment`.
        """
        self.name = name
        self.argv = [str(word) for word in argv]
        self.log = log
        self._wrapped = wrapped
        self._environment = {**clean_environment(), **(environment or {})}
        self._child: subprocess.Popen[bytes] | None = None
        self._pid: int | None = None

    @property
    def alive(self) -> bool:
        """Whether the child runs."""
        return self._child is not None and self._child.poll() is None

    @property
    def pid(self) -> int:
        """The process id, on the host, of the program itself."""
        if self._child is None:
            raise ClusterError(f"{self.name} was never started")
        if self._pid is None:
            self._pid = self._find_pid(self._child)
        return self._pid

    def _find_pid(self, child: subprocess.Popen[bytes]) -> int:
        if not self._wrapped:
            return child.pid
        pids: list[int] = []

        def forked() -> bool:
            pids[:] = children(child.pid)
            return bool(pids)

        wait_until(forked, f"{self.name}: wrapper forks", limits.MOUNTS_S, self)
        return pids[0]

    def start(self) -> None:
        """Start the child; a no-op if it runs."""
        if self.alive:
            return
        self._pid = None
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as output:
            self._child = subprocess.Popen(
                self.argv,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=self._environment,
                start_new_session=True,
                cwd="/",
            )

    def check_alive(self) -> None:
        """Raise with the end of the log if the child has ended."""
        if self._child is not None and self._child.poll() is not None:
            raise ClusterError(f"{self.name} ended with status {self._child.returncode}:\n{self.tail()}")

    def tail(self, lines: int = 15) -> str:
        """Return the last lines of the log."""
        if not self.log.exists():
            return f"(no {self.log})"
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the program; a no-op if it has ended."""
        if not self.alive:
            return
        try:
            os.kill(self.pid, number)
        except (ProcessLookupError, ClusterError):
            # It may end between the question and the signal; anything else is an error.
            wait_until(lambda: not self.alive, f"{self.name}: end", limits.PROCESS_END_S)

    def kill(self) -> None:
        """End the child at once, as a crash would."""
        self.signal(signal.SIGKILL)
        self._reap()

    def stop(self, grace_s: float = 5) -> None:
        """Ask the child to end, and kill it if it does not within the grace time."""
        self.signal(signal.SIGTERM)
        if self._child is None:
            return
        try:
            self._child.wait(grace_s)
        except subprocess.TimeoutExpired:
            self.kill()

    def _reap(self) -> None:
        if self._child is not None:
            self._child.wait(limits.PROCESS_END_S)


@contextlib.contextmanager
def timed(say: Callable[[str], None], what: str) -> Iterator[None]:
    """Say how long a step took."""
    started = time.monotonic()
    yield
    say(f"{what}: {time.monotonic() - started:.1f} s")


__all__ = ["ClusterError", "Process", "ProvisionError", "children", "clean_environment", "run", "timed", "wait_until"]
