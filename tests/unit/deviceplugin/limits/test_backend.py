"""Variables by which frameworks limit themselves, and the back ends that only write them."""

from dataclasses import replace

import pytest

from deviceplugin.limits import backend
from deviceplugin.limits.backend import AdvisoryBackend, LimitedStart, LimitError, MigBackend
from gpushare.model.gpu import MigInstance
from testing.builders import make_gpu, make_grant, make_inventory
from testing.deviceplugin.limits import start_of

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
    assert backend.mps_variables(start, start.gpus) == (("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.1900"),)
    assert backend.mps_variables(start_of(variables=frozenset({"XLA_CLIENT_MEM_FRACTION"})), start.gpus) == ()
    assert backend.mps_variables(start_of(annotations={ANNOTATION: "cupy"}), start.gpus) == ()


def test_a_mig_instance_is_held_by_the_hardware_and_a_part_of_it_by_variables() -> None:
    instance = replace(make_gpu(0, 5), mig=MigInstance(gpu=0, number=0, profile="1g.5gb"))
    backend = MigBackend()
    assert backend.prove([instance, make_gpu(1)]) == {"GPU-0": "", "GPU-1": "it is not a MIG instance"}
    inventory = replace(make_inventory(), gpus=(instance,))
    assert backend.prepare(start_of(gib=5, inventory=inventory), (instance,)).env == ()
    assert dict(backend.prepare(start_of(gib=1, inventory=inventory), (instance,)).env)[JAX[0]] == "0.2000"
