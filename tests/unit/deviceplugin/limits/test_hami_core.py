"""HAMi-core is mounted where it was supplied, and refused where it cannot work."""

from pathlib import Path

import pytest

from deviceplugin.cdi import ContainerEdits, Mount
from deviceplugin.limits.backend import PROVEN, LimitError
from deviceplugin.limits.hami_core import HamiCoreBackend
from testing.builders import make_gpu, make_grant, make_inventory
from testing.deviceplugin.limits import start_of
from tests.unit.deviceplugin import golden


@pytest.fixture
def backend(tmp_path: Path) -> HamiCoreBackend:
    (tmp_path / "libvgpu.so").write_bytes(b"\x7fELF...")
    (tmp_path / "ld.so.preload").write_text("/usr/local/vgpu/libvgpu.so\n", encoding="ascii")
    return HamiCoreBackend(directory=tmp_path)


def test_it_works_where_its_files_are(backend: HamiCoreBackend, tmp_path: Path) -> None:
    def why(backend: HamiCoreBackend) -> str:
        return backend.prove([make_gpu(0)])[make_gpu(0).uuid]

    assert why(backend) == PROVEN
    (tmp_path / "ld.so.preload").write_text("/usr/local/vgpu/libvgpu.so /lib/other.so", encoding="ascii")
    said = [why(backend)]
    (tmp_path / "libvgpu.so").write_bytes(b"<html>")
    said.append(why(backend))
    (tmp_path / "libvgpu.so").unlink()
    said += [why(backend), why(HamiCoreBackend(directory=None))]
    golden.compare("hami_core", (text.replace(str(tmp_path), "DIRECTORY") for text in said))


def test_a_container_gets_the_library_and_its_limit(backend: HamiCoreBackend, tmp_path: Path) -> None:
    start = start_of(grant=make_grant(0, 1, gib=3, compute_percent=20))
    edits = backend.prepare(start, start.gpus)
    each = [("CUDA_DEVICE_MEMORY_LIMIT", "3072m"), ("CUDA_DEVICE_SM_LIMIT", "20")]
    assert dict(edits.env) == {
        **{f"{name}{gpu}": value for name, value in each for gpu in ("", "_0", "_1")},
        "CUDA_DEVICE_MEMORY_SHARED_CACHE": "/usr/local/vgpu-cache/region",
        "CUDA_OVERSUBSCRIBE": "false",
        "CUDA_DISABLE_CONTROL": "false",
    }
    own = ("rw", "nosuid", "nodev", "noexec", "mode=1777", "size=16m")
    assert edits.mounts == (
        Mount(host_path=f"{tmp_path}/libvgpu.so", container_path="/usr/local/vgpu/libvgpu.so"),
        Mount(host_path=f"{tmp_path}/ld.so.preload", container_path="/etc/ld.so.preload"),
        Mount(host_path="tmpfs", container_path="/usr/local/vgpu-cache", options=own, kind="tmpfs"),
        Mount(host_path="tmpfs", container_path="/tmp/vgpulock", options=own, kind="tmpfs"),
    )


def test_of_shares_that_differ_the_smallest_counts_and_whole_gpus_need_no_library(backend: HamiCoreBackend) -> None:
    start = start_of(grant=make_grant(0, 1, gib=0, memory_percent=50), inventory=make_inventory(16, 8))
    assert dict(backend.prepare(start, start.gpus).env)["CUDA_DEVICE_MEMORY_LIMIT"] == "4096m"
    start = start_of(grant=make_grant(0, gib=15), image="alpine")
    assert backend.prepare(start, start.gpus) == ContainerEdits()


def test_images_without_glibc_are_refused_as_far_as_their_name_says(backend: HamiCoreBackend) -> None:
    for image in ("python:3.12-alpine", "gcr.io/distroless/static-debian12", "busybox", "x/MUSL:1"):
        with pytest.raises(LimitError, match=f"^image {image} of container main has no glibc, as its name says, and"):
            backend.prepare(start := start_of(0, image=image), start.gpus)


def test_a_part_of_a_containers_gpus_cannot_be_held_nor_anything_without_the_files(
    backend: HamiCoreBackend, tmp_path: Path
) -> None:
    start = start_of(0, 1, image="nvidia/cuda:12.4.0-base-ubuntu22.04")
    assert backend.prepare(start, start.gpus).mounts
    with pytest.raises(LimitError, match="holds the same limit on all GPUs of a container"):
        backend.prepare(start, start.gpus[:1])
    most, more = (start_of(grant=make_grant(*range(n)), inventory=make_inventory(*[15] * n)) for n in (16, 17))
    assert backend.prepare(most, most.gpus).mounts
    with pytest.raises(LimitError, match="at most on 16"):
        backend.prepare(more, more.gpus)
    (tmp_path / "ld.so.preload").unlink()
    with pytest.raises(LimitError, match=r"ld\.so\.preload cannot be read"):
        backend.prepare(start, start.gpus)
