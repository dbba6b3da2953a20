"""Calls of a library that may not come back: a driver that hangs answers no one, and no call can be interrupted."""

import threading
from collections.abc import Callable
from typing import Final, TypeVar

from deviceplugin.limits.backend import LimitError

_MOST: Final = 4
"""Calls that may hang; more are not made."""
T = TypeVar("T")


class Deadline:
    """Gives up on calls that take too long. Safe for use by many threads."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._free = threading.BoundedSemaphore(_MOST)

    def __call__(self, call: Callable[[], T]) -> T:
        """The call's value.

        Raises:
            LimitError: it did not come back in time, or too many others have not; it may still take effect.
        """
        results: list[T] = []
        errors: list[BaseException] = []

        def run() -> None:
            try:
                results.append(call())
            except BaseException as error:  # noqa: BLE001 - raised by the caller's thread
                errors.append(error)
            finally:
                self._free.release()

        if not self._free.acquire(timeout=self._seconds):
            raise LimitError(f"NVIDIA's driver has not answered {_MOST} calls; see the node's kernel log")
        thread = threading.Thread(target=run, name="driver", daemon=True)  # a process that ends does not wait for it
        thread.start()
        thread.join(self._seconds)
        for error in errors:
            raise error
        if not results:
            raise LimitError(f"NVIDIA's driver has not answered in {self._seconds:g} s; see the node's kernel log")
        return results[0]
