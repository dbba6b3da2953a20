"""What was read of a cluster: each part is there, or absent, or says why it could not be read."""

from dataclasses import dataclass
from datetime import datetime
from typing import TypeVar

from gpushare.errors import GpuShareError
from gpushare.kube import api as kube
from gpushare.kube.api import JsonObject, Reply
from gpushare_cli.schedconfig import ServerVersion

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Unread:
    """A read that failed."""

    what: str
    """In words that a sentence can go on from."""
    error: kube.KubeError


class NotReadError(GpuShareError):
    """A check looked at a part that could not be read."""

    def __init__(self, unread: Unread) -> None:
        super().__init__(f"{unread.what}: {unread.error}")
        self.unread = unread


class NothingToCheckError(GpuShareError):
    """A check has no meaning, because of something that another check reports."""


def known(part: T | Unread) -> T:
    """A part that was read.

    Raises:
        NotReadError: it was not; ends the check, and is reported once for all checks.
    """
    if isinstance(part, Unread):
        raise NotReadError(part)
    return part


Object = JsonObject | None | Unread
Objects = tuple[JsonObject, ...] | Unread
Text = Reply | Unread


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """All that the checks look at."""

    namespace: str
    """Of the installation."""
    server: ServerVersion
    now: datetime
    """When it was asked, by the clock of the API server if it told."""

    installed: Object
    """The installation's Namespace."""
    namespaces: Objects
    settings: Object
    """The ConfigMap that all components share."""
    runtime_classes: Objects

    mutating: Object
    validating: Object
    policies: Objects
    policy_bindings: Objects
    webhook_deployment: Object
    webhook_endpoints: Object
    webhook_ready: Text
    webhook_metrics: Text
    admitted: JsonObject | Unread
    """What a new pod that asks for one unit comes back as; it was not stored."""

    controller_deployment: Object
    controller_endpoints: Object
    controller_lease: Object
    controller_ready: Text
    controller_metrics: Text

    scheduler_deployment: Object
    scheduler_settings: Object
    scheduler_lease: Object

    plugin: Object
    """The DaemonSet."""
    daemonsets: Objects
    """Those of the whole cluster that need every GPU."""
    nodes: Objects
    unhealthy: Objects
    """ConfigMaps of GPUs that must not be used."""
    pods: Objects
    """Those that ask for GPUs or hold some, the installation's own, and other GPU plugins'."""
