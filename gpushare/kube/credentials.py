"""Where the API server is and who we are."""

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

from gpushare.errors import SettingsError
from gpushare.runtime.clock import Clock, SystemClock
from gpushare.runtime.options import environment

_DIRECTORY: Final = "/var/run/secrets/kubernetes.io/serviceaccount"
_TOKEN_LIFE_S: Final = 60.0  # the kubelet replaces the file long before a token expires


class Credentials(Protocol):
    """What a client needs to know of a cluster."""

    @property
    def server(self) -> str:
        """URL without a path, such as https://10.0.0.1:443."""
        ...

    @property
    def ca_file(self) -> str | None:
        """PEM bundle that the server's certificate must chain to."""
        ...

    @property
    def cert_file(self) -> str | None:
        """PEM client certificate."""
        ...

    @property
    def key_file(self) -> str | None:
        """PEM client key."""
        ...

    @property
    def verify(self) -> bool:
        """False only if a kubeconfig says insecure-skip-tls-verify."""
        ...

    def token(self) -> str | None:
        """The bearer token to use now."""
        ...


def own_namespace(directory: str = _DIRECTORY) -> str:
    """The namespace of the pod that this process runs in; "default" if that is not known."""
    try:
        return Path(directory, "namespace").read_text(encoding="utf-8").strip() or "default"
    except OSError:
        return "default"


@dataclass(frozen=True, slots=True, kw_only=True)
class StaticCredentials:
    """Read once, from a kubeconfig."""

    server: str
    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    verify: bool = True
    token_source: Callable[[], str | None] = lambda: None

    def token(self) -> str | None:
        """See Credentials."""
        return self.token_source()


@dataclass(slots=True, kw_only=True)
class InClusterCredentials:
    """The pod's service account; the token file is read again every minute because it is rotated."""

    server: str
    directory: str = _DIRECTORY
    clock: Clock = field(default_factory=SystemClock)
    cert_file: str | None = None
    key_file: str | None = None
    verify: bool = True
    _token: str = field(init=False, default="")
    _read_at: float = field(init=False, default=float("-inf"))

    @classmethod
    def load(cls, directory: str = _DIRECTORY) -> "InClusterCredentials":
        """From the variables and files that the kubelet gives to every pod.

        Raises:
            SettingsError: this is no pod, or it has no service account token.
        """
        host, port = environment("KUBERNETES_SERVICE_HOST"), environment("KUBERNETES_SERVICE_PORT", "443")
        if not host:
            raise SettingsError("not in a cluster: KUBERNETES_SERVICE_HOST is not set; give --kubeconfig")
        if not Path(directory, "token").exists():
            raise SettingsError(f"{directory}/token: no service account token; is automountServiceAccountToken off?")
        return cls(server=f"https://{f'[{host}]' if ':' in host else host}:{port}", directory=directory)

    @property
    def ca_file(self) -> str | None:
        """See Credentials."""
        return os.path.join(self.directory, "ca.crt")  # noqa: PTH118 - a text is what the TLS library wants

    def token(self) -> str | None:
        """See Credentials."""
        if self.clock.monotonic() - self._read_at > _TOKEN_LIFE_S:
            self._token = Path(self.directory, "token").read_text(encoding="utf-8").strip()
            self._read_at = self.clock.monotonic()
        return self._token
