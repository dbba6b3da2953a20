"""Which pod and container a process belongs to, and where the cgroups of a pod and its containers are.

Paths are the kubelet's and the container runtime's: both cgroup versions, both cgroup drivers, any cgroup root.
A program in a container may make groups below its own one and name them as it likes, so the outermost pod counts.
"""

import os
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gpushare.identity import PodUid

MOUNT: Final = Path("/sys/fs/cgroup")
_UID: Final = r"([0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32})"
"""A static pod has the hash of its manifest: 32 digits."""
_KUBEPODS: Final = re.compile(r"(?:.*-)?kubepods(?:\.slice|[-.].*)?")
_POD: Final = re.compile(rf"(?:(?:.*-)?kubepods(?:-burstable|-besteffort)?-)?pod{_UID}(?:\.slice)?(?::[^:]*:(.*))?")
"""The last part is of a containerd that uses cgroupfs beside a kubelet that uses systemd."""
_CONTAINER: Final = re.compile(r"(?:(?!crio-conmon-)[a-z-]+-)?([0-9a-f]{64})(?:\.scope)?")
"""Not the group of CRI-O's monitor, which has the container's ID as well."""
_QOS: Final = ("", "burstable", "besteffort")  # A guaranteed pod has no level of its own
_DEPTH: Final = 4  # how deep a kubelet's cgroup root may lie below the mount
_V1: Final = ("unified", "memory", "devices", "pids", "systemd")
"""Hierarchies of version 1 in which runtimes make groups for containers; the first is version 2 beside it."""


@dataclass(frozen=True, slots=True)
class CgroupOwner:
    pod: PodUid  # with dashes, as the API has it; for a static pod the hash of its manifest
    container: str  # the runtime's ID, 64 hexadecimal digits; empty for a process of the pod that is in no container


def owner(text: str) -> CgroupOwner | None:
    """Whose process has this text in /proc/PID/cgroup. None: no pod's, or the hierarchies do not agree."""
    found = [who for line in text.splitlines() if (who := owner_of_path(line.split(":", 2)[-1])) is not None]
    pods = {who.pod for who in found}
    containers = {who.container for who in found if who.container}
    if len(pods) != 1 or len(containers) > 1:
        return None
    return CgroupOwner(pods.pop(), containers.pop() if containers else "")


def owner_of_path(path: str) -> CgroupOwner | None:
    """Whose the group at this path is.

    A reader in a cgroup namespace of its own sees the way from its own group: `/..` up to what both lie below, then
    names. For another pod of the same kubelet the first name may be its QoS level or the pod itself.
    """
    parts = iter(path.removesuffix(" (deleted)").split("/"))
    kubepods = beside = False
    for part in parts:
        kubepods = kubepods or _KUBEPODS.fullmatch(part) is not None
        if (kubepods or beside) and (pod := _POD.fullmatch(part)):
            uid = PodUid(pod[1].replace("_", "-"))
            ids = (_CONTAINER.fullmatch(below) for below in ([pod[2]] if pod[2] else parts))
            return CgroupOwner(uid, next((match[1] for match in ids if match), ""))
        beside = part == ".." or (beside and part in _QOS)
    return None


def hierarchies(mount: Path = MOUNT) -> tuple[Path, ...]:
    """The roots below which pods have groups, best first: one for version 2, several for version 1."""
    if (mount / "cgroup.controllers").exists():
        return (mount,)
    return tuple(mount / name for name in _V1 if (mount / name).is_dir())


def kubepods(directory: Path, depth: int = _DEPTH) -> tuple[Path, ...]:
    """The kubelets' groups in a hierarchy: usually one. Reads directories, so keep the answer."""
    found: list[Path] = []
    for child in _directories(directory):
        if child.name in {"kubepods", "kubepods.slice"} or child.name.endswith("-kubepods.slice"):
            found.append(child)
        elif depth > 1:
            found += kubepods(child, depth - 1)
    return tuple(found)


def pod_paths(base: Path, pod: PodUid) -> tuple[Path, ...]:
    """Where the group of a pod can be below the kubelet's group `base`, one path for each QoS level. Pure."""
    if base.suffix != ".slice":
        return tuple(base / level / f"pod{pod}" for level in _QOS)
    stem, name = base.name.removesuffix(".slice"), f"pod{pod.replace('-', '_')}.slice"
    return tuple(
        base / f"{stem}-{level}.slice" / f"{stem}-{level}-{name}" if level else base / f"{stem}-{name}"
        for level in _QOS
    )


def pod_directory(bases: tuple[Path, ...], pod: PodUid) -> Path | None:
    return next((path for base in bases for path in pod_paths(base, pod) if path.is_dir()), None)


def container_directories(pod: Path) -> Mapping[str, Path]:
    """The groups of a pod's containers by the runtime's ID, the pod's sandbox among them."""
    found = {child: _CONTAINER.fullmatch(child.name) for child in _directories(pod)}
    return {match[1]: path for path, match in found.items() if match}


def _directories(parent: Path) -> list[Path]:
    """Children that are there now: pods and containers end at any moment."""
    with suppress(OSError), os.scandir(parent) as entries:  # a group has many files: none of them is looked at
        return sorted(Path(entry.path) for entry in entries if entry.is_dir())
    return []
