"""The process that serves: gunicorn with one worker, because the certificate manager and the metrics live in it.

The door to gunicorn. It looks after the process; its worker serves by `gpushare.runtime.http`, where no slow peer holds
a thread, as anyone in the cluster may connect. Certificates change under a running server.
"""

import logging
import os
import signal
import ssl
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from gunicorn.app.base import BaseApplication
from gunicorn.glogging import Logger as GunicornLogger
from gunicorn.workers.base import Worker as GunicornWorker

from certs import store
from gpushare import names
from gpushare.runtime import logs
from gpushare.runtime.clock import SystemClock
from gpushare.runtime.http import HttpServer, Wsgi
from gpushare.runtime.intake import MIB, ByteBudget
from gpushare.runtime.process import Signals
from webhook.settings import Settings

_LOG: Final = logging.getLogger(__name__)
_KEEP_ALIVE_S: Final = 75  # the API server pools connections for 90 s and should seldom find one closed
_DEAD_S: Final = 60  # a worker whose loop stands still for so long is replaced
_MOST: Final = 16 * MIB  # bytes of the longest body that `webhook.app` reads
_BUDGET: Final = 64 * MIB  # for all bodies above 64 KiB, while they arrive and are answered


def run(settings: Settings, contexts: "Contexts", build: Callable[[threading.Event], Wsgi], signals: Signals) -> None:
    """Serve until SIGTERM or SIGINT; then finish what was begun. Ends the process.

    `build` is called in the worker, as nothing is shared with the parent process; the threads that it starts run until
    the event is set. A signal that came before gunicorn had handlers of its own counts as if it came right after.
    """
    stop = threading.Event()
    _Server(_options(settings, contexts, stop, signals), lambda: build(stop)).run()


def _options(settings: Settings, contexts: "Contexts", stop: threading.Event, signals: Signals) -> dict[str, object]:
    def deliver(_server: object) -> None:
        # gunicorn has just replaced the handlers that set this flag, so none is lost in between.
        if signals.number:
            os.kill(os.getpid(), signal.SIGTERM)

    return {
        "bind": f"{settings.address}:{settings.port}",
        "proc_name": names.WEBHOOK,
        "worker_class": Worker,
        "workers": 1,
        "threads": settings.threads,
        "worker_tmp_dir": settings.worker_tmp_dir,
        "keepalive": _KEEP_ALIVE_S,
        "timeout": _DEAD_S,
        "graceful_timeout": max(1, round(settings.graceful_timeout_s)),
        "control_socket_disable": True,
        "ssl_context": lambda _config, _default: contexts.current(),
        "logger_class": Logger,
        "when_ready": deliver,
        "worker_exit": lambda _server, _worker: stop.set(),
    }


class Worker(GunicornWorker):  # type: ignore[misc]  # gunicorn has no types
    def run(self) -> None:
        server = HttpServer(
            application=self.wsgi,
            listener=self.sockets[0].sock,
            clock=SystemClock(),
            threads=self.cfg.threads,
            most=_MOST,
            budget=ByteBudget(_BUDGET),
            keep_alive_s=self.cfg.keepalive,
            tls=lambda: self.cfg.ssl_context(self.cfg, None),
        )
        server.serve(lambda: not self.alive or os.getppid() != self.ppid, self.notify)
        server.finish(self.notify, grace_s=self.cfg.graceful_timeout)


class Logger(GunicornLogger):  # type: ignore[misc]  # gunicorn has no types
    """Hands everything to the process's own logging."""

    def setup(self, cfg: Any) -> None:
        self.cfg = cfg
        # Its life cycle lines at INFO say nothing about pods.
        self.error_log.setLevel(logging.WARNING)
        self.error_log.propagate = True
        self.access_log.setLevel(logging.CRITICAL)


class _Server(BaseApplication):  # type: ignore[misc] # gunicorn has no type information
    def __init__(self, options: Mapping[str, object], build: Callable[[], Wsgi]) -> None:
        self._options = options
        self._build = build
        super().__init__()

    def load_config(self) -> None:
        for name, value in self._options.items():
            self.cfg.set(name, value)

    def load(self) -> Wsgi:
        return self._build()


@dataclass(kw_only=True)
class Contexts:
    """The TLS context for the next connection, recreated when the files have changed. Safe for many threads."""

    directory: Path  # has tls.crt and tls.key, possibly through `certs.store`'s link
    _current: ssl.SSLContext | None = field(init=False, default=None)
    _stamp: object = field(init=False, default=None)
    _lock: threading.Lock = field(init=False, default_factory=threading.Lock)

    def current(self) -> ssl.SSLContext:
        """That of the newest certificate and key that fit together. Raises OSError: there has been none yet."""
        with self._lock:
            try:
                self._refresh()
            except OSError as error:
                if self._current is None:
                    raise
                logs.event(_LOG, "certificate not loaded", level=logging.WARNING, error=str(error))
            assert self._current is not None  # noqa: S101 - _refresh has set it or raised
            return self._current

    def problem(self) -> str:
        try:
            self.current()
        except OSError as error:
            return f"no certificate: {error}"
        return ""

    def _refresh(self) -> None:
        certificate, key = store.pair_paths(self.directory)
        stamp = [(each.st_ino, each.st_mtime_ns, each.st_size) for each in (certificate.stat(), key.stat())]
        if stamp == self._stamp:
            return
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.load_cert_chain(certificate, key)
        self._current, self._stamp = context, stamp
        logs.event(_LOG, "certificate loaded", path=str(certificate))
