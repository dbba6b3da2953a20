"""CDI specs that others have written: decoded JSON or YAML -> values. Pure.

Whatever is in a file, nothing but WireError comes out of here, and nothing larger than the bounds below.
"""

import posixpath
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from deviceplugin.edits import ContainerEdits, DeviceNode, Hook, Mount
from gpushare.errors import WireError
from gpushare.wire import fields

T = TypeVar("T")
_MOST: Final = 2048
"""Of anything in one list: a node with 8 GPUs of 7 instances each is some hundred device nodes."""
_LONGEST: Final = 4096
"""Characters of a string."""
_KIND: Final = re.compile(r"[A-Za-z][A-Za-z0-9._-]{0,252}/[A-Za-z][A-Za-z0-9_-]{0,252}")
_HOOKS: Final = frozenset({"prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop"})
_LARGEST_NUMBER: Final = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class VendorSpec:
    """One file."""

    path: Path
    kind: str
    """Vendor and class, such as nvidia.com/gpu."""
    common: ContainerEdits
    """For every device of the file."""
    devices: Mapping[str, ContainerEdits]
    """Each device's own, by its name."""

    @property
    def is_nvidia(self) -> bool:
        """Whether GPUs can be looked up in it: several programs of NVIDIA write such files, with vendors of their own.

        Those of the DRA driver stand for claims of pods, and are of another class.
        """
        vendor, _, kind = self.kind.partition("/")
        return (vendor == "nvidia.com" or vendor.endswith(".nvidia.com")) and kind in {"gpu", "mig"}


def read(document: Any, path: Path) -> VendorSpec:
    """One file's content.

    Raises:
        WireError: it is no CDI spec, or larger than any that this plugin has to read.
    """
    spec = fields.an_object(document, "")
    kind = _text(spec, "kind", "")
    if not _KIND.fullmatch(kind):
        raise WireError(f"kind: expected vendor/class, found {kind!r:.100}")
    entries = _objects(spec, "devices", "")
    devices = {_text(entry, "name", f"devices[{i}]"): _edits(entry, f"devices[{i}]") for i, entry in enumerate(entries)}
    if len(devices) < len(entries):
        raise WireError("devices: two with the same name")
    return VendorSpec(path=path, kind=kind, common=_edits(spec, ""), devices=devices)


def _edits(holder: Mapping[str, Any], path: str) -> ContainerEdits:
    edits, at = fields.mapping(holder, "containerEdits", path), fields.at(path, "containerEdits")
    return ContainerEdits(
        env=tuple(_variable(text, at) for text in _texts(edits, "env", at)),
        device_nodes=_each(edits, "deviceNodes", at, _device_node),
        mounts=_each(edits, "mounts", at, _mount),
        hooks=_each(edits, "hooks", at, _hook),
    )


def _each(
    edits: Mapping[str, Any], key: str, path: str, read_one: Callable[[Mapping[str, Any], str], T]
) -> tuple[T, ...]:
    where = fields.at(path, key)
    return tuple(read_one(entry, f"{where}[{i}]") for i, entry in enumerate(_objects(edits, key, path)))


def _variable(text: str, path: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise WireError(f"{path}.env: expected NAME=VALUE, found {text!r:.100}")
    return name, value


def _device_node(entry: Mapping[str, Any], path: str) -> DeviceNode:
    kind, permissions = _text(entry, "type", path), _text(entry, "permissions", path)
    if kind not in {"", "b", "c", "u", "p"}:
        raise WireError(f"{path}.type: expected b, c, u or p, found {kind!r:.100}")
    if not set(permissions) <= set("rwm"):
        raise WireError(f"{path}.permissions: expected letters of rwm, found {permissions!r:.100}")
    return DeviceNode(
        path=_normal(_absolute(entry, "path", path)),
        host_path=_normal(_absolute(entry, "hostPath", path)) if entry.get("hostPath") else "",
        kind=kind,
        major=_number(entry, "major", path),
        minor=_number(entry, "minor", path),
        permissions=permissions,
    )


def _mount(entry: Mapping[str, Any], path: str) -> Mount:
    return Mount(
        host_path=_needed(entry, "hostPath", path),
        container_path=_absolute(entry, "containerPath", path),
        options=tuple(_texts(entry, "options", path)),
        kind=_text(entry, "type", path),
    )


def _hook(entry: Mapping[str, Any], path: str) -> Hook:
    name = _text(entry, "hookName", path)
    if name not in _HOOKS:
        raise WireError(f"{path}.hookName: expected one of {', '.join(sorted(_HOOKS))}, found {name!r:.100}")
    return Hook(
        name=name,
        path=_absolute(entry, "path", path),
        arguments=tuple(_texts(entry, "args", path)),
        env=tuple(_texts(entry, "env", path)),
        timeout_s=_number(entry, "timeout", path),
    )


def _objects(holder: Mapping[str, Any], key: str, path: str) -> Sequence[Mapping[str, Any]]:
    return _bounded(fields.objects(holder, key, path), fields.at(path, key))


def _texts(holder: Mapping[str, Any], key: str, path: str) -> Sequence[str]:
    where = fields.at(path, key)
    return [_short(each, where) for each in _bounded(fields.strings(holder, key, path), where)]


def _bounded(found: Sequence[T], path: str) -> Sequence[T]:
    if len(found) > _MOST:
        raise WireError(f"{path}: {len(found)} entries, more than {_MOST}")
    return found


def _text(holder: Mapping[str, Any], key: str, path: str) -> str:
    return _short(fields.text(holder, key, path), fields.at(path, key))


def _needed(holder: Mapping[str, Any], key: str, path: str) -> str:
    return _short(fields.needed(holder, key, path), fields.at(path, key))


def _absolute(holder: Mapping[str, Any], key: str, path: str) -> str:
    text = _needed(holder, key, path)
    if not text.startswith("/"):
        raise WireError(f"{fields.at(path, key)}: expected an absolute path, found {text!r:.100}")
    return text


def _normal(path: str) -> str:
    return posixpath.normpath("/" + path.lstrip("/"))


def _short(value: str, path: str) -> str:
    if len(value) > _LONGEST or "\0" in value:
        raise WireError(f"{path}: a string of {len(value)} characters; expected at most {_LONGEST}, and no null")
    return value


def _number(holder: Mapping[str, Any], key: str, path: str) -> int | None:
    return None if holder.get(key) is None else fields.integer(holder, key, path, most=_LARGEST_NUMBER)
