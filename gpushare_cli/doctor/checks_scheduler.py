"""Whether a scheduler places GPU pods, and asks the controller about them. Pure."""

from collections.abc import Iterator, Mapping
from typing import Any

from gpushare import names
from gpushare.errors import SettingsError, WireError
from gpushare.wire import fields
from gpushare_cli import scheduler_config, yamls
from gpushare_cli.doctor import checks_controller, finding, objects, own, scheduler_file
from gpushare_cli.doctor.cluster import Cluster
from gpushare_cli.doctor.finding import Finding
from gpushare_cli.doctor.snapshot import NothingToCheckError, Unread, known
from gpushare_cli.scheduler_config import DEFAULT_SCHEDULER, Options, ServerVersion


def running(cluster: Cluster) -> Iterator[Finding]:
    """The scheduler that GPU pods name runs."""
    wanted = cluster.settings.scheduler_name
    if wanted != names.SCHEDULER:
        yield finding.note(
            f"configmap/{cluster.namespace}/{names.CONFIG}",
            f"GPU pods go to {wanted or DEFAULT_SCHEDULER}, whose configuration cannot be read through the API server",
            "compare its file with: gpushare scheduler-config"
            f" --server-version {cluster.snapshot.server} --scheduler-name '{wanted}'",
        )
        return
    where = f"deployment/{cluster.namespace}/{names.SCHEDULER}"
    deployment = known(cluster.snapshot.scheduler_deployment)
    waiting = f"; {count} GPU pods wait for it" if (count := _waiting(cluster, wanted)) else ""
    if deployment is None:
        yield finding.error(where, f"it is missing, so no one schedules GPU pods{waiting}", own.APPLY)
        return
    ready, replicas = objects.replicas(deployment)
    look = cluster.kubectl(f"get pods -l {own.LABEL_APP}={names.SCHEDULER}")
    logs = cluster.kubectl(f"logs deploy/{names.SCHEDULER}")
    if not ready:
        problem = f"0 of {replicas} replicas are ready, so no one schedules GPU pods{waiting}"
        yield finding.error(where, problem, f"{look}; {logs}")
    elif ready < replicas:
        yield finding.warning(where, f"{ready} of {replicas} replicas are ready", f"{look}; {logs}")


def leads(cluster: Cluster) -> Iterator[Finding]:
    """One replica of the second scheduler leads."""
    _needs_second(cluster)
    problem = checks_controller.lease_problem(known(cluster.snapshot.scheduler_lease), cluster.now)
    if problem:
        logs = cluster.kubectl(f"logs -l {own.LABEL_APP}={names.SCHEDULER} --prefix --tail=100")
        yield finding.error(
            f"lease/{cluster.namespace}/{names.SCHEDULER}", f"{problem}, so no one schedules GPU pods", logs
        )


def configuration(cluster: Cluster) -> Iterator[Finding]:
    """The second scheduler asks the controller, for everything that it should."""
    _needs_second(cluster)
    where = f"configmap/{cluster.namespace}/{own.SCHEDULER_SETTINGS}"
    config = known(cluster.snapshot.scheduler_settings)
    if config is None:
        yield finding.error(where, "it is missing, and the scheduler does not start without it", own.APPLY)
        return
    whole = " --whole-gpus" if cluster.settings.whole_gpus else ""
    restart = cluster.kubectl(f"rollout restart deployment/{names.SCHEDULER}")
    fix = (
        f"write what this prints into its key {own.SCHEDULER_KEY}: gpushare scheduler-config --server-version"
        f" {cluster.snapshot.server}{whole}; then: {restart}"
    )
    try:
        found = scheduler_file.parsed(config)
        expected = _shipped(cluster)
    except (WireError, SettingsError) as error:
        yield finding.error(where, str(error), fix)
        return
    for problem in scheduler_file.problems(found, expected, cluster.settings.scheduler_name):
        yield finding.error(where, problem, fix)
    for weakness in scheduler_file.weaknesses(found):
        yield finding.warning(where, weakness, fix)


def version(cluster: Cluster) -> Iterator[Finding]:
    """The second scheduler has the server's minor version, or the one before it."""
    _needs_second(cluster)
    deployment = known(cluster.snapshot.scheduler_deployment)
    server = cluster.snapshot.server
    for container in fields.objects(objects.pod_spec(deployment or {}), "containers", "spec"):
        tag = fields.text(container, "image", "container").partition("@")[0].rpartition(":")[2]
        try:
            found = ServerVersion.parse(tag)
        except SettingsError:
            continue  # somebody's own tag, or none; nothing says that it is wrong
        if not 0 <= server.minor - found.minor <= 1:
            yield finding.warning(
                f"deployment/{cluster.namespace}/{names.SCHEDULER}",
                f"kube-scheduler {found} runs against a server {server};"
                " it may be one minor version older, and not newer",
                f"set newTag: v{server}.0 for registry.k8s.io/kube-scheduler in the overlay, and apply it",
            )


def parsed_settings(cluster: Cluster) -> Mapping[str, Any]:
    """The second scheduler's configuration; empty if there is none that can be read."""
    config = known(cluster.snapshot.scheduler_settings)
    try:
        return scheduler_file.parsed(config) if config else {}
    except WireError:
        return {}


def _shipped(cluster: Cluster) -> Mapping[str, Any]:
    """The extender as `gpushare scheduler-config` writes it for this server."""
    options = Options(server=cluster.snapshot.server, whole_gpus=cluster.settings.whole_gpus)
    [written] = yamls.load_all(scheduler_config.configuration(options), own.SCHEDULER_KEY)
    [extender] = scheduler_file.extenders(fields.an_object(written, own.SCHEDULER_KEY))
    return extender


def _waiting(cluster: Cluster, scheduler: str) -> int:
    """GPU pods on no node that name this scheduler, if anybody can tell."""
    if isinstance(cluster.snapshot.pods, Unread):
        return 0
    return sum(
        not (pod.get("spec") or {}).get("nodeName") and (pod.get("spec") or {}).get("schedulerName") == scheduler
        for pod, _ in cluster.pods
    )


def _needs_second(cluster: Cluster) -> None:
    if cluster.settings.scheduler_name != names.SCHEDULER:
        raise NothingToCheckError("GPU pods go to another scheduler")
