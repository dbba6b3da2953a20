"""Kubeconfig files, read by the official client with all its authentication plug-ins. Its only importer."""

from pathlib import Path

import urllib3
from kubernetes import client, config

from gpushare.errors import SettingsError
from gpushare.kube.credentials import StaticCredentials


def load(path: str, context: str = "") -> StaticCredentials:
    """Credentials of a context of a kubeconfig file.

    Args:
        path: the file.
        context: by default the current one.

    Raises:
        SettingsError: no such file or context, or it cannot be used.
    """
    if not Path(path).expanduser().is_file():
        raise SettingsError(f"kubeconfig {path}: no such file")
    found = client.Configuration()
    try:
        config.load_kube_config(
            config_file=str(Path(path).expanduser()), context=context or None, client_configuration=found
        )
    except (config.ConfigException, urllib3.exceptions.HTTPError, OSError, ValueError) as error:
        raise SettingsError(f"kubeconfig {path}: {error}") from error

    def token() -> str | None:
        # The hook runs an authentication plug-in again when its token has expired.
        value = found.get_api_key_with_prefix("BearerToken", alias="authorization")
        return value.removeprefix("Bearer ") if value else None

    return StaticCredentials(
        server=found.host,
        ca_file=found.ssl_ca_cert,
        cert_file=found.cert_file,
        key_file=found.key_file,
        verify=found.verify_ssl,
        token_source=token,
    )
