"""The files that each replica's server reads its certificates from."""

import hashlib
import os
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from certs import authority
from certs.authority import KeyPair
from certs.contents import SecretData

_LINK: Final = "..data"
_MODES: Final = {"tls.crt": 0o644, "tls.key": 0o600, "ca.crt": 0o644}
_KEPT: Final = 2  # versions: the current one, and the one before for readers that opened half of it


@dataclass(frozen=True, slots=True)
class FileStore:
    """A directory with tls.crt, tls.key and ca.crt, changed as one."""

    directory: Path

    def load(self) -> SecretData:
        files = {name: self._read(name) for name in _MODES}
        cas = authority.split(files["ca.crt"])
        return SecretData(
            leaf=KeyPair(files["tls.crt"], files["tls.key"]),
            ca=KeyPair(cas[0] if cas else files["ca.crt"], b""),
            others=cas[1:],
        )

    def save(self, wanted: SecretData) -> bool:
        """Make the directory hold this leaf and bundle. Whether anything changed.

        The files of a version are complete and on disk before the one link that all three names go through is replaced.
        """
        files = {"tls.crt": wanted.leaf.certificate, "tls.key": wanted.leaf.key, "ca.crt": wanted.bundle}
        if all(self._read(name) == content for name, content in files.items()):
            return False
        self.directory.mkdir(parents=True, exist_ok=True)
        version = _version(files)
        if not (self.directory / version).is_dir():
            self._write_version(version, files)
        _link(self.directory / _LINK, version)
        for name in files:
            if not (self.directory / name).is_symlink():
                _link(self.directory / name, f"{_LINK}/{name}")
        self._tidy(version)
        return True

    def _read(self, name: str) -> bytes:
        try:
            return (self.directory / name).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return b""

    def _write_version(self, version: str, files: Mapping[str, bytes]) -> None:
        fresh = Path(tempfile.mkdtemp(prefix="..new-", dir=self.directory))
        for name, content in files.items():
            descriptor = os.open(fresh / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _MODES[name])
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
        fresh.chmod(0o755)
        fresh.rename(self.directory / version)
        _sync(self.directory)

    def _tidy(self, current: str) -> None:
        versions = sorted(self.directory.glob("..v-*"), key=lambda path: path.stat().st_mtime_ns, reverse=True)
        old = [path for path in versions if path.name != current]
        for path in (*old[_KEPT - 1 :], *self.directory.glob("..new-*")):
            shutil.rmtree(path, ignore_errors=True)


def pair_paths(directory: Path) -> tuple[Path, Path]:
    """Certificate and key of one version, whatever happens to the link while they are read."""
    try:
        version = (directory / _LINK).resolve(strict=True)
    except OSError:
        version = directory
    return version / "tls.crt", version / "tls.key"


def _version(files: Mapping[str, bytes]) -> str:
    digest = hashlib.sha256()
    for name in sorted(files):
        digest.update(hashlib.sha256(files[name]).digest())
    return f"..v-{digest.hexdigest()[:16]}"


def _link(path: Path, target: str) -> None:
    """Make `path` a symbolic link; whatever it was is replaced in one step."""
    spare = path.with_name(f"..link-{path.name.lstrip('.')}")
    spare.unlink(missing_ok=True)
    spare.symlink_to(target)
    spare.replace(path)
    _sync(path.parent)


def _sync(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
