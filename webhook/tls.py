"""The server's side of TLS: certificates that change under a running server."""

import logging
import ssl
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from certs import store
from gpushare.runtime import logs

_LOG: Final = logging.getLogger(__name__)

_Stamp = tuple[int, int, int]


@dataclass(kw_only=True)
class Contexts:
    """The TLS context for the next connection, recreated when the files have changed. Safe for many threads."""

    directory: Path
    """Has tls.crt and tls.key, possibly through `certs.store`'s link."""
    _current: ssl.SSLContext | None = field(init=False, default=None)
    _stamp: tuple[_Stamp, _Stamp] | None = field(init=False, default=None)
    _lock: threading.Lock = field(init=False, default_factory=threading.Lock)

    def current(self) -> ssl.SSLContext:
        """The context of the newest certificate and key that fit together.

        Raises:
            OSError: there has been none yet; ssl.SSLError is one.
        """
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
        """Why no connection can be served; empty if it can."""
        try:
            self.current()
        except OSError as error:
            return f"no certificate: {error}"
        return ""

    def _refresh(self) -> None:
        certificate, key = store.pair_paths(self.directory)
        stamp = (_stat(certificate), _stat(key))
        if stamp == self._stamp:
            return
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.load_cert_chain(certificate, key)
        self._current, self._stamp = context, stamp
        logs.event(_LOG, "certificate loaded", path=str(certificate))


def _stat(path: Path) -> _Stamp:
    status = path.stat()
    return status.st_ino, status.st_mtime_ns, status.st_size
