"""CDI specs: what a container gets beside its own configuration, written by this plugin or read of others. Pure.

Source: https://github.com/cncf-tags/container-device-interface/blob/main/SPEC.md. Whatever is in a file, nothing but
WireError comes out of here, and nothing larger than the bounds below.
"""

import posixpath
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields as fields_of
from pathlib import Path
from typing import Any, Final, TypeVar

from gpushare.errors import WireError
from gpushare.wire import fields
from gpushare.wire.fields import JsonObject

T = TypeVar("T")
_MOST: Final = 2048  # of anything in one list: a node with 8 GPUs of 7 instances each is some hundred device nodes
_LONGEST: Final = 4096  # characters of a string
_KIND: Final = re.compile(r"[A-Za-z][A-Za-z0-9._-]{0,252}/[A-Za-z][A-Za-z0-9_-]{0,252}")
_HOOKS: Final = frozenset({"prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop"})
_LARGEST_NUMBER: Final = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceNode:
    path: str
    host_path: str = ""  # empty: the same as in the container
    kind: str = ""  # `c` or `b`. Empty, with major and minor: as the device on the host is.
    major: int | None = None
    minor: int | None = None
    permissions: str = ""  # of r, w and m. Empty: rwm.


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    host_path: str
    container_path: str
    options: tuple[str, ...] = ("ro", "nosuid", "nodev", "bind")
    kind: str = ""  # of the file system; empty for a bind mount


@dataclass(frozen=True, slots=True, kw_only=True)
class Hook:
    """A program of the host that runs while the container is made."""

    name: str  # when: one of prestart, createRuntime, createContainer, startContainer, poststart and poststop
    path: str
    arguments: tuple[str, ...] = ()  # the first one is the program's name
    env: tuple[str, ...] = ()
    timeout_s: int | None = None


_KEYS: Final = {
    "host_path": "hostPath",
    "container_path": "containerPath",
    "kind": "type",
    "name": "hookName",
    "arguments": "args",
    "timeout_s": "timeout",
}
"""CDI's names of fields, where they differ."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerEdits:
    """Applied by the container runtime before the container is made."""

    env: tuple[tuple[str, str], ...] = ()  # names and values; they beat the pod's own, and later ones beat earlier ones
    device_nodes: tuple[DeviceNode, ...] = ()
    mounts: tuple[Mount, ...] = ()
    hooks: tuple[Hook, ...] = ()

    def merge(self, other: "ContainerEdits") -> "ContainerEdits":
        """Both; what is the same in both is there once, and the variables of the other one win."""
        return ContainerEdits(
            env=tuple({**dict(self.env), **dict(other.env)}.items()),
            device_nodes=tuple(dict.fromkeys((*self.device_nodes, *other.device_nodes))),
            mounts=tuple(dict.fromkeys((*self.mounts, *other.mounts))),
            hooks=tuple(dict.fromkeys((*self.hooks, *other.hooks))),
        )

    def encode(self) -> Mapping[str, Any]:
        """The object `containerEdits` of a CDI spec. What is empty is left out."""
        return _without_empty(
            {
                "env": [f"{name}={value}" for name, value in self.env],
                "deviceNodes": [_encoded(node) for node in self.device_nodes],
                "mounts": [_encoded(mount) for mount in self.mounts],
                "hooks": [_encoded(hook) for hook in self.hooks],
            }
        )


def _encoded(entry: DeviceNode | Mount | Hook) -> Mapping[str, Any]:
    values = {_KEYS.get(each.name, each.name): getattr(entry, each.name) for each in fields_of(entry)}
    return _without_empty({key: list(each) if isinstance(each, tuple) else each for key, each in values.items()})


def _without_empty(value: Mapping[str, Any]) -> Mapping[str, Any]:
    return {key: each for key, each in value.items() if each is not None and each not in ("", [])}


@dataclass(frozen=True, slots=True, kw_only=True)
class VendorSpec:
    path: Path
    kind: str  # vendor and class, such as nvidia.com/gpu
    common: ContainerEdits  # for every device of the file
    devices: Mapping[str, ContainerEdits]  # each device's own, by its name

    @property
    def is_nvidia(self) -> bool:
        """Whether GPUs can be looked up in it. Those of the DRA driver stand for claims, and are of another class."""
        vendor, _, kind = self.kind.partition("/")
        return (vendor == "nvidia.com" or vendor.endswith(".nvidia.com")) and kind in {"gpu", "mig"}


def read(document: Any, path: Path) -> VendorSpec:
    """One file's content, decoded from JSON or YAML. May raise WireError."""
    spec = fields.an_object(document, "")
    kind = _text(spec, "kind", "")
    if not _KIND.fullmatch(kind):
        raise WireError(f"kind: expected vendor/class, found {kind!r:.100}")
    entries = _bounded(fields.objects(spec, "devices", ""), "devices")
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


def _each(edits: Mapping[str, Any], key: str, path: str, read_one: Callable[[JsonObject, str], T]) -> tuple[T, ...]:
    where = fields.at(path, key)
    found = _bounded(fields.objects(edits, key, path), where)
    return tuple(read_one(entry, f"{where}[{i}]") for i, entry in enumerate(found))


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
        host_path=_short(fields.needed(entry, "hostPath", path), fields.at(path, "hostPath")),
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


def _texts(holder: Mapping[str, Any], key: str, path: str) -> Sequence[str]:
    where = fields.at(path, key)
    return [_short(each, where) for each in _bounded(fields.strings(holder, key, path), where)]


def _bounded(found: Sequence[T], path: str) -> Sequence[T]:
    if len(found) > _MOST:
        raise WireError(f"{path}: {len(found)} entries, more than {_MOST}")
    return found


def _text(holder: Mapping[str, Any], key: str, path: str) -> str:
    return _short(fields.text(holder, key, path), fields.at(path, key))


def _absolute(holder: Mapping[str, Any], key: str, path: str) -> str:
    where = fields.at(path, key)
    text = _short(fields.needed(holder, key, path), where)
    if not text.startswith("/"):
        raise WireError(f"{where}: expected an absolute path, found {text!r:.100}")
    return text


def _normal(path: str) -> str:
    return posixpath.normpath("/" + path.lstrip("/"))


def _short(value: str, path: str) -> str:
    if len(value) > _LONGEST or "\0" in value:
        raise WireError(f"{path}: a string of {len(value)} characters; expected at most {_LONGEST}, and no null")
    return value


def _number(holder: Mapping[str, Any], key: str, path: str) -> int | None:
    return None if holder.get(key) is None else fields.integer(holder, key, path, most=_LARGEST_NUMBER)
