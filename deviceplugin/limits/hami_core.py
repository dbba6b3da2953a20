"""HAMi-core: a library that an administrator supplies; it holds dynamically linked programs, against mistakes only."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Final

from deviceplugin.causes import Cause, Code
from deviceplugin.cdi import ContainerEdits, Mount
from deviceplugin.limits.node import PROVEN, LimitedStart, LimitError, Proofs
from gpushare.model.gpu import Gpu, Limit

_LIBRARY: Final = "libvgpu.so"
_ELF: Final = b"\x7fELF"
_PRELOAD: Final = "ld.so.preload"
_IN_CONTAINER: Final = "/usr/local/vgpu/libvgpu.so"  # fixed in the library
_CACHE: Final = "/usr/local/vgpu-cache"
_LOCK: Final = "/tmp/vgpulock"  # noqa: S108 - fixed in the library; a mount of the container's own
_MEMORY: Final = ("rw", "nosuid", "nodev", "noexec", "mode=1777", "size=16m")
_MOST_GPUS: Final = 16
_NO_GLIBC: Final = re.compile(r"alpine|musl|busybox|distroless/static", re.IGNORECASE)  # in names of images


@dataclass(frozen=True, slots=True, kw_only=True)
class HamiCoreBackend:
    limit: ClassVar[Limit] = Limit.HAMI_CORE
    needs_edits: ClassVar[bool] = True
    directory: Path | None  # on the node, and at the same path here

    def prove(self, gpus: Sequence[Gpu]) -> Proofs:
        """Whether the library and its list are there: it works in containers only, so it cannot be tried here."""
        problem = self._problem()
        return dict.fromkeys([gpu.uuid for gpu in gpus], Cause(Code.LIBRARY, problem) if problem else PROVEN)

    def _problem(self) -> str:
        if self.directory is None:
            return "no library was supplied (--hami-core-dir)"
        try:
            with (self.directory / _LIBRARY).open("rb") as library:
                if library.read(len(_ELF)) != _ELF:
                    return f"{self.directory / _LIBRARY} is not a library"
            listed = (self.directory / _PRELOAD).read_text(encoding="utf-8", errors="replace").split()
        except OSError as error:
            return f"{error.filename} cannot be read ({error.strerror}); it has to be on the node and in this container"
        if listed != [_IN_CONTAINER]:
            return f"{self.directory / _PRELOAD} must name {_IN_CONTAINER} and nothing else"
        return PROVEN

    def prepare(self, start: LimitedStart, gpus: Sequence[Gpu]) -> ContainerEdits:
        if all(start.memory_mib(gpu) >= gpu.memory_mib for gpu in gpus):
            return ContainerEdits()
        if problem := self._problem() or _unfit(start, gpus):
            raise LimitError(problem)
        env = [
            *_on_each("CUDA_DEVICE_MEMORY_LIMIT", f"{min(map(start.memory_mib, gpus))}m", len(gpus)),
            ("CUDA_DEVICE_MEMORY_SHARED_CACHE", f"{_CACHE}/region"),
            # The pod's own values would switch it off.
            ("CUDA_OVERSUBSCRIBE", "false"),
            ("CUDA_DISABLE_CONTROL", "false"),
        ]
        if start.grant.compute_percent:
            env += _on_each("CUDA_DEVICE_SM_LIMIT", str(start.grant.compute_percent), len(gpus))
        return ContainerEdits(
            env=tuple(env),
            mounts=(
                Mount(host_path=f"{self.directory}/{_LIBRARY}", container_path=_IN_CONTAINER),
                Mount(host_path=f"{self.directory}/{_PRELOAD}", container_path=f"/etc/{_PRELOAD}"),
                Mount(host_path="tmpfs", container_path=_CACHE, options=_MEMORY, kind="tmpfs"),
                Mount(host_path="tmpfs", container_path=_LOCK, options=_MEMORY, kind="tmpfs"),
            ),
        )


def _on_each(name: str, value: str, gpus: int) -> list[tuple[str, str]]:
    """For all GPUs and for each: the pod's own value for one of them would beat that for all."""
    return [(name, value), *((f"{name}_{number}", value) for number in range(gpus))]


def _unfit(start: LimitedStart, gpus: Sequence[Gpu]) -> str:
    if _NO_GLIBC.search(start.image):
        return (
            f"image {start.image} of container {start.grant.container} has no glibc, as its name says, and"
            f" {_LIBRARY} needs glibc; use an image on Debian, Ubuntu or Red Hat's, or nodes with another limit"
        )
    if len(gpus) != len(start.gpus) or len(gpus) > _MOST_GPUS:
        return f"{_LIBRARY} holds the same limit on all GPUs of a container, and at most on {_MOST_GPUS}"
    return ""
