"""The annotation `gpushare.dev/framework-variables`: which frameworks are told their share. Pure."""

from enum import Enum
from typing import Final


class Framework(Enum):
    """One that reads a limit from a variable."""

    JAX = "jax"
    PADDLE = "paddle"
    CUPY = "cupy"
    PYTORCH = "pytorch"


DEFAULT: Final = (Framework.JAX, Framework.PADDLE, Framework.CUPY)
"""Without PyTorch, which ends with an error before 2.10 when it reads a key that it does not know."""
_NONE: Final = "none"


def read(text: str | None) -> tuple[Framework, ...]:
    """Names with commas between them, or `none`; None for a pod without the annotation.

    Raises:
        ValueError: it names something else; the message says what to write.
    """
    if text is None:
        return DEFAULT
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
