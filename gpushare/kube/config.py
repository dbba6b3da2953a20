"""Kubeconfig files, read by the official client with all its authentication plug-ins. Its only importer.

All functions raise a SettingsError for a file or context that is missing or cannot be used.
"""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from kubernetes import client, config
from kubernetes.config import kube_config

from gpushare.errors import SettingsError
from gpushare.kube.credentials import Credentials


def namespace(path: str, context: str = "") -> str:
    """As kubectl takes it; "default" if the context names none."""
    files = _files(path)
    with _usable(path):
        merged = kube_config.KubeConfigMerger(os.pathsep.join(files)).config
        contexts = [each.value for each in merged["contexts"]]
        wanted = context or _current_context(files)
        chosen = next((each["context"].get("namespace") for each in contexts if each["name"] == wanted), None)
    return str(chosen or "default")


def context_name(path: str) -> str:
    """Of the current one; empty if none is named."""
    files = _files(path)
    with _usable(path):
        return _current_context(files) or ""


def load(path: str, context: str = "") -> Credentials:
    """Of a context of a file, or of several files with colons in between, merged as kubectl does."""
    files = _files(path)
    configuration = client.Configuration()
    with _usable(path):
        config.load_kube_config(
            config_file=os.pathsep.join(files),
            context=context or _current_context(files),
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


@contextlib.contextmanager
def _usable(path: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # the loader lets through whatever a file provokes
        raise SettingsError(f"kubeconfig {path}: {error}") from error


def _files(path: str) -> list[str]:
    wanted = [Path(part).expanduser() for part in path.split(os.pathsep) if part]
    files = [str(part) for part in wanted if part.is_file()]
    if not files:
        raise SettingsError(f"kubeconfig {path}: no such file")
    return files


def _current_context(files: list[str]) -> str | None:
    """The first one named, as kubectl has it; the official client would take the last."""
    for file in files:
        merged = kube_config.KubeConfigMerger(file).config
        if merged and (name := merged.value.get("current-context")):
            return str(name)
    return None
