"""Variables by which frameworks limit themselves. Pure.

Each caps what one framework allocates in one process, and nothing else; a program may ignore or change them.
"""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from deviceplugin.limits.backend import LimitedStart, LimitError
from gpushare import names
from gpushare.model.gpu import Gpu
from gpushare.wire import selectors
from gpushare.wire.selectors import Framework

_MIB: Final = 1024 * 1024
_MPS_USABLE: Final = 0.95
"""Under MPS, the context of a process counts against its limit: some hundred MiB."""


NAMES: Final[Mapping[Framework, tuple[str, ...]]] = MappingProxyType(
    {
        # With both set, JAX ends with an error. The older one is read by all versions.
        Framework.JAX: ("XLA_PYTHON_CLIENT_MEM_FRACTION", "XLA_CLIENT_MEM_FRACTION"),
        Framework.PADDLE: ("FLAGS_gpu_memory_limit_mb",),
        Framework.CUPY: ("CUPY_GPU_MEMORY_LIMIT",),
        Framework.PYTORCH: ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"),
    }
)
"""The variable that is written, and others that mean the same."""
READ: Final = frozenset(name for several in NAMES.values() for name in several)
"""Variables of a container that matter here."""


def whole_gpu_reported(start: LimitedStart, gpus: Sequence[Gpu]) -> tuple[tuple[str, str], ...]:
    """Names and values where CUDA reports the whole GPU and nothing else holds the limit.

    Raises:
        LimitError: the pod names frameworks that are not known; so do all functions here.
    """
    return reported(start, gpus, lambda gpu: gpu.memory_mib)


def reported(start: LimitedStart, gpus: Sequence[Gpu], total_mib: Callable[[Gpu], int]) -> tuple[tuple[str, str], ...]:
    """Names and values where CUDA reports so many MiB of a GPU, and nothing holds the container to its part of them."""
    share = _fraction(start, gpus, total_mib)
    memory = min(map(start.memory_mib, gpus))
    values = {
        Framework.JAX: share,
        Framework.PADDLE: str(memory),
        Framework.CUPY: str(memory * _MIB),
        Framework.PYTORCH: f"per_process_memory_fraction:{share}",
    }
    return tuple((NAMES[each][0], values[each]) for each in _wanted(start) if share and _is_free(start, each))


def mps(start: LimitedStart, gpus: Sequence[Gpu]) -> tuple[tuple[str, str], ...]:
    """Names and values under MPS, which holds the limit, but CUDA reports the whole GPU.

    Only for JAX, which takes three quarters of what is reported when it starts.
    """
    share = _fraction(start, gpus, lambda gpu: gpu.memory_mib, usable=_MPS_USABLE)
    is_wanted = Framework.JAX in _wanted(start) and share and _is_free(start, Framework.JAX)
    return ((NAMES[Framework.JAX][0], share),) if is_wanted else ()


def _wanted(start: LimitedStart) -> tuple[Framework, ...]:
    try:
        return selectors.frameworks(start.annotations.get(names.ANNOTATION_FRAMEWORK_VARIABLES))
    except ValueError as error:
        raise LimitError(f"annotation {names.ANNOTATION_FRAMEWORK_VARIABLES}: {error}") from error


def _is_free(start: LimitedStart, framework: Framework) -> bool:
    """Whether the pod's author has not decided himself, as far as that can be known."""
    return not start.open_env and start.variables.isdisjoint(NAMES[framework])


def _fraction(start: LimitedStart, gpus: Sequence[Gpu], total_mib: Callable[[Gpu], int], *, usable: float = 1.0) -> str:
    """The part of each total, rounded down, so that no GPU's share is exceeded; empty where it is everything."""
    totals = [(start.memory_mib(gpu), total_mib(gpu)) for gpu in gpus]
    part = min(memory / total if total else 1.0 for memory, total in totals)
    return "" if part >= 1 else f"{max(int(part * usable * 10_000), 1) / 10_000:.4f}"
