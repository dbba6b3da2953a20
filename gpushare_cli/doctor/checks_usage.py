"""Whether what containers use is read where it should be. Pure."""

from collections.abc import Iterator

from gpushare import names
from gpushare_cli import limits
from gpushare_cli.doctor import finding, objects, own
from gpushare_cli.doctor.cluster import Cluster
from gpushare_cli.doctor.finding import Finding
from gpushare_cli.doctor.snapshot import NothingToCheckError, known


def usage(cluster: Cluster) -> Iterator[Finding]:
    """Where the device plugins are to read what containers use, and a watchdog to act on it, they can."""
    plugin = known(cluster.snapshot.plugin)
    if plugin is None:
        raise NothingToCheckError("there is no DaemonSet")
    if not cluster.reads_usage:
        return
    where = f"daemonset/{cluster.namespace}/{names.PLUGIN}"
    if objects.pod_spec(plugin).get("hostPID") is not True:
        yield finding.warning(
            where,
            "its pods are to read what containers use (GPUSHARE_USAGE, GPUSHARE_WATCHDOG), and do not see the processes"
            " of their nodes: nothing is read, and no watchdog acts",
            "add manifests/usage or a component of the watchdog to the overlay (it sets hostPID), or take the two away",
        )
        return
    logs = cluster.kubectl(f"logs -l {own.LABEL_APP}={names.PLUGIN}")
    fix = (
        f"see the pods' logs: {logs}; where network policies are enforced, {names.PLUGIN} has to admit the API server"
        " to its port metrics"
    )
    for problem in limits.notes(known(cluster.snapshot.usage)):
        yield finding.warning(where, problem, fix)
