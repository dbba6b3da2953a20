"""Directories of CDI specs: writes this plugin's own, and reads those of others.

A runtime loads what ends in .json or .yaml at every change, so a file gets such a name only when it is complete. What
others write is the runtime's own input, so it is root's; but a broken or huge file must not end this plugin.
"""

import logging
import os
import re
import secrets
import stat
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any, Final

import orjson
import yaml

from deviceplugin import cdi
from deviceplugin.cdi import ContainerEdits, VendorSpec
from gpushare import names
from gpushare.errors import GpuShareError, WireError
from gpushare.runtime import logs

_LOG: Final = logging.getLogger(__name__)
_LARGEST: Final = 1024 * 1024
_LARGEST_TOGETHER: Final = 8 * _LARGEST  # of the files that matter here: in memory they are ten times as large
_FILES: Final = 1024  # read of one directory; a DRA driver writes a file for each claim
_EVENTS: Final = 100_000
_DEEPEST: Final = 32
_Stamp = tuple[int, int, int]  # inode, time of the last change, bytes
_LOADER: Final[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_CDI_VERSION: Final = "0.5.0"  # the oldest with all that is written here; runtimes refuse newer ones than they know
_UID: Final = re.compile(r"[0-9A-Za-z-]{1,64}")
_FILE: Final = re.compile(r"gpushare\.dev-share_([0-9A-Za-z-]{1,64})_(c[0-9a-f]{16}-[0-9a-f]{16})\.json")
_TEMPORARY: Final = ".gpushare-"
MAX_FILES: Final = 16_384  # looked at of a directory: twice those of 110 pods with 64 GPU containers each


class SpecFileError(GpuShareError):
    """A spec cannot be written or removed; the message says why."""


@dataclass(frozen=True, slots=True)
class SpecFile:
    """One of this plugin's; its name says whose it is."""

    uid: str  # of the pod
    device: str  # the name of the CDI device

    @property
    def name(self) -> str:
        """Raises ValueError: there is no such UID."""
        if not _UID.fullmatch(self.uid):
            raise ValueError(f"{self.uid!r:.100} is not the UID of a pod")
        return f"gpushare.dev-share_{self.uid}_{self.device}.json"

    @classmethod
    def of(cls, name: str) -> "SpecFile | None":
        """Read a name; None if it is another file's."""
        found = _FILE.fullmatch(name)
        return cls(found[1], found[2]) if found else None


@dataclass(frozen=True, slots=True)
class SpecFiles:
    """This plugin's specs in one directory. Safe for use by many threads."""

    directory: Path

    def writable(self) -> bool:
        try:
            found = self.directory.stat()
        except OSError:
            return False
        # A directory that was removed from the node stays mounted here, without any link to it, and takes no file.
        is_there = stat.S_ISDIR(found.st_mode) and found.st_nlink > 0
        return is_there and os.access(self.directory, os.W_OK | os.X_OK)

    def write(self, file: SpecFile, edits: ContainerEdits) -> None:
        """Make the device, in one step. May raise SpecFileError."""
        temporary = self.directory / f"{_TEMPORARY}{secrets.token_hex(8)}.tmp"
        try:
            # Only root reads it: it says which GPUs which pod has.
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            with open(descriptor, "wb") as stream:  # noqa: PTH123 - of a descriptor
                devices = [{"name": file.device, "containerEdits": edits.encode()}]
                stream.write(orjson.dumps({"cdiVersion": _CDI_VERSION, "kind": names.CDI_KIND, "devices": devices}))
            temporary.rename(self._path(file))
        except (OSError, ValueError) as error:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
            self.remove(file)
            raise SpecFileError(f"a CDI spec cannot be written to {self.directory} ({_cause(error)})") from error

    def remove(self, file: SpecFile) -> None:
        """Unmake the device, if it is there. Raises SpecFileError: it is still there."""
        try:
            self._path(file).unlink(missing_ok=True)
        except (OSError, ValueError) as error:
            raise SpecFileError(
                f"the CDI spec of device {file.device} in {self.directory} cannot be removed ({_cause(error)})"
            ) from error

    def found(self) -> Iterator[SpecFile]:
        yield from filter(None, map(SpecFile.of, self._listed()))

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
        return islice(_names_in(self.directory), MAX_FILES)

    def _path(self, file: SpecFile) -> Path:
        return self.directory / file.name


def _names_in(directory: Path) -> Iterator[str]:
    try:
        with os.scandir(directory) as entries:
            yield from (entry.name for entry in entries)
    except OSError:
        return


def _changed_at(path: Path) -> float:
    try:
        return path.lstat().st_mtime
    except OSError:
        return 0.0


def _cause(error: OSError | ValueError) -> str:
    return error.strerror or str(error) if isinstance(error, OSError) else str(error)


@dataclass(frozen=True, slots=True)
class _Read:
    stamp: _Stamp
    spec: VendorSpec | None  # None if it is broken, or stands for something else
    opened: bool = True  # otherwise it is tried again


@dataclass(kw_only=True)
class SpecReader:
    """Keeps what it has read until a file changes. Safe for use by many threads."""

    directories: Sequence[Path]  # as the container runtime has them: what is in a later one counts more
    own: Path  # where this plugin writes
    _lock: threading.Lock = field(init=False, default_factory=threading.Lock)
    _known: dict[Path, _Read] = field(init=False, default_factory=dict)
    _many: dict[Path, int] = field(init=False, default_factory=dict)  # files of a directory, when too many were logged

    def specs(self) -> Sequence[VendorSpec]:
        """NVIDIA's specs and those of others of this plugin's kind, those that count most first."""
        with self._lock:
            found: dict[Path, _Read] = {}
            left = _LARGEST_TOGETHER
            for path in self._paths():
                if (read := self._read(path)) is not None:
                    left -= read.stamp[2] if read.spec else 0
                    found[path] = read if left >= 0 else replace(read, spec=None)
            self._known = found
        return [read.spec for read in found.values() if read.spec is not None]

    def _paths(self) -> Iterator[Path]:
        own = self.own.resolve()
        # /var/run is /run on most nodes, and what was written here must not look like another's.
        for directory in dict.fromkeys(each.resolve() for each in reversed(self.directories)):
            # Those of this plugin do not count: a tenant decides how many there are.
            specs = (name for name in _names_in(directory) if name.endswith((".json", ".yaml")))
            listed = sorted(name for name in specs if directory != own or not SpecFile.of(name))
            if len(listed) > _FILES and self._many.get(directory) != len(listed):
                self._many[directory] = len(listed)
                logs.event(_LOG, "specs left out", level=logging.WARNING, directory=str(directory), files=len(listed))
            yield from (directory / name for name in listed[:_FILES])

    def _read(self, path: Path) -> _Read | None:
        known, stamp = self._known.get(path), _stamp(path)
        if stamp is None or (known is not None and known.stamp == stamp and known.opened):
            return known if stamp else None
        try:
            spec = cdi.read(_decoded(path), path)
            return _Read(stamp, spec if spec.is_nvidia or spec.kind == names.CDI_KIND else None)
        except (OSError, WireError) as error:
            opened = isinstance(error, WireError)
            if known is None or known.opened:
                logs.event(_LOG, "spec unreadable", level=logging.WARNING, path=str(path), error=str(error))
            return _Read(stamp, None, opened)


def _stamp(path: Path) -> _Stamp | None:
    with suppress(OSError):
        found = path.stat()
        return found.st_ino, found.st_ctime_ns, found.st_size  # of any change: a file of another owner may not be read
    return None


def _decoded(path: Path) -> Any:
    text = _text(path)
    try:
        return orjson.loads(text) if path.suffix == ".json" else _yaml(text)
    except (orjson.JSONDecodeError, yaml.YAMLError, ValueError, ArithmeticError, RecursionError) as error:
        raise WireError(f"not {path.suffix[1:].upper()} ({type(error).__name__})") from error


def _text(path: Path) -> bytes:
    # A pipe in the place of a file would keep an open waiting.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise WireError("not a regular file")
        if found.st_uid not in {0, os.geteuid()}:
            raise WireError(f"it belongs to user {found.st_uid}; if its content is right, run chown root on it")
        if found.st_mode & 0o022:
            raise WireError("users other than root may write to it; if its content is right, run chmod 0644 on it")
        with open(descriptor, "rb", closefd=False) as stream:
            text = stream.read(_LARGEST + 1)
    finally:
        os.close(descriptor)
    if len(text) > _LARGEST:
        raise WireError(f"larger than {_LARGEST} bytes")
    return text


def _yaml(text: bytes) -> Any:
    """Without aliases, which can stand for more than any memory holds, and tags, which make values of any string."""
    depth = 0
    for count, event in enumerate(yaml.parse(text, Loader=_LOADER)):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        tagged = getattr(event, "tag", None) is not None
        if tagged or isinstance(event, yaml.AliasEvent) or depth > _DEEPEST or count > _EVENTS:
            raise WireError(f"tags, aliases, more than {_DEEPEST} levels or more than {_EVENTS} values")
    return yaml.load(text, Loader=_LOADER)  # noqa: S506 - a safe loader
