"""What the device plugin asks the supervisor of the MPS daemon, and its answer: one JSON object and a line feed each.

The socket lies beside the directory that containers see, not in it. Pure apart from `ask`.
"""

import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import orjson

from deviceplugin.limits.backend import LimitError
from gpushare.errors import WireError

_MOST: Final = 64 * 1024


def socket_path(directory: Path) -> Path:
    """Where the supervisor listens."""
    return directory / "supervisor.sock"


def pipe_directory(directory: Path) -> Path:
    """What daemon and clients share; the same path for both, as MPS wants it."""
    return directory / "pipe"


@dataclass(frozen=True, slots=True)
class Status:
    """Of the daemon, after a command that it has just obeyed."""

    problem: str = ""
    """Why it does not work; empty if it does."""
    modes: Mapping[int, str] = field(default_factory=dict)
    """The compute mode of each GPU by NVML index, as nvidia-smi writes it."""


def encode_request(defaults: Mapping[int, int]) -> bytes:
    """Args: defaults: MiB that any process may use, by NVML index; GPUs that are not in it keep theirs."""
    return orjson.dumps({"defaults": {str(index): mib for index, mib in defaults.items()}}) + b"\n"


def decode_request(line: bytes) -> Mapping[int, int]:
    """The other way.

    Raises:
        WireError: it is no request.
    """
    try:
        return {int(index): int(mib) for index, mib in orjson.loads(line)["defaults"].items()}
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise WireError(f"not a request: {line[:200]!r}") from error


def encode_status(status: Status) -> bytes:
    """For the socket."""
    modes = {str(index): mode for index, mode in status.modes.items()}
    return orjson.dumps({"problem": status.problem, "modes": modes}) + b"\n"


def decode_status(line: bytes) -> Status:
    """The other way.

    Raises:
        WireError: it is no status.
    """
    try:
        read: Any = orjson.loads(line)
        return Status(str(read["problem"]), {int(index): str(mode) for index, mode in read["modes"].items()})
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise WireError(f"not a status: {line[:200]!r}") from error


def read_line(connection: socket.socket) -> bytes:
    """Up to a line feed or the peer's end. The socket's timeout counts for each piece."""
    line = b""
    while not line.endswith(b"\n") and len(line) < _MOST and (piece := connection.recv(_MOST)):
        line += piece
    return line


def ask(directory: Path, defaults: Mapping[int, int], *, timeout_s: float) -> Status:
    """Set these defaults, and find out whether the daemon works.

    Raises:
        LimitError: the supervisor does not answer.
    """
    path = socket_path(directory)
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(timeout_s)
            connection.connect(str(path))
            connection.sendall(encode_request(defaults))
            return decode_status(read_line(connection))
    except (OSError, WireError) as error:
        raise LimitError(
            f"the supervisor of the MPS daemon does not answer on {path} ({error}); is the DaemonSet gpushare-mps"
            " running on this node?"
        ) from error
