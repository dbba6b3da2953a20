"""The files of CDI specs that this plugin writes for container runtimes.

A runtime loads what ends in .json or .yaml at every change, so a file gets such a name only when it is complete.
"""

import os
import secrets
import stat
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import orjson

from deviceplugin.edits import ContainerEdits
from deviceplugin.handover import share_name
from gpushare import names
from gpushare.errors import GpuShareError

_CDI_VERSION: Final = "0.5.0"
"""The oldest with all that is written here; runtimes refuse newer ones than they know."""
_TEMPORARY: Final = ".gpushare-"
MAX_FILES: Final = 16_384
"""Of a directory; what is beyond is not looked at. A node of 110 pods with 64 GPU containers each has half as many."""


class SpecFileError(GpuShareError):
    """A spec cannot be written or removed; the message says why."""


@dataclass(frozen=True, slots=True)
class SpecFile:
    """A file of this plugin."""

    uid: str
    """Of the pod."""
    name: str
    """Of the CDI device."""


@dataclass(frozen=True, slots=True)
class SpecFiles:
    """Specs in one directory. Safe for use by many threads; keeps no state of its own."""

    directory: Path

    def writable(self) -> bool:
        """Whether specs can be written at all."""
        try:
            found = self.directory.stat()
        except OSError:
            return False
        # A directory that was removed from the node stays mounted here, without any link to it, and takes no file.
        is_there = stat.S_ISDIR(found.st_mode) and found.st_nlink > 0
        return is_there and os.access(self.directory, os.W_OK | os.X_OK)

    def write(self, file: SpecFile, edits: ContainerEdits) -> None:
        """Make the device, in one step.

        Raises:
            SpecFileError: it was not made, and no earlier file of that name is left.
        """
        temporary = self.directory / f"{_TEMPORARY}{secrets.token_hex(8)}.tmp"
        try:
            # Only root reads it: it says which GPUs which pod has.
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            with open(descriptor, "wb") as stream:  # noqa: PTH123 - of a descriptor
                stream.write(_encode(file.name, edits))
            temporary.rename(self._path(file))
        except (OSError, ValueError) as error:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
            self.remove(file)
            raise SpecFileError(f"a CDI spec cannot be written to {self.directory} ({_cause(error)})") from error

    def remove(self, file: SpecFile) -> None:
        """Unmake the device, if it is there.

        Raises:
            SpecFileError: it is still there.
        """
        try:
            self._path(file).unlink(missing_ok=True)
        except (OSError, ValueError) as error:
            raise SpecFileError(
                f"the CDI spec of device {file.name} in {self.directory} cannot be removed ({_cause(error)})"
            ) from error

    def found(self) -> Iterator[SpecFile]:
        """The files of this plugin; none if the directory is not there."""
        for name in self._listed():
            if (read := share_name.read_file_name(name)) is not None:
                yield SpecFile(*read)

    def written_at(self, file: SpecFile) -> float:
        """When, as a POSIX timestamp; 0 if it is gone."""
        return _changed_at(self._path(file))

    def remove_unfinished(self, before: float) -> None:
        """Remove what was begun before a moment and never got its name; a process that is killed leaves such files."""
        for name in self._listed():
            path = self.directory / name
            if name.startswith(_TEMPORARY) and name.endswith(".tmp") and _changed_at(path) < before:
                with suppress(OSError):
                    path.unlink()

    def _listed(self) -> Iterator[str]:
        try:
            with os.scandir(self.directory) as entries:
                yield from (entry.name for entry, _ in zip(entries, range(MAX_FILES), strict=False))
        except OSError:
            return

    def _path(self, file: SpecFile) -> Path:
        return self.directory / share_name.file_name(file.uid, file.name)


def _encode(name: str, edits: ContainerEdits) -> bytes:
    document: Mapping[str, Any] = {
        "cdiVersion": _CDI_VERSION,
        "kind": names.CDI_KIND,
        "devices": [{"name": name, "containerEdits": edits.encode()}],
    }
    return orjson.dumps(document)


def _changed_at(path: Path) -> float:
    try:
        return path.lstat().st_mtime
    except OSError:
        return 0.0


def _cause(error: OSError | ValueError) -> str:
    return error.strerror or str(error) if isinstance(error, OSError) else str(error)
