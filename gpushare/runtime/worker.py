"""gunicorn's threaded worker for servers that anyone in the cluster may connect to. Only servers install gunicorn."""

import logging
from typing import Any, Final

from gunicorn.glogging import Logger as GunicornLogger
from gunicorn.workers.gthread import ThreadWorker

from gpushare.runtime.clock import Clock, SystemClock
from gpushare.runtime.hang_up import Deadlines, hang_up

CONNECTIONS: Final = 800
"""About 100 KiB each while they are idle; the others wait in the kernel. With four files for each thread they stay
below the usual limit of 1024 open files; one more, and gunicorn's loop ends."""


class Worker(ThreadWorker):  # type: ignore[misc] # gunicorn has no type information
    """Lets no peer hold the main loop, nor a thread for ever."""

    clock: Clock = SystemClock()
    nr_conns: int

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.deadlines = Deadlines(self.clock)

    def notify(self) -> None:
        """Show that the main loop goes round: called at least once a second."""
        super().notify()
        self.deadlines.enforce()

    def handle(self, conn: Any) -> Any:
        """Answer one request. Whether the connection stays open."""
        with self.deadlines.bound(conn):
            again = super().handle(conn)
            if not again:
                hang_up(conn.sock, clock=self.clock)
        return again

    def finish_request(self, conn: Any, fs: Any) -> None:
        """Keep or close a connection. gunicorn counts one twice that was closed already, and then takes too many."""
        open_before = self.nr_conns
        super().finish_request(conn, fs)
        self.nr_conns = max(self.nr_conns, open_before - 1)


class Logger(GunicornLogger):  # type: ignore[misc] # gunicorn has no type information
    """Hands everything to the process's own logging."""

    def setup(self, cfg: Any) -> None:
        """Keep gunicorn's lines about its own life cycle out, and the access log."""
        self.cfg = cfg
        self._access_log_enabled = False
        self.error_log.setLevel(logging.WARNING)
        self.error_log.propagate = True
        self.access_log.setLevel(logging.CRITICAL)
