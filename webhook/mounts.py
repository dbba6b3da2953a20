"""Ways to the GPUs of a node that a pod opens by its volumes. Pure."""

import posixpath
from collections.abc import Iterator, Mapping
from typing import Any, Final

from gpushare.wire.fields import JsonObject

_CHOICES: Final = ("/var/run/nvidia-container-devices", "/run/nvidia-container-devices")
"""NVIDIA's runtime can be told to take mounts below it for a choice of devices."""
_SOCKETS: Final = ("/var/lib/kubelet/device-plugins", "/var/lib/kubelet/pod-resources")
"""Directories in which the kubelet and the device plugins serve."""


def of_devices(container: Mapping[str, Any]) -> str | None:
    """A mount of a container that chooses devices."""
    paths = (str(each.get("mountPath") or "") for each in container.get("volumeMounts") or ())
    return next((path for path in paths if any(_is_in(_clean(path), root) for root in _CHOICES)), None)


def of_sockets(spec: JsonObject) -> Iterator[tuple[str, str]]:
    """Name and path of the volumes that hold the kubelet's sockets, or lie in one of their directories."""
    for volume in spec.get("volumes") or ():
        path = (volume.get("hostPath") or {}).get("path")
        if isinstance(path, str) and any(_is_in(_clean(path), root) or _is_in(root, _clean(path)) for root in _SOCKETS):
            yield str(volume.get("name")), path


def _is_in(path: str, directory: str) -> bool:
    return path == directory or path.startswith(directory.rstrip("/") + "/")


def _clean(path: str) -> str:
    return posixpath.normpath("/" + path.lstrip("/"))
