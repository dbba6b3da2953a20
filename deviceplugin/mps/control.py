"""NVIDIA's MPS programs. Source: the MPS guide, "Appendix: Tools and Interface Reference"."""

import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from deviceplugin.mps import wire
from gpushare.errors import GpuShareError

EXCLUSIVE: Final = "Exclusive_Process"
_CONTROL: Final = "nvidia-cuda-mps-control"
_SMI: Final = "nvidia-smi"
_TIMEOUT_S: Final = 2.0
_SMI_TIMEOUT_S: Final = 30.0


class MpsError(GpuShareError):
    """One of NVIDIA's programs failed; the message says which, and how."""


@dataclass(frozen=True, slots=True)
class MpsControl:
    """Every call has a deadline, but `start`, which returns at once."""

    directory: Path
    shared_memory: Path = Path("/dev/shm")  # noqa: S108 - where CUDA looks for it

    @property
    def _environment(self) -> Sequence[str]:
        return (
            "env",
            f"CUDA_MPS_PIPE_DIRECTORY={wire.pipe_directory(self.directory)}",
            f"CUDA_MPS_LOG_DIRECTORY={self.directory / 'log'}",
            "CUDA_DEVICE_ORDER=PCI_BUS_ID",  # so that the daemon numbers GPUs as NVML does
        )

    def make_directories(self) -> None:
        """What the daemon needs. Every client may use the pipes, whatever its user is."""
        pipes, log = wire.pipe_directory(self.directory), self.directory / "log"
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
        """A command that changes nothing.

        Raises:
            MpsError: the daemon does not obey.
        """
        self._command("get_default_active_thread_percentage")

    def set_default(self, index: int, mib: int) -> None:
        """What a process may use that sets no limit itself or a larger one: in servers to come, and in running ones.

        Raises:
            MpsError: the daemon does not obey.
        """
        self._command(f"set_default_device_pinned_mem_limit {index} {mib}M")
        for server in self._command("get_server_list").split():
            if server.isdigit():
                self._command(f"set_device_pinned_mem_limit {server} {index} {mib}M")

    def end(self) -> None:
        """Ask the daemon to end.

        Raises:
            MpsError: it does not obey.
        """
        self._command("quit")

    def make_exclusive(self) -> None:
        """Let only the MPS server use GPUs: a program that does not reach it then fails, and is not unlimited.

        Raises:
            MpsError: the driver refuses.
        """
        _run([_SMI, f"--compute-mode={EXCLUSIVE.upper()}"], "", _SMI_TIMEOUT_S)

    def modes(self) -> Mapping[int, str]:
        """The compute mode of each GPU.

        Raises:
            MpsError: the driver does not say.
        """
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
