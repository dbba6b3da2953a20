"""Variables by which frameworks limit themselves. Pure.

Each caps what one framework allocates in one process, and nothing else; a program may ignore or change them.
"""

from collections.abc import Mapping, Sequence
from enum import Enum
from types import MappingProxyType
from typing import Final

from deviceplugin.limits.backend import LimitedStart, LimitError
from gpushare import names
from gpushare.model.gpu import Gpu

_MIB: Final = 1024 * 1024
_NONE: Final = "none"
_MPS_USABLE: Final = 0.95
"""Under MPS, the context of a process counts against its limit: some hundred MiB."""


class Framework(Enum):
    """One that reads a limit from a variable."""

    JAX = "jax"
    PADDLE = "paddle"
    CUPY = "cupy"
    PYTORCH = "pytorch"


_DEFAULT: Final = (Framework.JAX, Framework.PADDLE, Framework.CUPY)
"""Without PyTorch, which ends with an error before 2.10 when it reads a key that it does not know."""
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


def frameworks(annotation: str | None) -> tuple[Framework, ...]:
    """Read the annotation `gpushare.dev/framework-variables`: names with commas between them, or `none`.

    Raises:
        LimitError: it names something else.
    """
    if annotation is None:
        return _DEFAULT
    words = [word.strip() for word in annotation.split(",")]
    known = {framework.value: framework for framework in Framework}
    if words == [_NONE]:
        return ()
    if not set(words) <= known.keys():
        raise LimitError(
            f"annotation {names.ANNOTATION_FRAMEWORK_VARIABLES}={annotation!r} names an unknown framework;"
            f" write {_NONE}, or some of {', '.join(known)} with commas between them"
        )
    return tuple(known[word] for word in words)


def whole_gpu_reported(start: LimitedStart, gpus: Sequence[Gpu]) -> tuple[tuple[str, str], ...]:
    """Names and values where CUDA reports the whole GPU and nothing else holds the limit."""
    wanted = frameworks(start.annotations.get(names.ANNOTATION_FRAMEWORK_VARIABLES))
    memory = min(map(start.memory_mib, gpus))
    share = _fraction(start, gpus)
    values = {
        Framework.JAX: share,
        Framework.PADDLE: str(memory),
        Framework.CUPY: str(memory * _MIB),
        Framework.PYTORCH: f"per_process_memory_fraction:{share}",
    }
    return tuple((NAMES[each][0], values[each]) for each in wanted if share and _is_free(start, each))


def mps(start: LimitedStart, gpus: Sequence[Gpu]) -> tuple[tuple[str, str], ...]:
    """Names and values under MPS, which holds the limit, but CUDA reports the whole GPU.

    Only for JAX, which takes three quarters of what is reported when it starts.
    """
    wanted = frameworks(start.annotations.get(names.ANNOTATION_FRAMEWORK_VARIABLES))
    share = _fraction(start, gpus, usable=_MPS_USABLE)
    is_wanted = Framework.JAX in wanted and share and _is_free(start, Framework.JAX)
    return ((NAMES[Framework.JAX][0], share),) if is_wanted else ()


def _is_free(start: LimitedStart, framework: Framework) -> bool:
    """Whether the pod's author has not decided himself, as far as that can be known."""
    return not start.open_env and start.variables.isdisjoint(NAMES[framework])


def _fraction(start: LimitedStart, gpus: Sequence[Gpu], *, usable: float = 1.0) -> str:
    """The part of each GPU, rounded down, so that no GPU's share is exceeded; empty for whole GPUs."""
    part = min(start.memory_mib(gpu) / gpu.memory_mib if gpu.memory_mib else 1.0 for gpu in gpus)
    return "" if part >= 1 else f"{max(int(part * usable * 10_000), 1) / 10_000:.4f}"
