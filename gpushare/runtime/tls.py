"""TLS for the connections of a server, by files that are replaced while it runs."""

import logging
import ssl
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from gpushare.runtime import logs

_LOG: Final = logging.getLogger(__name__)


@dataclass(kw_only=True)
class Contexts:
    """The TLS context for the next connection, recreated when the files have changed. Safe for many threads."""

    files: Callable[[], tuple[Path, Path]]  # where the certificate and its key are now
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
                logs.event(_LOG, "certificate not loaded", level=logging.ERROR, error=str(error))
            assert self._current is not None  # noqa: S101 - _refresh has set it or raised
            return self._current

    def problem(self) -> str:
        try:
            self.current()
        except OSError as error:
            return f"no certificate: {error}"
        return ""

    def _refresh(self) -> None:
        certificate, key = self.files()
        stamp = [(each.st_ino, each.st_mtime_ns, each.st_size) for each in (certificate.stat(), key.stat())]
        if stamp == self._stamp:
            return
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.load_cert_chain(certificate, key)
        self._current, self._stamp = context, stamp
        logs.event(_LOG, "certificate loaded", path=str(certificate))
