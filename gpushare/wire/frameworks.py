"""The annotation that says which frameworks are told their limit by a variable, and these variables. Pure."""

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType
from typing import Final


class Framework(Enum):
    JAX = "jax"
    PADDLE = "paddle"
    CUPY = "cupy"
    PYTORCH = "pytorch"


DEFAULT_FRAMEWORKS: Final = (Framework.JAX, Framework.PADDLE, Framework.CUPY)
"""Without PyTorch, which ends with an error before 2.10 when it reads a key that it does not know."""
FRAMEWORK_VARIABLES: Final[Mapping[Framework, tuple[str, ...]]] = MappingProxyType(
    {
        # With both set, JAX ends with an error. The older one is read by all versions.
        Framework.JAX: ("XLA_PYTHON_CLIENT_MEM_FRACTION", "XLA_CLIENT_MEM_FRACTION"),
        Framework.PADDLE: ("FLAGS_gpu_memory_limit_mb",),
        Framework.CUPY: ("CUPY_GPU_MEMORY_LIMIT",),
        Framework.PYTORCH: ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"),
    }
)  # the variable that is written, and others that mean the same
VARIABLES: Final = frozenset(name for several in FRAMEWORK_VARIABLES.values() for name in several)  # all of them
_NONE: Final = "none"


def parse(text: str | None) -> tuple[Framework, ...]:
    """Names with commas between them, or `none`; None without the annotation. Raises ValueError with a fix."""
    if text is None:
        return DEFAULT_FRAMEWORKS
    words = [word.strip() for word in text.split(",")]
    if words == [_NONE]:
        return ()
    known = {framework.value: framework for framework in Framework}
    fix = f"write {_NONE}, or some of {', '.join(known)}, each once, with commas between them"
    if unknown := [word for word in words if word not in known]:
        raise ValueError(f"{unknown[0]!r:.80} is no framework that gpushare knows; {fix}")
    if len(set(words)) != len(words):
        raise ValueError(f"{text!r:.80} names a framework twice; {fix}")
    return tuple(known[word] for word in words)
