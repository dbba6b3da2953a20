"""What is read of a cluster, and how: each part is there, or absent, or says why it could not be read."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from operator import methodcaller
from typing import Any, Final, TypeVar

from gpushare import names
from gpushare.errors import GpuShareError
from gpushare.identity import NodeName
from gpushare.kube import api as kube
from gpushare.kube.api import JsonObject, Reply
from gpushare_cli import scheduler_config
from gpushare_cli.doctor import own
from gpushare_cli.scheduler_config import ServerVersion
from gpushare_cli.usage import NodeUse

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

READ: Final = "read"
_INSIDE: Final = "namespaces/{namespace}"
_ADMISSION: Final = "/apis/admissionregistration.k8s.io/v1"
_APPS: Final = f"/apis/apps/v1/{_INSIDE}"
_LEASES: Final = f"/apis/coordination.k8s.io/v1/{_INSIDE}/leases"
_WEBHOOK: Final = f"https:{names.WEBHOOK}:{own.WEBHOOK_PORT}"
_CONTROLLER: Final = f"{names.CONTROLLER}:{scheduler_config.CONTROLLER_PORT}"


def part(method: str, *arguments: str) -> Any:
    """A part, and the reader's method that reads it; `{namespace}` in a path is the installation's."""
    return field(metadata={READ: methodcaller(method, *arguments)})


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """All that the checks look at."""

    namespace: str
    """Of the installation."""
    server: ServerVersion
    now: datetime
    """When it was asked, by the clock of the API server if it told."""

    installed: Object = part("one", f"/api/v1/{_INSIDE}")
    """The installation's Namespace."""
    namespaces: Objects = part("many", "/api/v1/namespaces")
    settings: Object = part("one", f"/api/v1/{_INSIDE}/configmaps/{names.CONFIG}")
    """The ConfigMap that all components share."""
    hand_over: Object = part("one", f"/api/v1/{_INSIDE}/configmaps/{names.HAND_OVER}")
    """What the controller says of the nodes."""
    refused_classes: Object = part("one", f"/api/v1/{_INSIDE}/configmaps/{names.RUNTIME_CLASS_POLICY}")
    """To whom RuntimeClasses of NVIDIA are refused."""
    runtime_classes: Objects = part("many", "/apis/node.k8s.io/v1/runtimeclasses")

    mutating: Object = part("one", f"{_ADMISSION}/mutatingwebhookconfigurations/{names.MUTATING_WEBHOOK}")
    validating: Object = part("one", f"{_ADMISSION}/validatingwebhookconfigurations/{names.VALIDATING_WEBHOOK}")
    policies: Objects = part("policies", f"{_ADMISSION}/validatingadmissionpolicies")
    policy_bindings: Objects = part("policies", f"{_ADMISSION}/validatingadmissionpolicybindings")
    webhook_deployment: Object = part("one", f"{_APPS}/deployments/{names.WEBHOOK}")
    webhook_endpoints: Object = part("one", f"/api/v1/{_INSIDE}/endpoints/{names.WEBHOOK}")
    webhook_ready: Text = part("ask", _WEBHOOK, "readyz")
    webhook_metrics: Text = part("metrics", _WEBHOOK)
    admitted: JsonObject | Unread = part("admitted")
    """What a new pod that asks for one unit comes back as; it was not stored."""

    controller_deployment: Object = part("one", f"{_APPS}/deployments/{names.CONTROLLER}")
    controller_endpoints: Object = part("one", f"/api/v1/{_INSIDE}/endpoints/{names.CONTROLLER}")
    controller_lease: Object = part("one", f"{_LEASES}/{names.LEASE}")
    controller_ready: Text = part("ask", _CONTROLLER, "readyz")
    controller_metrics: Text = part("metrics", _CONTROLLER)

    scheduler_deployment: Object = part("one", f"{_APPS}/deployments/{names.SCHEDULER}")
    scheduler_settings: Object = part("one", f"/api/v1/{_INSIDE}/configmaps/{own.SCHEDULER_SETTINGS}")
    scheduler_lease: Object = part("one", f"{_LEASES}/{names.SCHEDULER}")

    plugin: Object = part("one", f"{_APPS}/daemonsets/{names.PLUGIN}")
    """The DaemonSet."""
    usage: Mapping[NodeName, NodeUse] | Unread = part("usage")
    """What the device plugins tell of the use of GPUs, where they are to read it."""
    daemonsets: Objects = part("daemonsets")
    """Those of the whole cluster that need every GPU."""
    nodes: Objects = part("many", "/api/v1/nodes")
    nvidia_configs: Objects = part("nvidia_configs")
    """ConfigMaps by which NVIDIA's plugin shares GPUs itself."""
    resource_slices: Objects = part("dra", "resourceslices")
    """What DRA drivers offer."""
    device_classes: Objects = part("dra", "deviceclasses")
    unhealthy: Objects = part("unhealthy")
    """ConfigMaps of GPUs that must not be used."""
    pods: Objects = part("pods")
    """Those that ask for GPUs or hold some, the installation's own, and other GPU plugins'."""
