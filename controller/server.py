"""The HTTP server: gunicorn's threaded worker, without gunicorn's own master, whose work the supervisor does.

The sockets are opened once, before any worker is forked, so that requests between two workers wait and are answered.
"""

import signal
import threading
from collections.abc import Callable
from typing import Any, Final, Protocol

from flask import Flask
from gunicorn import sock
from gunicorn.app.base import BaseApplication

from controller.extender.app import RECEIVED
from controller.settings import Settings
from gpushare import names
from gpushare.runtime.worker import CONNECTIONS, Logger, Worker

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
        self._log = Logger(self._application.cfg)
        self._sockets = sock.create_sockets(self._application.cfg, self._log)

    def serve(self, build: Callable[[], Running], beat: Callable[[], None]) -> int:
        """Serve until SIGTERM or the supervisor's end. The exit code. To be called by the worker.

        Args:
            build: makes the controller.
            beat: called at least once a second while the main loop goes round.
        """
        running = build()
        cfg = self._application.cfg

        def ready(_worker: object) -> None:
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to the supervisor as well
            running.start()

        cfg.set("post_worker_init", ready)
        worker = ArrivalWorker(0, self._supervisor_pid, self._sockets, self._application, cfg.timeout, cfg, self._log)
        worker.beat = beat
        self._application.callable = worker.stamped(closing(running.app))
        worker.init_process()
        running.shut_down()
        return 0


class ArrivalWorker(Worker):
    """Tells the application when a request arrived, which is before a thread takes it up."""

    beat: Callable[[], None]
    _arrival = threading.local()

    def notify(self) -> None:
        """Tell the supervisor, where gunicorn would touch a file for its master."""
        self.beat()
        self.deadlines.enforce()

    def stamped(self, application: Callable[..., Any]) -> Callable[..., Any]:
        """An application that finds the time under `RECEIVED`, if it is known."""

        def call(environ: dict[str, Any], start_response: Callable[..., Any]) -> Any:
            if self._arrival.at is not None:
                environ[RECEIVED] = self._arrival.at
            return application(environ, start_response)

        return call

    def enqueue_req(self, conn: Any) -> None:
        """Note when a request came that waits for a thread."""
        conn.received = self.clock.monotonic()
        super().enqueue_req(conn)

    def handle(self, conn: Any) -> Any:
        """Answer one request. A new connection may bring its first one much later."""
        known = conn.initialized or conn.wait_for_data(0)
        self._arrival.at = conn.received if known else None
        return super().handle(conn)


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
            "worker_connections": CONNECTIONS,
            "keepalive": 75,  # kube-scheduler keeps its connections; closing them first would race with its requests
            "graceful_timeout": GRACE_S,
            "worker_tmp_dir": self._settings.worker_tmp_dir or None,
            "logger_class": Logger,
            "proc_name": names.CONTROLLER,
        }
        for name, value in options.items():
            self.cfg.set(name, value)
