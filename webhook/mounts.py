"""Ways to the GPUs of a node that a pod opens by its volumes. Pure."""

import posixpath
from collections.abc import Iterator, Mapping
from typing import Any, Final

from gpushare.wire.fields import JsonObject

_CHOICES: Final = "nvidia-container-devices"
"""NVIDIA's runtime can be told to take mounts for a choice of devices whose path begins with /var/run and this name. It
needs no slash after it: `…-devicesall` chooses all. No one else has a use for the name."""
_SOCKETS: Final = ("/var/lib/kubelet/device-plugins", "/var/lib/kubelet/pod-resources")
"""Directories in which the kubelet and the device plugins serve."""
_SPECS: Final = ("/etc/cdi", "/var/run/cdi", "/run/cdi")
"""Directories from which the container runtime takes devices."""


def of_devices(container: Mapping[str, Any]) -> int | None:
    """Number of a container's first mount that chooses devices."""
    paths = (str(each.get("mountPath") or "") for each in container.get("volumeMounts") or ())
    return next((number for number, path in enumerate(paths) if _CHOICES in path), None)


def of_the_node(spec: JsonObject) -> Iterator[tuple[str, str, str]]:
    """Name and path of the volumes that hold what controls the node's GPUs, or lie in its directory, and what it is."""
    for volume in spec.get("volumes") or ():
        path = (volume.get("hostPath") or {}).get("path")
        if not isinstance(path, str):
            continue
        for roots, what in ((_SOCKETS, "the kubelet's sockets"), (_SPECS, "the node's CDI specs")):
            if any(_is_in(_clean(path), root) or _is_in(root, _clean(path)) for root in roots):
                yield str(volume.get("name")), path, what
                break


def _is_in(path: str, directory: str) -> bool:
    return path == directory or path.startswith(directory.rstrip("/") + "/")


def _clean(path: str) -> str:
    return posixpath.normpath("/" + path.lstrip("/"))
