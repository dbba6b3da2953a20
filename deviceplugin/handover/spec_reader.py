"""Reads the CDI specs that others have written on this node. The only user of YAML for them.

What lies in these directories is the container runtime's own input, so it is root's; but a broken or huge file must not
end this plugin, or delay a start.
"""

import logging
import os
import stat
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import orjson
import yaml

from deviceplugin.handover import share_name, vendor_spec
from deviceplugin.handover.vendor_spec import VendorSpec
from gpushare import names
from gpushare.errors import WireError
from gpushare.runtime import logs

_LOG: Final = logging.getLogger(__name__)
_LARGEST: Final = 1024 * 1024
_LARGEST_TOGETHER: Final = 8 * _LARGEST
"""Of the files that matter here: in memory they are ten times as large."""
_FILES: Final = 1024
"""Read of one directory; a DRA driver writes a file for each claim."""
_EVENTS: Final = 100_000
_DEEPEST: Final = 32
_Stamp = tuple[int, int, int]
_LOADER: Final[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(frozen=True, slots=True)
class _Read:
    stamp: _Stamp
    spec: VendorSpec | None
    """None if it is broken, or stands for something else."""
    opened: bool = True
    """Otherwise it is tried again."""

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return self.stamp[2]


@dataclass(kw_only=True)
class SpecReader:
    """Keeps what it has read until a file changes. Safe for use by many threads."""

    directories: Sequence[Path]
    """As the container runtime has them: what is in a later one counts more."""
    own: Path
    """Where this plugin writes."""
    _lock: threading.Lock = field(init=False, default_factory=threading.Lock)
    _known: dict[Path, _Read] = field(init=False, default_factory=dict)
    _many: dict[Path, int] = field(init=False, default_factory=dict)
    """How many files were in a directory of which not all are read, when that was logged."""

    def specs(self) -> Sequence[VendorSpec]:
        """NVIDIA's specs and those of others of this plugin's kind, those that count most first."""
        with self._lock:
            found: dict[Path, _Read] = {}
            left = _LARGEST_TOGETHER
            for path in self._paths():
                if (read := self._read(path)) is not None:
                    left -= read.size if read.spec else 0
                    found[path] = read if left >= 0 else replace(read, spec=None)
            self._known = found
        return [read.spec for read in found.values() if read.spec is not None]

    def _paths(self) -> Iterator[Path]:
        own = self.own.resolve()
        # /var/run is /run on most nodes, and what was written here must not look like another's.
        for directory in dict.fromkeys(each.resolve() for each in reversed(self.directories)):
            # Those of this plugin do not count: a tenant decides how many there are.
            listed = sorted(
                name for name in _listed(directory) if directory != own or not share_name.read_file_name(name)
            )
            if len(listed) > _FILES and self._many.get(directory) != len(listed):
                self._many[directory] = len(listed)
                logs.event(_LOG, "specs left out", level=logging.WARNING, directory=str(directory), files=len(listed))
            yield from (directory / name for name in listed[:_FILES])

    def _read(self, path: Path) -> _Read | None:
        """None for a file that is gone."""
        known, stamp = self._known.get(path), _stamp(path)
        if stamp is None or (known is not None and known.stamp == stamp and known.opened):
            return known if stamp else None
        try:
            spec = vendor_spec.read(_decoded(path), path)
            return _Read(stamp, spec if spec.is_nvidia or spec.kind == names.CDI_KIND else None)
        except (OSError, WireError) as error:
            opened = isinstance(error, WireError)
            if known is None or known.opened:
                logs.event(_LOG, "spec unreadable", level=logging.WARNING, path=str(path), error=str(error))
            return _Read(stamp, None, opened)


def _listed(directory: Path) -> Iterator[str]:
    try:
        with os.scandir(directory) as entries:
            yield from (entry.name for entry in entries if entry.name.endswith((".json", ".yaml")))
    except OSError:
        return


def _stamp(path: Path) -> _Stamp | None:
    try:
        found = path.stat()
    except OSError:
        return None
    # Of any change, also of owner and mode, which are reasons not to read it.
    return found.st_ino, found.st_ctime_ns, found.st_size


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
