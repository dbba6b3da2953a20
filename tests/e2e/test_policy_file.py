"""Configurations that administrators have: a real kube-scheduler asks this project's extender with them.

That is what `gpushare scheduler-config` prints, without and with all its options, up to 1.22 the Policy file of
Aliyun's guides, of which only the host is changed, and the one that is printed, and from 1.25 on the configuration of
JupyterHub's user-scheduler.
"""

import contextlib
import functools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit, urlunsplit

import pytest

from gpushare import names
from gpushare.kube import api as kube
from gpushare.model.request import Policy
from gpushare_cli import schedconfig
from gpushare_cli.doctor import objects
from gpushare_cli.schedconfig import Options, ServerVersion
from localcluster import installation, process
from localcluster.controlplane import MASTERS
from testing import notebooks, skips
from tests.e2e import checks
from tests.e2e.conftest import GPU_GIB
from tests.e2e.system import Share, System, is_ready
from tests.e2e.test_outages import scaled_to_zero

pytestmark = pytest.mark.e2e
POLICY = installation.ROOT / "tests" / "seeds" / "policy.cfg"
NAME = "aliyun-policy"
"""Of the scheduler: the cluster's own must not take the pods meanwhile."""
PORT = 10359
LAST_WITH_POLICIES, FIRST_WITH_V1 = (1, 22), (1, 25)
ZONE = "topology.kubernetes.io/zone"


def extender(system: System) -> str:
    """Host and port of the controller's Service, reached without its name as from a control-plane node."""
    service = system.api.get(f"/api/v1/namespaces/{names.NAMESPACE}/services/{names.CONTROLLER_SERVICE}")
    return f"{service['spec']['clusterIP']}:{service['spec']['ports'][0]['port']}"


Flags = Sequence[str]
ALL: Final[Mapping[str, Any]] = {"others_weight": schedconfig.OTHERS_WEIGHT, "most_allocated": True}
"""Options that change what kube-scheduler does with pods without GPUs."""


def alone() -> Flags:
    """Flags that keep two schedulers of one machine apart."""
    return ["--leader-elect=false", f"--scheduler-name={NAME}", "--port=0"]


def of_aliyun(_: System, kubeconfig: Path, host: str, directory: Path) -> Flags:
    """The flags of the old installation guides."""
    policy = json.loads(POLICY.read_text(encoding="utf-8"))
    [entry] = policy["extenders"]
    entry["urlPrefix"] = urlunsplit(urlsplit(entry["urlPrefix"])._replace(netloc=host))
    path = directory / "policy.cfg"
    path.write_text(json.dumps(policy))
    return [f"--policy-config-file={path}", f"--kubeconfig={kubeconfig}", *alone()]


def options(system: System, kubeconfig: Path, host: str, **more: Any) -> Options:
    return Options(
        server=ServerVersion.parse(str(system.cluster.version)),
        url=f"http://{host}{names.EXTENDER_PREFIX}",
        scheduler_name=NAME,
        lease_name=NAME,
        kubeconfig=str(kubeconfig),
        **more,
    )


def printed_policy(system: System, kubeconfig: Path, host: str, directory: Path) -> Flags:
    path = directory / "policy.json"
    chosen = options(system, kubeconfig, host, **ALL)
    path.write_text(schedconfig.policy(chosen))
    flags = schedconfig.policy_flags(chosen, str(path))
    return [*(flag for flag in flags if not flag.startswith(("--leader-elect", "--scheduler-name"))), *alone()]


def printed(system: System, kubeconfig: Path, host: str, directory: Path, **more: Any) -> Flags:
    path = directory / "scheduler.yaml"
    configuration = schedconfig.configuration(options(system, kubeconfig, host, **more))
    # Old versions: the plain-text port is taken by the cluster's own, which is not in a pod here.
    path.write_text(configuration.replace("127.0.0.1:10251", "127.0.0.1:10361"))
    return [f"--config={path}"]


def of_jupyterhub(_: System, kubeconfig: Path, host: str, directory: Path) -> Flags:
    """The user-scheduler of docs/jupyterhub.md; only names and addresses differ."""
    configuration = notebooks.user_scheduler()
    configuration["clientConnection"]["kubeconfig"] = str(kubeconfig)
    configuration["leaderElection"]["resourceNamespace"] = names.NAMESPACE
    [profile], [entry] = configuration["profiles"], configuration["extenders"]
    profile["schedulerName"] = NAME
    entry["urlPrefix"] = urlunsplit(urlsplit(entry["urlPrefix"])._replace(netloc=host))
    path = directory / "user-scheduler.json"
    path.write_text(json.dumps(configuration))
    return [f"--config={path}"]


MANY: Final = 6
"""Replicas, at which kube-scheduler's default spreading outvotes an extender of weight 1."""
WAYS: Final[Mapping[str, Callable[[System, Path, str, Path], Flags]]] = {
    "Aliyun's policy file": of_aliyun,
    "printed policy file, all options": printed_policy,
    "printed configuration": printed,
    "printed configuration, all options": functools.partial(printed, **ALL),
    "printed configuration, old weight": functools.partial(printed, weight=1),
    "JupyterHub's user-scheduler": of_jupyterhub,
}


def readable(system: System) -> Sequence[str]:
    """The ways that kube-scheduler of the cluster's version knows."""
    version = (system.cluster.version.major, system.cluster.version.minor)
    unknown = "policy" if version > LAST_WITH_POLICIES else "user-scheduler" if version < FIRST_WITH_V1 else None
    return [way for way in WAYS if unknown is None or unknown not in way]


@contextlib.contextmanager
def another_scheduler(system: System, way: str, directory: Path) -> Iterator[process.Process]:
    """A kube-scheduler beside the cluster's own, where that one runs."""
    control, cluster = system.cluster.control, system.cluster
    program = str(cluster.program("kube-scheduler"))
    enter = control.scheduler.argv[: control.scheduler.argv.index(program)]
    kubeconfig = control.kubeconfig_for(NAME, control.authority.issue(NAME, NAME, organization=MASTERS))
    flags = WAYS[way](system, kubeconfig, extender(system), directory)
    log = cluster.logs / f"kube-scheduler-{NAME}.log"
    running = process.Process(NAME, [*enter, program, *flags, f"--secure-port={PORT}", "--v=2"], log)
    running.start()
    try:
        yield running
    finally:
        running.kill()


def wait_until_it_runs(system: System, namespace: str, name: str, scheduler: process.Process) -> None:
    def runs() -> bool:
        scheduler.check_alive()
        return is_ready(system.pod(namespace, name))

    system.eventually(f"{name} runs", runs)


@pytest.mark.parametrize("way", [way for way in WAYS if "old weight" not in way])
def test_the_administrators_configuration_drives_the_extender(
    system: System, namespace: str, tmp_path: Path, way: str
) -> None:
    """Two shares that fit one GPU of the node together, one that does not, and one that fits nowhere."""
    if way not in readable(system):
        skips.expected(f"kube-scheduler {system.cluster.version} reads no such file")
    node = system.cluster.nodes[0].name
    sizes, binpack = (10, 10, GPU_GIB - 8, GPU_GIB + 1), {names.ANNOTATION_POLICY: Policy.BINPACK.value}
    pods = [Share(name=f"p{i}", gib=(gib,), annotations=binpack).document() for i, gib in enumerate(sizes)]
    for pod in pods:
        pod["spec"] |= {"schedulerName": NAME, "nodeSelector": {"kubernetes.io/hostname": node}}
    with another_scheduler(system, way, tmp_path) as scheduler:
        for pod in pods:
            system.create(namespace, pod)
            if pod is not pods[-1]:
                wait_until_it_runs(system, namespace, pod["metadata"]["name"], scheduler)
        expected = f"needs {GPU_GIB + 1} GiB on one GPU; free per GPU on {node}: "
        system.eventually("the last is told the numbers", lambda: expected in "".join(system.events(namespace, "p3")))

    running = [system.pod(namespace, f"p{i}") for i in range(3)]
    assert {pod["spec"]["schedulerName"] for pod in running} == {NAME}, "the webhook leaves other schedulers' names"
    checks.every_container_sees_exactly_its_gpus(system, namespace, running)
    checks.the_controllers_ledger_equals_the_pods(system)
    first, second, third = (pod["metadata"]["annotations"][names.ALIYUN_IDX] for pod in running)
    assert first == second, "the fullest GPU that fits"
    assert third != first
    assert not system.pod(namespace, "p3")["spec"].get("nodeName")


def test_pods_without_gpus_are_scheduled_with_and_without_the_controller(
    system: System, namespace: str, tmp_path: Path
) -> None:
    """Kube-scheduler asks the controller about them, and goes on without its answer; GPU pods wait for it."""
    with another_scheduler(system, "printed configuration, all options", tmp_path) as scheduler:
        schedule(system, namespace, Share(name="asked", gib=(None,)), Share(name="asked-too", gib=(None,)))
        assert ranked(system) >= 2
        with scaled_to_zero(system, "gpushare-controller", "controller"):
            create(system, namespace, Share(name="gpu"))
            schedule(system, namespace, Share(name="alone", gib=(None,)), Share(name="alone-too", gib=(None,)))
            scheduler.check_alive()
            assert not has_node(system, namespace, "gpu")
        wait_until_it_runs(system, namespace, "gpu", scheduler)


@pytest.mark.parametrize(("way", "nodes"), [("printed configuration", 1), ("printed configuration, old weight", 2)])
def test_the_printed_weight_packs_replicas_that_kube_scheduler_would_spread(
    system: System, namespace: str, tmp_path: Path, way: str, nodes: int
) -> None:
    with zones(system), another_scheduler(system, way, tmp_path) as scheduler:
        labels = {"app": "replicas"}
        pod = Share(name="replica", labels=labels).document()
        pod["spec"]["schedulerName"] = NAME
        metadata = {"name": "replicas"}
        spec = {"replicas": MANY, "selector": {"matchLabels": labels}, "template": pod}
        replicas = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": metadata, "spec": spec}
        system.api.create(f"/apis/apps/v1/namespaces/{namespace}/replicasets", replicas)
        found = system.all_running(namespace, MANY)
        scheduler.check_alive()
    assert len({pod["spec"]["nodeName"] for pod in found}) == nodes


def ranked(system: System) -> float:
    """How often the controller has ranked nodes for pods without GPUs."""
    page = system.api.ask(kube.proxy_path(names.NAMESPACE, f"{names.CONTROLLER}:12345", "metrics"), timeout_s=30.0)
    verb = f'verb="{names.OTHERS_VERB}"'
    return objects.counted(page.text, "gpushare_extender_requests_total", verb, 'outcome="scored"')


@contextlib.contextmanager
def zones(system: System) -> Iterator[None]:
    """Each node in a zone of its own: without zones, 1.20 spreads nothing by default."""
    for node in system.cluster.nodes:
        system.cluster.kubectl("label", "node", node.name, f"{ZONE}=zone-of-{node.name}")
    try:
        yield
    finally:
        for node in system.cluster.nodes:
            system.cluster.kubectl("label", "node", node.name, f"{ZONE}-")


def create(system: System, namespace: str, *shares: Share) -> None:
    pods = [share.document() for share in shares]
    for pod in pods:
        pod["spec"]["schedulerName"] = NAME
    system.create(namespace, *pods)


def schedule(system: System, namespace: str, *shares: Share) -> None:
    """Create pods, and wait until each has a node."""
    create(system, namespace, *shares)
    for share in shares:
        system.eventually(f"{share.name} has a node", functools.partial(has_node, system, namespace, share.name))


def has_node(system: System, namespace: str, name: str) -> bool:
    return bool(system.pod(namespace, name)["spec"].get("nodeName"))
