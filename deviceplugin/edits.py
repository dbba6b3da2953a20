"""What a container gets beside its own configuration, in the terms of the CDI specification. Pure.

Source: https://github.com/cncf-tags/container-device-interface/blob/main/SPEC.md
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceNode:
    """A device in the container."""

    path: str
    host_path: str = ""
    """Empty: the same as in the container."""
    kind: str = ""
    """`c` or `b`. Empty, with major and minor: as the device on the host is."""
    major: int | None = None
    minor: int | None = None
    permissions: str = ""
    """Of r, w and m. Empty: rwm."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """A directory or file of the host in the container."""

    host_path: str
    container_path: str
    options: tuple[str, ...] = ("ro", "nosuid", "nodev", "bind")
    kind: str = ""
    """Of the file system; empty for a bind mount."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hook:
    """A program of the host that runs while the container is made."""

    name: str
    """When: prestart, createRuntime, createContainer, startContainer, poststart or poststop."""
    path: str
    arguments: tuple[str, ...] = ()
    """The first one is the program's name."""
    env: tuple[str, ...] = ()
    timeout_s: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerEdits:
    """Applied by the container runtime before the container is made."""

    env: tuple[tuple[str, str], ...] = ()
    """Names and values; they beat the pod's own, and later ones beat earlier ones."""
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
                "deviceNodes": [_device_node(node) for node in self.device_nodes],
                "mounts": [_mount(mount) for mount in self.mounts],
                "hooks": [_hook(hook) for hook in self.hooks],
            }
        )


def _device_node(node: DeviceNode) -> Mapping[str, Any]:
    return _without_empty(
        {
            "path": node.path,
            "hostPath": node.host_path,
            "type": node.kind,
            "major": node.major,
            "minor": node.minor,
            "permissions": node.permissions,
        }
    )


def _mount(mount: Mount) -> Mapping[str, Any]:
    return _without_empty(
        {
            "hostPath": mount.host_path,
            "containerPath": mount.container_path,
            "options": list(mount.options),
            "type": mount.kind,
        }
    )


def _hook(hook: Hook) -> Mapping[str, Any]:
    return _without_empty(
        {
            "hookName": hook.name,
            "path": hook.path,
            "args": list(hook.arguments),
            "env": list(hook.env),
            "timeout": hook.timeout_s,
        }
    )


def _without_empty(value: Mapping[str, Any]) -> Mapping[str, Any]:
    return {key: each for key, each in value.items() if each is not None and each not in ("", [])}
