"""NVIDIA's MPS daemon: its supervisor, a program, and how that is asked over a socket.

Source: MPS guide, "Tools and Interface Reference".
"""

import logging
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import orjson

from gpushare import names
from gpushare.errors import GpuShareError, SettingsError, WireError
from gpushare.runtime import logs, options, process
from gpushare.runtime.clock import Backoff, Clock, SystemClock
from gpushare.runtime.options import option

DIRECTORY: Final = Path("/run/gpushare/mps")
EXCLUSIVE: Final = "Exclusive_Process"
_LOG: Final = logging.getLogger(__name__)
_CONTROL: Final = "nvidia-cuda-mps-control"
_SMI: Final = "nvidia-smi"
_TIMEOUT_S: Final = 2.0
_SMI_TIMEOUT_S: Final = 30.0
_ASK_S: Final = 8.0  # the supervisor's own deadlines are shorter
_LONGEST_LINE: Final = 64 * 1024
_LOOK_S: Final = 0.5
_PEER_S: Final = 2.0
_END_S: Final = 3.0
_STABLE_S: Final = 60.0
_MODES_S: Final = 1.0  # for which compute modes are remembered: nvidia-smi takes its time


class MpsError(GpuShareError):
    """The daemon, or one of NVIDIA's programs, does not do what it was asked."""


@dataclass(frozen=True, slots=True)
class Status:
    """Of the daemon, after a command that it has just obeyed."""

    problem: str = ""  # why it does not work
    modes: Mapping[int, str] = field(default_factory=dict)  # of each GPU by NVML index, as nvidia-smi writes it


def socket_path(directory: Path) -> Path:
    return directory / "supervisor.sock"


def pipe_directory(directory: Path) -> Path:
    """What daemon and clients share; the same path for both, as MPS wants it."""
    return directory / "pipe"


def ask(directory: Path, defaults: Mapping[int, int]) -> Status:
    """Find out whether the daemon works. Raises MpsError: the supervisor does not answer.

    Args: defaults: to set, MiB that any process may use, by NVML index; GPUs that are not in it keep theirs.
    """
    path = socket_path(directory)
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(_ASK_S)
            connection.connect(str(path))
            connection.sendall(_line({"defaults": defaults}))
            return decode_status(read_line(connection))
    except (OSError, WireError) as error:
        raise MpsError(
            f"the supervisor of the MPS daemon does not answer on {path} ({error}); is the DaemonSet gpushare-mps"
            " running on this node?"
        ) from error


def decode_request(line: bytes) -> Mapping[int, int]:
    with _decoding("a request", line):
        return {int(index): int(mib) for index, mib in orjson.loads(line)["defaults"].items()}


def _line(message: Mapping[str, Any]) -> bytes:
    return orjson.dumps(message, option=orjson.OPT_NON_STR_KEYS | orjson.OPT_APPEND_NEWLINE)


def decode_status(line: bytes) -> Status:
    with _decoding("a status", line):
        read: Any = orjson.loads(line)
        return Status(str(read["problem"]), {int(index): str(mode) for index, mode in read["modes"].items()})


@contextmanager
def _decoding(what: str, line: bytes) -> Iterator[None]:
    try:
        yield
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise WireError(f"not {what}: {line[:200]!r}") from error


def read_line(connection: socket.socket) -> bytes:
    """Up to a line feed or the peer's end. The socket's timeout counts for each piece."""
    line = b""
    while not line.endswith(b"\n") and len(line) < _LONGEST_LINE and (piece := connection.recv(_LONGEST_LINE)):
        line += piece
    return line


@dataclass(frozen=True, slots=True)
class MpsControl:
    """NVIDIA's programs. Every call has a deadline, but `start`, which returns at once; all raise MpsError."""

    directory: Path
    shared_memory: Path = Path("/dev/shm")  # noqa: S108 - where CUDA looks for it

    @property
    def _environment(self) -> Sequence[str]:
        return (
            "env",
            f"CUDA_MPS_PIPE_DIRECTORY={pipe_directory(self.directory)}",
            f"CUDA_MPS_LOG_DIRECTORY={self.directory / 'log'}",
            "CUDA_DEVICE_ORDER=PCI_BUS_ID",  # so that the daemon numbers GPUs as NVML does
        )

    def make_directories(self) -> None:
        """What the daemon needs. Every client may use the pipes, whatever its user is."""
        pipes, log = pipe_directory(self.directory), self.directory / "log"
        for path, mode in ((pipes, 0o755), (log, 0o700), (self.shared_memory, 0o1777)):
            path.mkdir(parents=True, exist_ok=True)
            path.chmod(mode)

    def start(self) -> "subprocess.Popen[bytes]":
        """The daemon, as a child. One server serves all users: containers run as many."""
        command = [*self._environment, _CONTROL, "-f", "-multiuser-server"]
        try:
            return subprocess.Popen(command, stdin=subprocess.DEVNULL)  # noqa: S603 - NVIDIA's program, by its name
        except OSError as error:
            raise MpsError(f"{_CONTROL} cannot be started: {error}") from error

    def probe(self) -> None:
        self._command("get_default_active_thread_percentage")

    def set_default(self, index: int, mib: int) -> None:
        """What a process may use that sets no limit itself or a larger one: in servers to come, and in running ones."""
        self._command(f"set_default_device_pinned_mem_limit {index} {mib}M")
        for server in self._command("get_server_list").split():
            if server.isdigit():
                self._command(f"set_device_pinned_mem_limit {server} {index} {mib}M")

    def end(self) -> None:
        self._command("quit")

    def make_exclusive(self) -> None:
        """Let only the MPS server use GPUs: a program that does not reach it then fails, and is not unlimited."""
        _run([_SMI, f"--compute-mode={EXCLUSIVE.upper()}"], "", _SMI_TIMEOUT_S)

    def modes(self) -> Mapping[int, str]:
        output = _run([_SMI, "--query-gpu=index,compute_mode", "--format=csv,noheader"], "", _TIMEOUT_S)
        rows = (line.split(",") for line in output.splitlines())
        return {int(row[0]): row[1].strip() for row in rows if len(row) == 2 and row[0].strip().isdigit()}

    def _command(self, line: str) -> str:
        return _run([*self._environment, _CONTROL], f"{line}\n", _TIMEOUT_S)


def _run(command: Sequence[str], standard_input: str, timeout_s: float) -> str:
    what = " ".join(part for part in command if "=" not in part and part != "env")
    try:
        ended = subprocess.run(  # noqa: S603 - NVIDIA's programs, by their names
            command, input=standard_input, timeout=timeout_s, capture_output=True, text=True, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise MpsError(f"{what} {standard_input.strip()}: {error}") from error
    if ended.returncode:
        said = (ended.stderr or ended.stdout).strip()[:500]
        raise MpsError(f"{what} {standard_input.strip()}: exit code {ended.returncode}: {said}")
    return ended.stdout


@dataclass(kw_only=True)
class Supervisor:
    """Keeps the daemon running, and answers the device plugin: `run` and `serve` are two parts of one process."""

    control: MpsControl
    clock: Clock
    _lock: threading.Lock = field(init=False, default_factory=threading.Lock)
    _defaults: dict[int, int] = field(init=False, default_factory=dict)  # as the plugin wants them
    _set: dict[int, int] = field(init=False, default_factory=dict)  # as the daemon that runs now has them
    _modes: Mapping[int, str] = field(init=False, default_factory=dict)
    _modes_until: float = field(init=False, default=float("-inf"))

    def run(self, stop: threading.Event) -> None:
        backoff = Backoff(first_s=1.0, cap_s=30.0)
        while not stop.is_set():
            started = self.clock.monotonic()
            try:
                problem = self._run_once(stop)
            except (MpsError, OSError) as error:
                problem = str(error)
            if stop.is_set():
                return
            if self.clock.monotonic() - started >= _STABLE_S:
                backoff.reset()
            delay = backoff.next_s()
            logs.event(_LOG, "mps daemon ended", level=logging.ERROR, problem=problem, retry_s=delay)
            self.clock.wait(stop, delay)

    def _run_once(self, stop: threading.Event) -> str:
        self.control.make_directories()
        self.control.make_exclusive()
        with self._lock:
            self._set.clear()
        child = self.control.start()
        logs.event(_LOG, "mps daemon started", pid=child.pid)
        try:
            while not stop.is_set() and child.poll() is None:
                self.clock.wait(stop, _LOOK_S)
            return f"exit code {child.returncode}"
        finally:
            self._end(child)

    def _end(self, child: "subprocess.Popen[bytes]") -> None:
        """GPUs stay in exclusive mode: programs that still run must not become unlimited."""
        if child.poll() is None:
            with suppress(MpsError):
                self.control.end()
        for more in (child.terminate, child.kill):
            with suppress(subprocess.TimeoutExpired):
                child.wait(_END_S)
                return
            more()
        child.wait()

    def serve(self, stop: threading.Event) -> None:
        path = socket_path(self.control.directory)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(str(path))
            path.chmod(0o600)
            server.listen()
            server.settimeout(_LOOK_S)
            while not stop.is_set():
                with suppress(TimeoutError):
                    connection, _ = server.accept()
                    with connection:
                        self._answer(connection)
        path.unlink(missing_ok=True)

    def _answer(self, connection: socket.socket) -> None:
        try:
            connection.settimeout(_PEER_S)
            status = self.status(decode_request(read_line(connection)))
            connection.sendall(_line({"problem": status.problem, "modes": status.modes}))
        except (OSError, WireError) as error:
            logs.event(_LOG, "request not answered", level=logging.WARNING, error=str(error))

    def status(self, defaults: Mapping[int, int]) -> Status:
        """Set what is new of these defaults, and ask the daemon whether it obeys."""
        with self._lock:
            self._defaults |= defaults
            try:
                self.control.probe()
                for index, mib in self._defaults.items():
                    if self._set.get(index) != mib:
                        self.control.set_default(index, mib)
                        self._set[index] = mib
                now = self.clock.monotonic()
                if now >= self._modes_until:
                    self._modes, self._modes_until = self.control.modes(), now + _MODES_S
                return Status(modes=self._modes)
            except MpsError as error:
                return Status(problem=str(error))


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Run NVIDIA's MPS control daemon, for the limit mps."""

    mps_dir: Path = option(
        DIRECTORY, "directory of the daemon's pipes; the same on the node, here and in containers", parse=Path
    )
    log_level: str = options.log_level()


def main(argv: Sequence[str] | None = None) -> int:
    """Run until a signal: 0 after one, 1 if a part failed, 2 if it was started wrongly."""
    try:
        settings = options.load(Settings, sys.argv[1:] if argv is None else argv, prog=names.MPS)
    except SettingsError as error:
        sys.stderr.write(f"{names.MPS}: {error}\n")
        return 2
    logs.configure(level=settings.log_level)
    supervisor = Supervisor(control=MpsControl(settings.mps_dir), clock=SystemClock())
    return process.run({"daemon": supervisor.run, "socket": supervisor.serve}, grace_s=15.0)


if __name__ == "__main__":
    sys.exit(main())
