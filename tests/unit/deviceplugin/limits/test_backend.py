"""What the back ends hand to containers, and what they refuse."""

from dataclasses import replace
from pathlib import Path

import pytest

from deviceplugin.cdi import ContainerEdits, Mount
from deviceplugin.limits.hami_core import HamiCoreBackend
from deviceplugin.limits.node import PROVEN, AdvisoryBackend, LimitedStart, LimitError, MigBackend, mps_variables
from gpushare.model.gpu import MigInstance
from testing.builders import make_gpu, make_grant, make_inventory
from testing.deviceplugin.limits import start_of
from tests.unit.deviceplugin import golden

ANNOTATION = "gpushare.dev/framework-variables"
JAX, PADDLE = ("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.2000"), ("FLAGS_gpu_memory_limit_mb", "3072")
CUPY = ("CUPY_GPU_MEMORY_LIMIT", str(3 * 1024**3))


PYTORCH = ("PYTORCH_ALLOC_CONF", "per_process_memory_fraction:0.2000")


def of(start: LimitedStart) -> tuple[tuple[str, str], ...]:
    return AdvisoryBackend().prepare(start, start.gpus).env


@pytest.mark.parametrize(
    ("start", "told"),
    [
        (start_of(grant=make_grant(0, gib=3)), (JAX, PADDLE, CUPY)),  # those that cannot break anything
        (start_of(grant=make_grant(0, gib=0, memory_percent=20)), (JAX, PADDLE, CUPY)),
        (start_of(annotations={ANNOTATION: "none"}), ()),
        (start_of(annotations={ANNOTATION: "jax"}), (JAX,)),
        (start_of(annotations={ANNOTATION: "paddle, jax"}), (PADDLE, JAX)),
        (start_of(annotations={ANNOTATION: "pytorch"}), (PYTORCH,)),
        (start_of(variables=frozenset({"XLA_PYTHON_CLIENT_MEM_FRACTION"})), (PADDLE, CUPY)),  # it is not told twice
        (start_of(variables=frozenset({"XLA_CLIENT_MEM_FRACTION"})), (PADDLE, CUPY)),
        (start_of(open_env=True), ()),  # an author may have set it elsewhere
        (start_of(grant=make_grant(0, gib=15)), ()),
        (start_of(grant=make_grant(0, gib=0, whole=True)), ()),
    ],
)
def test_frameworks_are_told_the_share_unless_the_author_has_chosen(
    start: LimitedStart, told: tuple[tuple[str, str], ...]
) -> None:
    assert of(start) == told


@pytest.mark.parametrize("annotation", ["", "tensorflow", "jax,", "none,jax"])
def test_an_unknown_framework_is_named(annotation: str) -> None:
    with pytest.raises(LimitError, match="write none, or some of jax, paddle, cupy, pytorch, each once, with commas"):
        of(start_of(annotations={ANNOTATION: annotation}))


def test_fractions_are_rounded_down_but_never_to_nothing_and_none_of_gpus_that_differ_is_exceeded() -> None:
    tiny = start_of(grant=replace(make_grant(0), memory_mib=1))
    unequal = start_of(0, 1, gib=3, inventory=make_inventory(15, 30))
    for start, fraction in ((start_of(gib=5), "0.3333"), (tiny, "0.0001"), (unequal, "0.1000")):
        assert dict(of(start))[JAX[0]] == fraction


def test_under_mps_only_jax_is_told_because_it_takes_a_part_of_the_whole_gpu() -> None:
    start = start_of(gib=3)
    assert mps_variables(start, start.gpus) == (("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.1900"),)
    assert mps_variables(start_of(variables=frozenset({"XLA_CLIENT_MEM_FRACTION"})), start.gpus) == ()
    assert mps_variables(start_of(annotations={ANNOTATION: "cupy"}), start.gpus) == ()


def test_a_mig_instance_is_held_by_the_hardware_and_a_part_of_it_by_variables() -> None:
    instance = replace(make_gpu(0, 5), mig=MigInstance(gpu=0, number=0, profile="1g.5gb"))
    backend = MigBackend()
    assert backend.prove([instance, make_gpu(1)]) == {"GPU-0": "", "GPU-1": "it is not a MIG instance"}
    inventory = replace(make_inventory(), gpus=(instance,))
    assert backend.prepare(start_of(gib=5, inventory=inventory), (instance,)).env == ()
    assert dict(backend.prepare(start_of(gib=1, inventory=inventory), (instance,)).env)[JAX[0]] == "0.2000"


@pytest.fixture
def hami_core(tmp_path: Path) -> HamiCoreBackend:
    (tmp_path / "libvgpu.so").write_bytes(b"\x7fELF...")
    (tmp_path / "ld.so.preload").write_text("/usr/local/vgpu/libvgpu.so\n", encoding="ascii")
    return HamiCoreBackend(directory=tmp_path)


def test_it_works_where_its_files_are(hami_core: HamiCoreBackend, tmp_path: Path) -> None:
    def why(hami_core: HamiCoreBackend) -> str:
        return hami_core.prove([make_gpu(0)])[make_gpu(0).uuid]

    assert why(hami_core) == PROVEN
    (tmp_path / "ld.so.preload").write_text("/usr/local/vgpu/libvgpu.so /lib/other.so", encoding="ascii")
    said = [why(hami_core)]
    (tmp_path / "libvgpu.so").write_bytes(b"<html>")
    said.append(why(hami_core))
    (tmp_path / "libvgpu.so").unlink()
    said += [why(hami_core), why(HamiCoreBackend(directory=None))]
    golden.compare("hami_core", (text.replace(str(tmp_path), "DIRECTORY") for text in said))


def test_a_container_gets_the_library_and_its_limit(hami_core: HamiCoreBackend, tmp_path: Path) -> None:
    start = start_of(grant=make_grant(0, 1, gib=3, compute_percent=20))
    edits = hami_core.prepare(start, start.gpus)
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


def test_of_shares_that_differ_the_smallest_counts_and_whole_gpus_need_no_library(hami_core: HamiCoreBackend) -> None:
    start = start_of(grant=make_grant(0, 1, gib=0, memory_percent=50), inventory=make_inventory(16, 8))
    assert dict(hami_core.prepare(start, start.gpus).env)["CUDA_DEVICE_MEMORY_LIMIT"] == "4096m"
    start = start_of(grant=make_grant(0, gib=15), image="alpine")
    assert hami_core.prepare(start, start.gpus) == ContainerEdits()


def test_images_without_glibc_are_refused_as_far_as_their_name_says(hami_core: HamiCoreBackend) -> None:
    for image in ("python:3.12-alpine", "gcr.io/distroless/static-debian12", "busybox", "x/MUSL:1"):
        with pytest.raises(LimitError, match=f"^image {image} of container main has no glibc, as its name says, and"):
            hami_core.prepare(start := start_of(0, image=image), start.gpus)


def test_a_part_of_a_containers_gpus_cannot_be_held_nor_anything_without_the_files(
    hami_core: HamiCoreBackend, tmp_path: Path
) -> None:
    start = start_of(0, 1, image="nvidia/cuda:12.4.0-base-ubuntu22.04")
    assert hami_core.prepare(start, start.gpus).mounts
    with pytest.raises(LimitError, match="holds the same limit on all GPUs of a container"):
        hami_core.prepare(start, start.gpus[:1])
    most, more = (start_of(grant=make_grant(*range(n)), inventory=make_inventory(*[15] * n)) for n in (16, 17))
    assert hami_core.prepare(most, most.gpus).mounts
    with pytest.raises(LimitError, match="at most on 16"):
        hami_core.prepare(more, more.gpus)
    (tmp_path / "ld.so.preload").unlink()
    with pytest.raises(LimitError, match=r"ld\.so\.preload cannot be read"):
        hami_core.prepare(start, start.gpus)
