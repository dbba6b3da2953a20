"""The door to `pynvml`."""

from typing import Any


def library() -> Any:
    """The binding. Imported late: a plugin with simulated GPUs needs none."""
    import pynvml

    return pynvml


def text(value: str | bytes) -> str:
    """A string of the library: older bindings return bytes."""
    return value.decode() if isinstance(value, bytes) else value
