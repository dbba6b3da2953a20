"""Variables by which frameworks limit themselves, and the back ends that only write them."""

from dataclasses import replace

import pytest

from deviceplugin.limits import backend
from deviceplugin.limits.backend import AdvisoryBackend, LimitedStart, LimitError, MigBackend
from gpushare.model.allocation import Grant
from gpushare.model.gpu import MigInstance
from testing.builders import make_gpu, make_grant, make_inventory
from testing.deviceplugin.limits import start_of

ANNOTATION = "gpushare.dev/framework-variables"
JAX, PADDLE = ("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.2000"), ("FLAGS_gpu_memory_limit_mb", "3072")
CUPY = ("CUPY_GPU_MEMORY_LIMIT", str(3 * 1024**3))


def of(start: LimitedStart) -> tuple[tuple[str, str], ...]:
    return AdvisoryBackend().prepare(start, start.gpus).env


@pytest.mark.parametrize("grant", [make_grant(0, gib=3), make_grant(0, gib=0, memory_percent=20)])
def test_by_default_those_that_cannot_break_anything(grant: Grant) -> None:
    assert of(start_of(grant=grant)) == (JAX, PADDLE, CUPY)


@pytest.mark.parametrize(
    ("annotation", "expected"),
    [
        ("none", ()),
        ("jax", (JAX,)),
        ("paddle, jax", (PADDLE, JAX)),
        ("pytorch", (("PYTORCH_ALLOC_CONF", "per_process_memory_fraction:0.2000"),)),
    ],
)
def test_a_pod_may_choose(annotation: str, expected: tuple[tuple[str, str], ...]) -> None:
    assert of(start_of(gib=3, annotations={ANNOTATION: annotation})) == expected


@pytest.mark.parametrize("annotation", ["", "tensorflow", "jax,", "none,jax"])
def test_an_unknown_framework_is_named(annotation: str) -> None:
    with pytest.raises(LimitError, match="write none, or some of jax, paddle, cupy, pytorch, each once, with commas"):
        of(start_of(annotations={ANNOTATION: annotation}))


@pytest.mark.parametrize("name", ["XLA_PYTHON_CLIENT_MEM_FRACTION", "XLA_CLIENT_MEM_FRACTION"])
def test_jax_is_not_told_twice(name: str) -> None:
    assert of(start_of(variables=frozenset({name}))) == (PADDLE, CUPY)


def test_what_an_author_may_have_set_elsewhere_is_not_overwritten() -> None:
    assert of(start_of(open_env=True)) == ()


def test_a_whole_gpu_needs_none() -> None:
    assert of(start_of(grant=make_grant(0, gib=15))) == ()
    assert of(start_of(grant=make_grant(0, gib=0, whole=True))) == ()


def test_of_gpus_that_differ_none_is_exceeded() -> None:
    start = start_of(0, 1, gib=3, inventory=make_inventory(15, 30))
    assert dict(of(start))["XLA_PYTHON_CLIENT_MEM_FRACTION"] == "0.1000"


def test_fractions_are_rounded_down_but_never_to_nothing() -> None:
    assert dict(of(start_of(gib=5)))["XLA_PYTHON_CLIENT_MEM_FRACTION"] == "0.3333"
    tiny = start_of(grant=replace(make_grant(0), memory_mib=1))
    assert dict(of(tiny))["XLA_PYTHON_CLIENT_MEM_FRACTION"] == "0.0001"


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
    assert dict(backend.prepare(start_of(gib=1, inventory=inventory), (instance,)).env) == {
        "XLA_PYTHON_CLIENT_MEM_FRACTION": "0.2000",
        "FLAGS_gpu_memory_limit_mb": "1024",
        "CUPY_GPU_MEMORY_LIMIT": str(1024**3),
    }
