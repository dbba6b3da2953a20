"""What is kept of the certificates, as a value: in the Secret, and in the files that each replica serves from."""

import base64
import binascii
import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Final, assert_never

import orjson

from certs import authority
from certs.authority import KeyPair
from certs.rotation import Action, Facts, Pair, Plan, SecretState
from gpushare import names
from gpushare.kube.api import JsonObject

ROTATE_ANNOTATION: Final = f"{names.DOMAIN}/rotate"
_VERSION: Final = 1
_EMPTY: Final = KeyPair(b"", b"")
_LINK: Final = "..data"
_MODES: Final = {"tls.crt": 0o644, "tls.key": 0o600, "ca.crt": 0o644}
_KEPT: Final = 2  # versions: the current one, and the one before for readers that opened half of it


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class SecretData:
    """The Secret's data, PEM. Without a repr, so that no log can show a key."""

    leaf: KeyPair = _EMPTY
    ca: KeyPair = _EMPTY
    others: tuple[bytes, ...] = ()  # further CA certificates of the bundle: old ones that still verify leaves in use
    next_ca: KeyPair | None = None
    since: datetime | None = None
    rotate: str = ""
    rotated: str = ""

    @property
    def bundle(self) -> bytes:
        """What belongs into caBundle; the CA in use comes first."""
        coming = (self.next_ca.certificate,) if self.next_ca else ()
        cas = (self.ca.certificate, *self.others, *coming)
        return b"".join(pem if pem.endswith(b"\n") else pem + b"\n" for pem in cas)


def state(contents: SecretData) -> SecretState:
    cas = (contents.ca.certificate, *contents.others)
    coming = contents.next_ca
    return SecretState(
        leaf=Pair(authority.read_certificate(contents.leaf.certificate, cas), authority.read_key(contents.leaf.key)),
        ca=_ca(contents.ca),
        next_ca=_ca(coming) if coming else None,
        others=len(contents.others),
        since=contents.since,
        rotate=contents.rotate,
        rotated=contents.rotated,
    )


def after(
    action: Action, before: SecretData, plan: Plan, *, served: SecretData, known: tuple[bytes, ...], now: datetime
) -> SecretData:
    """The contents after a step at `now`, which is aware; before it they are empty if there was no Secret.

    Adopt takes what is served, from this replica's files; Make keeps the known CA certificates, with which API servers
    may still verify.
    """
    match action:
        case Action.MAKE:
            made = replace(
                before, ca=authority.make_ca(now=now, life=plan.ca_life), next_ca=None, rotated=before.rotate
            )
            return _with_leaf(replace(made, others=_valid(known, now), since=now), plan, now)
        case Action.ADOPT:
            return replace(served, next_ca=None, since=None, rotate=before.rotate, rotated=before.rotated)
        case Action.ANNOUNCE:
            next_ca = authority.make_ca(now=now, life=plan.ca_life)
            return replace(before, next_ca=next_ca, since=None, rotated=before.rotate)
        case Action.UNCONFIRM:
            return replace(before, since=None)
        case Action.CONFIRM:
            return replace(before, since=now)
        case Action.SWITCH:
            if before.next_ca is None:
                raise ValueError("there is no next CA to switch to")
            others = _valid((before.ca.certificate, *before.others), now)
            return _with_leaf(replace(before, ca=before.next_ca, others=others, next_ca=None, since=now), plan, now)
        case Action.RENEW_LEAF:
            return _with_leaf(before, plan, now)
        case Action.RETIRE:
            return replace(before, others=(), since=None)
        case _:
            assert_never(action)


def from_secret(secret: JsonObject) -> SecretData:
    """Read a Secret. What cannot be decoded stays as it is, so that `rotation` reports it; nothing here fails."""
    annotations = (secret.get("metadata") or {}).get("annotations") or {}
    values = {key: decode(value) for key, value in (secret.get("data") or {}).items()}
    cas = authority.split(values.get("ca.crt", b""))
    coming = KeyPair(values.get("next-ca.crt", b""), values.get("next-ca.key", b""))
    since, rotated = _state(values.get("state.json", b""))
    normal = authority.split(coming.certificate)
    return SecretData(
        leaf=KeyPair(values.get("tls.crt", b""), values.get("tls.key", b"")),
        ca=KeyPair(cas[0] if cas else values.get("ca.crt", b""), values.get("ca.key", b"")),
        others=tuple(pem for pem in cas[1:] if pem not in normal),
        next_ca=coming if coming.certificate or coming.key else None,
        since=since,
        rotate=str(annotations.get(ROTATE_ANNOTATION, "")),
        rotated=rotated,
    )


def into_secret(contents: SecretData, secret: JsonObject) -> JsonObject:
    """A copy of the Secret with these contents; its metadata and foreign keys stay."""
    since = contents.since.isoformat() if contents.since else None
    coming = contents.next_ca or _EMPTY
    ours = {
        "tls.crt": contents.leaf.certificate,
        "tls.key": contents.leaf.key,
        "ca.crt": contents.bundle,
        "ca.key": contents.ca.key,
        "next-ca.crt": coming.certificate,
        "next-ca.key": coming.key,
        "state.json": orjson.dumps({"version": _VERSION, "since": since, "rotated": contents.rotated}),
    }
    foreign = {key: value for key, value in (secret.get("data") or {}).items() if key not in ours}
    data = {key: base64.b64encode(value).decode() for key, value in ours.items() if value}
    for required in ("tls.crt", "tls.key"):
        data.setdefault(required, "")  # the API server insists on them in a kubernetes.io/tls Secret
    return {**secret, "data": {**foreign, **data}}


def _ca(pair: KeyPair) -> Pair:
    return Pair(authority.read_ca(pair.certificate), authority.read_key(pair.key))


def _with_leaf(contents: SecretData, plan: Plan, now: datetime) -> SecretData:
    return replace(contents, leaf=authority.make_leaf(contents.ca, names=plan.names, now=now, life=plan.leaf_life))


def _valid(certificates: Iterable[bytes], now: datetime) -> tuple[bytes, ...]:
    read = ((pem, authority.read_ca(pem)) for pem in certificates)
    return tuple(pem for pem, facts in read if isinstance(facts, Facts) and now < facts.not_after)


def _state(encoded: bytes) -> tuple[datetime | None, str]:
    """Of a newer version, what this one knows; of garbage, nothing."""
    try:
        state = orjson.loads(encoded)
        since = state.get("since")
        stamp = datetime.fromisoformat(since) if since else None
        aware = stamp if stamp is None or stamp.tzinfo else None
        return aware, str(state.get("rotated") or "")
    except (ValueError, TypeError, AttributeError):
        return None, ""


def decode(value: object) -> bytes:
    """From base64; what is not stays as it is."""
    text = str(value).encode()
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        return text


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
        version = f"..v-{hashlib.sha256(repr(files).encode()).hexdigest()[:16]}"
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
