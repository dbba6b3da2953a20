"""Where the API server is and who we are."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gpushare.errors import SettingsError
from gpushare.runtime.clock import Clock, SystemClock
from gpushare.runtime.options import environment

_DIRECTORY: Final = "/var/run/secrets/kubernetes.io/serviceaccount"
_TOKEN_LIFE_S: Final = 60.0  # the kubelet replaces the file long before a token expires


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """What a client needs to know of a cluster. Files are PEM."""

    server: str  # URL without a path, such as https://10.0.0.1:443
    ca_file: str | None = None  # bundle that the server's certificate must chain to
    cert_file: str | None = None
    key_file: str | None = None
    verify: bool = True  # False only if a kubeconfig says insecure-skip-tls-verify
    token_source: Callable[[], str | None] = lambda: None
    """Gives the bearer token to use now; may take long, and fail in any way."""


def own_namespace(directory: str = _DIRECTORY) -> str:
    """The namespace of the pod that this process runs in; "default" if that is not known."""
    try:
        return Path(directory, "namespace").read_text(encoding="utf-8").strip() or "default"
    except OSError:
        return "default"


def in_cluster(directory: str = _DIRECTORY, *, clock: Clock | None = None) -> Credentials:
    """The pod's service account. Raises a SettingsError if this is no pod, or it has no token."""
    host, port = environment("KUBERNETES_SERVICE_HOST"), environment("KUBERNETES_SERVICE_PORT", "443")
    if not host:
        raise SettingsError("not in a cluster: KUBERNETES_SERVICE_HOST is not set; give --kubeconfig")
    token = Path(directory, "token")
    if not token.exists():
        raise SettingsError(f"{token}: no service account token; is automountServiceAccountToken off?")
    return Credentials(
        server=f"https://{f'[{host}]' if ':' in host else host}:{port}",
        ca_file=str(Path(directory, "ca.crt")),
        token_source=_TokenFile(token, clock or SystemClock()).read,
    )


class _TokenFile:
    """The file is read again every minute because it is rotated."""

    def __init__(self, file: Path, clock: Clock) -> None:
        self._file = file
        self._clock = clock
        self._token = ""
        self._read_at = float("-inf")

    def read(self) -> str:
        if self._clock.monotonic() - self._read_at > _TOKEN_LIFE_S:
            self._token = self._file.read_text(encoding="utf-8").strip()
            self._read_at = self._clock.monotonic()
        return self._token
