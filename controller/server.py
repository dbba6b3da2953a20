"""The HTTP server: one gunicorn worker with threads, since the books are in its memory.

The worker is the controller; the master only starts it and passes signals on. A worker that lost the lead ends at once
with an exit code that makes the master end as well, so the container restarts and comes back as a follower.
"""

import logging
from collections.abc import Callable
from typing import Any, Final, Protocol

from flask import Flask
from gunicorn.app.base import BaseApplication
from gunicorn.glogging import Logger

from controller.settings import Settings
from gpushare import names

EXIT_LOST: Final = 3  # gunicorn.arbiter.Arbiter.WORKER_BOOT_ERROR: the master does not start another worker


class Running(Protocol):
    """The controller inside of the worker."""

    app: Flask

    def start(self) -> None:
        """Start its threads."""
        ...

    def shut_down(self) -> None:
        """Give the lead back; called after the last request was answered."""
        ...


def serve(settings: Settings, build: Callable[[], Running]) -> int:
    """Serve until a signal or the loss of the lead. The process's exit code.

    Args:
        settings: the controller's.
        build: makes the controller; called in the worker process.
    """
    try:
        _Application(settings, build).run()
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else 1
    return 0


class _Application(BaseApplication):  # type: ignore[misc]  # gunicorn has no types
    def __init__(self, settings: Settings, build: Callable[[], Running]) -> None:
        self._settings = settings
        self._build = build
        self._running: Running | None = None
        super().__init__()

    def load_config(self) -> None:
        options: dict[str, Any] = {
            "bind": [f"{self._settings.bind_address}:{self._settings.port}"],
            "workers": 1,
            "worker_class": "gthread",
            "threads": self._settings.threads,
            "worker_connections": 1000,
            "keepalive": 75,  # kube-scheduler keeps its connections; closing them first would race with its requests
            "timeout": 120,
            "graceful_timeout": 15,
            "control_socket_disable": True,
            "worker_tmp_dir": self._settings.worker_tmp_dir or None,
            "logger_class": _Logger,
            "post_worker_init": self._start,
            "worker_exit": self._stop,
            "proc_name": names.CONTROLLER,
        }
        for name, value in options.items():
            self.cfg.set(name, value)

    def load(self) -> Flask:
        self._running = self._build()
        return self._running.app

    def _start(self, _worker: object) -> None:
        if self._running is not None:
            self._running.start()

    def _stop(self, _server: object, _worker: object) -> None:
        if self._running is not None:
            self._running.shut_down()


class _Logger(Logger):  # type: ignore[misc]  # gunicorn has no types
    """Hands everything to the process's own logging."""

    def setup(self, cfg: Any) -> None:
        self.cfg = cfg
        self._access_log_enabled = False
        # Its life cycle lines at INFO say nothing about pods.
        self.error_log.setLevel(logging.WARNING)
        self.error_log.propagate = True
        self.access_log.setLevel(logging.CRITICAL)
