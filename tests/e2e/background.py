"""What runs beside a test."""

import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self


class Background:
    """Threads that are told to stop by an event; what one of them raises stops the others, and is raised at the end."""

    def __init__(self, *parts: Callable[[threading.Event], None]) -> None:
        self.stop = threading.Event()
        self._failed: list[BaseException] = []
        self._threads = [threading.Thread(target=self._run, args=(part,)) for part in parts]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop.set()
        self.join()
        if self._failed and error is None:
            raise self._failed[0]

    def join(self, timeout_s: float | None = None) -> None:
        """Wait until all parts have ended by themselves."""
        for thread in self._threads:
            thread.join(timeout_s)

    def _run(self, part: Callable[[threading.Event], None]) -> None:
        try:
            part(self.stop)
        except BaseException as error:  # noqa: BLE001 - raised by the test's own thread
            self._failed.append(error)
            self.stop.set()
