"""The settings that hold in a namespace, read from the cluster."""

from dataclasses import replace

from gpushare import names
from gpushare.errors import SettingsError, WireError
from gpushare.kube import api as kube
from gpushare.kube.api import KubeApi
from gpushare.model.request import Policy
from gpushare.units import MemoryUnit
from gpushare.wire import fields, selectors
from gpushare_cli import gather, settings
from gpushare_cli.settings import Settings


def read(api: KubeApi, installation: str, namespace: str, memory_unit: MemoryUnit | None = None) -> Settings:
    """Of the installation, as far as they can be read, of the pods' namespace, and of the command line.

    Raises:
        WireError: one cannot be understood.
    """
    try:
        installed = settings.load(gather.config_map(api, installation, names.CONFIG))
    except SettingsError as error:
        raise WireError(f"ConfigMap {names.CONFIG}: {error}") from error
    policy = _policy(api, namespace) or installed.gpu_policy
    return replace(installed, memory_unit=memory_unit or installed.memory_unit, gpu_policy=policy)


def _policy(api: KubeApi, namespace: str) -> Policy | None:
    """Of pods in a namespace that name none; None if its label names none, or it may not be read."""
    try:
        found = api.get(f"/api/v1/namespaces/{namespace}")
        labels = fields.mapping(fields.mapping(found, "metadata", "namespace"), "labels", "metadata")
        return selectors.parse_policy(fields.text(labels, names.LABEL_POLICY, "labels"))
    except (kube.ForbiddenError, kube.NotFoundError, WireError, ValueError):
        return None
