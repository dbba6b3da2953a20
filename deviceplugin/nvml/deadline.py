"""Calls of a library that may not come back: a driver that hangs answers no one, and no call can be interrupted."""

import threading
from collections.abc import Callable
from concurrent import futures
from concurrent.futures import Future
from typing import Any, TypeVar

from deviceplugin.limits.backend import LimitError

T = TypeVar("T")


class SilentDriverError(LimitError):
    """The driver has not answered in time; it may still do what it was asked."""


class Deadline:
    """Makes one call at a time, and gives up on one that takes too long. Safe for use by many threads.

    Until that one comes back, no other is made: what it does late must not undo what was done after it.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._turn = threading.Lock()
        self._late: Future[Any] | None = None
        """The last call that was given up on."""

    def __call__(self, call: Callable[[], T]) -> T:
        """The call's value.

        Raises:
            SilentDriverError: it did not come back in time, or an earlier one has not.
        """
        is_late = self._late is not None and not self._late.done()
        if is_late or not self._turn.acquire(timeout=self._seconds):
            raise self._silent()
        future: Future[T] = Future()
        # A process that ends does not wait for it.
        threading.Thread(target=self._run, args=(future, call), name="driver", daemon=True).start()
        futures.wait([future], self._seconds)
        if not future.done():
            self._late = future
            raise self._silent()
        return future.result()

    def _run(self, future: Future[T], call: Callable[[], T]) -> None:
        try:
            future.set_result(call())
        except BaseException as error:  # noqa: BLE001 - raised by the caller's thread
            future.set_exception(error)
        finally:
            self._turn.release()

    def _silent(self) -> SilentDriverError:
        return SilentDriverError(f"NVIDIA's driver has not answered in {self._seconds:g} s; see the node's kernel log")
