"""Whether the installation as a whole is there, and the server one that it works with. Pure."""

from collections.abc import Iterator
from typing import Final

from gpushare import names
from gpushare.errors import SettingsError
from gpushare.model.request import Policy
from gpushare_cli.doctor import finding, objects, own
from gpushare_cli.doctor.cluster import Cluster
from gpushare_cli.doctor.finding import Finding
from gpushare_cli.doctor.snapshot import known
from gpushare_cli.scheduler_config import ServerVersion

_OLDEST: Final = ServerVersion(1, 20)
FIRST_WITH_CONDITIONS: Final = ServerVersion(1, 30)
"""Servers whose webhooks have matchConditions and whose policies are stable."""
_WATCHDOGS: Final = {"report": "usage", "evict": "watchdog-evict", "kill": "watchdog-kill"}
_OF_NAMESPACES: Final = {
    names.LABEL_LIMIT: (names.ENFORCED,),
    names.LABEL_POLICY: tuple(policy.value for policy in Policy),
    names.WATCHDOG: tuple(_WATCHDOGS),
}
"""What labels of namespaces may say."""
"""What a watchdog does -> the component of the manifests that has it do so."""


def installed(cluster: Cluster) -> Iterator[Finding]:
    """The installation's Namespace exists."""
    if known(cluster.snapshot.installed) is None:
        yield finding.error(
            f"namespace/{cluster.namespace}",
            "there is no such namespace, so gpushare is not installed or is in another one",
            "install it as docs/install.md says, or say which namespace with -n",
        )


def server_version(cluster: Cluster) -> Iterator[Finding]:
    """The server is one that the project supports."""
    server = cluster.snapshot.server
    if server < _OLDEST:
        yield finding.error(
            "server", f"Kubernetes {server} is older than {_OLDEST}, the oldest that works", "upgrade the cluster"
        )


def namespace_labels(cluster: Cluster) -> Iterator[Finding]:
    """kube-system, the installation's namespace and those of GPU add-ons have the label by which they are left alone.

    Servers before 1.21 do not set it.
    """
    excluded = {own.KUBE_SYSTEM, cluster.namespace, *names.ADDON_NAMESPACES}
    for namespace in known(cluster.snapshot.namespaces):
        name = str(namespace["metadata"]["name"])
        if name in excluded and objects.label(namespace, own.LABEL_NAMESPACE) != name:
            yield finding.warning(
                f"namespace/{name}",
                f"it lacks the label {own.LABEL_NAMESPACE}={name}, so the webhook does not leave its pods alone",
                f"kubectl label namespace {name} {own.LABEL_NAMESPACE}={name}",
            )


def isolation_exceptions(cluster: Cluster) -> Iterator[Finding]:
    """No namespace but kube-system and the installation's own is excluded from isolation."""
    for namespace in known(cluster.snapshot.namespaces):
        name = str(namespace["metadata"]["name"])
        if name in names.ADDON_NAMESPACES:
            yield finding.note(
                f"namespace/{name}",
                "its name excludes it, as one of GPU add-ons: its pods may see every GPU of their node",
                "if tenants may create pods there: take the name out of the webhook configuration and the policies",
            )
        elif objects.label(namespace, names.LABEL_ISOLATION) == "disabled":
            yield finding.note(
                f"namespace/{name}",
                f"the label {names.LABEL_ISOLATION}=disabled excludes it: its pods may see every GPU of their node",
                f"if that is not meant: kubectl label namespace {name} {names.LABEL_ISOLATION}-",
            )


def namespace_limits(cluster: Cluster) -> Iterator[Finding]:
    """Every namespace that asks for a strength of limits, a policy or a watchdog, asks for one that exists."""
    for namespace in known(cluster.snapshot.namespaces):
        name = str(namespace["metadata"]["name"])
        for label, values in _OF_NAMESPACES.items():
            value = objects.label(namespace, label)
            if value not in {"", *values}:
                yield finding.warning(
                    f"namespace/{name}",
                    f"the label {label}={value} has no effect; only {' or '.join(values)} has one",
                    f"kubectl label namespace {name} --overwrite {label}={values[0]}, or {label}-",
                )
            elif value and label == names.WATCHDOG and not cluster.reads_usage:
                yield finding.warning(
                    f"namespace/{name}",
                    f"the label {label}={value} has no effect: the device plugins do not read what containers use",
                    f"add manifests/{_WATCHDOGS[value]} to the overlay's components, or kubectl label namespace {name}"
                    f" {label}-",
                )


def settings(cluster: Cluster) -> Iterator[Finding]:
    """The settings that all components share are there and can be read."""
    where = f"configmap/{cluster.namespace}/{names.CONFIG}"
    if known(cluster.snapshot.settings) is None:
        yield finding.error(where, "it is missing, and no component's container starts without it", own.APPLY)
        return
    try:
        _ = cluster.settings
    except SettingsError as error:
        restart = cluster.kubectl("rollout restart deployment,daemonset")
        yield finding.error(where, str(error), f"{cluster.kubectl(f'edit configmap {names.CONFIG}')}; then: {restart}")


def runtime_class(cluster: Cluster) -> Iterator[Finding]:
    """The RuntimeClass exists that gives GPU pods NVIDIA's runtime, if a node needs that."""
    wanted = cluster.settings.runtime_class
    mode = cluster.settings.runtime_class_mode
    found = {each["metadata"]["name"] for each in known(cluster.snapshot.runtime_classes)}
    if wanted in found or not cluster.writes_runtime_class:
        return
    fix = (
        "run nvidia-ctk runtime configure --runtime=containerd (or crio) on the nodes, restart it, then create"
        f" the RuntimeClass {wanted} with the handler it made"
    )
    if mode == "always":
        yield finding.error(
            f"runtimeclass/{wanted}",
            "there is none, and the webhook writes it into every GPU pod, which no node runs",
            fix,
        )
    elif not cluster.is_simulated:
        yield finding.warning(
            f"runtimeclass/{wanted}",
            "there is none: containers see their GPUs only where NVIDIA's is the nodes' default runtime, and there"
            " every other pod runs under it too",
            fix,
        )
