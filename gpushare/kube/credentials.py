"""Where the API server is and who we are: by a pod's service account, or by kubeconfig files as kubectl reads them.

Those are read by the official client with all its authentication plug-ins. It is imported late, and here only, because
that costs the device plugin most of its start-up second. What is missing or cannot be used is a SettingsError.
"""

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

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


def of_pod(directory: str = _DIRECTORY, *, clock: Clock | None = None) -> Credentials:
    host, port = environment("KUBERNETES_SERVICE_HOST"), environment("KUBERNETES_SERVICE_PORT", "443")
    if not host:
        raise SettingsError("not in a cluster: KUBERNETES_SERVICE_HOST is not set; give --kubeconfig")
    token = Path(directory, "token")
    if not token.exists():
        raise SettingsError(f"{token}: no service account token; is automountServiceAccountToken off?")
    return Credentials(
        server=f"https://{f'[{host}]' if ':' in host else host}:{port}",
        ca_file=str(Path(directory, "ca.crt")),
        token_source=_rotated(token, clock or SystemClock()),
    )


def _rotated(file: Path, clock: Clock) -> Callable[[], str]:
    """What the file has, which is read again every minute."""
    token, read_at = "", float("-inf")

    def read() -> str:
        nonlocal token, read_at
        if clock.monotonic() - read_at > _TOKEN_LIFE_S:
            token, read_at = file.read_text(encoding="utf-8").strip(), clock.monotonic()
        return token

    return read


def of_kubeconfig(path: str, context: str = "") -> Credentials:
    """Of a context of a file, or of several files with colons in between, merged as kubectl does."""
    with _kubeconfig(path) as (library, files):
        configuration = library.client.Configuration()
        library.config.load_kube_config(
            config_file=os.pathsep.join(files),
            context=context or _current_context(library, files),
            client_configuration=configuration,
        )

    def token() -> str | None:
        # The hook runs an authentication plug-in again when its token has expired.
        value = configuration.get_api_key_with_prefix("BearerToken", alias="authorization")
        return value.removeprefix("Bearer ") if value else None

    return Credentials(
        server=configuration.host,
        ca_file=configuration.ssl_ca_cert,
        cert_file=configuration.cert_file,
        key_file=configuration.key_file,
        verify=configuration.verify_ssl,
        token_source=token,
    )


def namespace(kubeconfig: str = "", context: str = "") -> str:
    """What a user means who names none: the context's, or else this pod's; "default" if that is not known."""
    if not kubeconfig:
        try:
            return Path(_DIRECTORY, "namespace").read_text(encoding="utf-8").strip() or "default"
        except OSError:
            return "default"
    with _kubeconfig(kubeconfig) as (library, files):
        merged = library.config.kube_config.KubeConfigMerger(os.pathsep.join(files)).config
        contexts = [each.value for each in merged["contexts"]]
        wanted = context or _current_context(library, files)
        chosen = next((each["context"].get("namespace") for each in contexts if each["name"] == wanted), None)
    return str(chosen or "default")


def context_name(kubeconfig: str = "", context: str = "") -> str:
    """The given or the current context's; empty in a pod, and where none is named."""
    if context or not kubeconfig:
        return context
    with _kubeconfig(kubeconfig) as (library, files):
        return _current_context(library, files) or ""


@contextlib.contextmanager
def _kubeconfig(path: str) -> Iterator[tuple[Any, list[str]]]:
    """The library, and the files that exist."""
    try:
        import kubernetes
    except ModuleNotFoundError as error:
        raise SettingsError(
            f"a kubeconfig needs the library {error.name}; run: pip install 'gpushare[cli]', or leave the kubeconfig "
            "away to use the pod's service account"
        ) from error
    wanted = [Path(part).expanduser() for part in path.split(os.pathsep) if part]
    files = [str(part) for part in wanted if part.is_file()]
    if not files:
        raise SettingsError(f"kubeconfig {path}: no such file")
    try:
        yield kubernetes, files
    except Exception as error:  # the loader lets through whatever a file provokes
        raise SettingsError(f"kubeconfig {path}: {error}") from error


def _current_context(library: Any, files: list[str]) -> str | None:
    """The first one named, as kubectl has it; the official client would take the last."""
    for file in files:
        merged = library.config.kube_config.KubeConfigMerger(file).config
        if merged and (name := merged.value.get("current-context")):
            return str(name)
    return None
