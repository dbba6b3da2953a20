"""The HTTP server: gunicorn's threaded worker, without gunicorn's own master, whose work the supervisor does.

The sockets are opened once, before any worker is forked, so that requests between two workers wait and are answered.
"""

import signal
from collections.abc import Callable
from typing import Any, Final, Protocol

from flask import Flask
from gunicorn import sock
from gunicorn.app.base import BaseApplication

from controller.settings import Settings
from gpushare import names
from gpushare.runtime import worker
from gpushare.runtime.intake import MIB

GRACE_S: Final = 8  # every request has an answer by then: a bind's deadline is below the scheduler's 5 s


class Running(Protocol):
    """The controller inside of the worker."""

    app: Flask

    def start(self) -> None:
        """Start its threads."""
        ...

    def shut_down(self) -> None:
        """Finish what was begun; called after the last request was answered."""
        ...


class Server:
    """The extender's sockets and options."""

    def __init__(self, settings: Settings, supervisor_pid: int) -> None:
        """Open the sockets. To be called by the supervisor.

        Raises:
            SystemExit: the address cannot be used; the log says why.
        """
        self._supervisor_pid = supervisor_pid
        self._application = _Application(settings)
        self._log = worker.Logger(self._application.cfg)
        self._sockets = sock.create_sockets(self._application.cfg, self._log)

    def serve(self, build: Callable[[], Running], beat: Callable[[], None]) -> int:
        """Serve until SIGTERM or the supervisor's end. The exit code. To be called by the worker.

        The controller is built first; `beat` is called at least once a second while the main loop goes round.
        """
        running = build()
        cfg = self._application.cfg

        def ready(_worker: object) -> None:
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to the supervisor as well
            running.start()

        cfg.set("post_worker_init", ready)
        serving = Worker(0, self._supervisor_pid, self._sockets, self._application, cfg.timeout, cfg, self._log)
        serving.beat = beat
        self._application.callable = closing(running.app)
        serving.init_process()
        running.shut_down()
        return 0


class Worker(worker.Worker):
    """Reads what `controller.extender.app` does, and tells the supervisor that its main loop goes round."""

    most = 64 * MIB
    room = 128 * MIB

    beat: Callable[[], None]

    def notify(self) -> None:
        """Tell the supervisor, where gunicorn would touch a file for its master."""
        self.beat()
        self.look()


def closing(application: Callable[..., Any]) -> Callable[..., Any]:
    """An application that may end a connection by the header `Connection: close`, which gunicorn itself drops."""

    def call(environ: dict[str, Any], start_response: Callable[..., Any]) -> Any:
        def start(status: str, headers: list[tuple[str, str]], *error: Any) -> Any:
            if ("Connection", "close") in headers:
                start_response.__self__.force_close()  # type: ignore[attr-defined]  # a method of gunicorn's response
            return start_response(status, headers, *error)

        return application(environ, start)

    return call


class _Application(BaseApplication):  # type: ignore[misc]  # gunicorn has no types
    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        super().__init__()

    def load_config(self) -> None:
        options: dict[str, Any] = {
            "bind": [f"{self._settings.bind_address}:{self._settings.port}"],
            "worker_class": "gthread",
            "threads": self._settings.threads,
            "worker_connections": worker.CONNECTIONS,
            "keepalive": 75,  # kube-scheduler keeps its connections; closing them first would race with its requests
            "graceful_timeout": GRACE_S,
            "worker_tmp_dir": self._settings.worker_tmp_dir or None,
            "logger_class": worker.Logger,
            "proc_name": names.CONTROLLER,
        }
        for name, value in options.items():
            self.cfg.set(name, value)
