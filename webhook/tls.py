"""The server's side of TLS: certificates that change under a running server, and clients that may be slow."""

import contextlib
import logging
import ssl
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from certs import store
from gpushare.runtime import logs
from gpushare.runtime.clock import Clock, SystemClock

_LOG: Final = logging.getLogger(__name__)
_CLIENT_S: Final = 3.0  # well below the 10 s after which the API server gives an admission up
_REQUEST_S: Final = 6.0  # the whole of a request, however steadily its pieces come
_PIECE: Final = 64 * 1024

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
        context.sslsocket_class = PatientSocket
        context.load_cert_chain(certificate, key)
        self._current, self._stamp = context, stamp
        logs.event(_LOG, "certificate loaded", path=str(certificate))


class PatientSocket(ssl.SSLSocket):
    """A connection on which no handshake, read or write blocks its thread for longer than three seconds.

    Nor does a request take its thread for longer than six. A client that stops in the middle is reported as a lost
    connection, which servers take for what it is.
    """

    clock: Clock = SystemClock()
    _until: float | None = None
    """When the request that is being read has to be there; None between two requests."""

    def setblocking(self, flag: bool) -> None:
        """See socket."""
        self.settimeout(_CLIENT_S if flag else 0.0)

    def do_handshake(self, block: bool = False) -> None:
        """See ssl.SSLSocket."""
        self.settimeout(_CLIENT_S)
        with _lost_if_late():
            super().do_handshake(block)

    def recv(self, buflen: int = 1024, flags: int = 0) -> bytes:
        """See socket."""
        with _lost_if_late():
            if self.gettimeout() != 0:
                self._wait_for_the_rest_only()
            return super().recv(min(buflen, _PIECE), flags)

    def sendall(self, data: Any, flags: int = 0) -> None:
        """See socket."""
        self._until = None
        with _lost_if_late():
            if self.gettimeout() != 0:
                self.settimeout(_CLIENT_S)
            super().sendall(data, flags)

    def _wait_for_the_rest_only(self) -> None:
        now = self.clock.monotonic()
        self._until = self._until or now + _REQUEST_S
        if now >= self._until:
            raise TimeoutError
        self.settimeout(min(_CLIENT_S, self._until - now))


@contextlib.contextmanager
def _lost_if_late() -> Iterator[None]:
    try:
        yield
    except TimeoutError as error:
        raise ConnectionResetError(104, "the client was silent for too long") from error


def _stat(path: Path) -> _Stamp:
    found = path.stat()
    return found.st_ino, found.st_mtime_ns, found.st_size
