"""Configurations that administrators have: a real kube-scheduler asks this project's extender with them.

Up to 1.22 that is the Policy file of Aliyun's guides, of which only the host is changed; later versions read no such
files, and there it is the configuration that `gpushare scheduler-config` prints.
"""

import contextlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import pytest

from gpushare import names
from gpushare_cli import schedconfig
from gpushare_cli.schedconfig import Options, ServerVersion
from localcluster import installation, process
from localcluster.controlplane import MASTERS
from tests.e2e import checks
from tests.e2e.conftest import GPU_GIB
from tests.e2e.system import Share, System, is_ready

pytestmark = pytest.mark.e2e
POLICY = installation.ROOT / "tests" / "seeds" / "policy.cfg"
NAME = "aliyun-policy"
"""Of the scheduler: the cluster's own must not take the pods meanwhile."""
PORT = 10359
LAST_WITH_POLICIES = (1, 22)


def extender(system: System) -> str:
    """Host and port of the controller's Service, reached without its name as from a control-plane node."""
    service = system.api.get(f"/api/v1/namespaces/{names.NAMESPACE}/services/{names.CONTROLLER_SERVICE}")
    return f"{service['spec']['clusterIP']}:{service['spec']['ports'][0]['port']}"


def with_policy_file(kubeconfig: Path, host: str, directory: Path) -> Sequence[str]:
    """The flags of the old installation guides, and those that keep two schedulers of one machine apart."""
    policy = json.loads(POLICY.read_text(encoding="utf-8"))
    [entry] = policy["extenders"]
    entry["urlPrefix"] = urlunsplit(urlsplit(entry["urlPrefix"])._replace(netloc=host))
    path = directory / "policy.cfg"
    path.write_text(json.dumps(policy))
    flags = [f"--policy-config-file={path}", f"--kubeconfig={kubeconfig}", "--leader-elect=false"]
    return [*flags, f"--scheduler-name={NAME}", "--port=0"]


def with_configuration(system: System, kubeconfig: Path, host: str, directory: Path) -> Sequence[str]:
    options = Options(
        server=ServerVersion.parse(str(system.cluster.version)),
        url=f"http://{host}{names.EXTENDER_PREFIX}",
        scheduler_name=NAME,
        lease_name=NAME,
        kubeconfig=str(kubeconfig),
    )
    path = directory / "scheduler.yaml"
    path.write_text(schedconfig.configuration(options))
    return [f"--config={path}"]


@contextlib.contextmanager
def another_scheduler(system: System, directory: Path) -> Iterator[process.Process]:
    """A kube-scheduler beside the cluster's own, where that one runs."""
    control, cluster = system.cluster.control, system.cluster
    program = str(cluster.program("kube-scheduler"))
    enter = control.scheduler.argv[: control.scheduler.argv.index(program)]
    kubeconfig = control.kubeconfig_for(NAME, control.authority.issue(NAME, NAME, organization=MASTERS))
    if (cluster.version.major, cluster.version.minor) <= LAST_WITH_POLICIES:
        flags = with_policy_file(kubeconfig, extender(system), directory)
    else:
        flags = with_configuration(system, kubeconfig, extender(system), directory)
    log = cluster.logs / f"kube-scheduler-{NAME}.log"
    running = process.Process(NAME, [*enter, program, *flags, f"--secure-port={PORT}", "--v=2"], log)
    running.start()
    try:
        yield running
    finally:
        running.kill()


def wait_until_it_runs(system: System, namespace: str, name: str) -> None:
    system.eventually(f"{name} runs", lambda: is_ready(system.pod(namespace, name)))


def test_the_administrators_configuration_drives_the_extender(system: System, namespace: str, tmp_path: Path) -> None:
    """Two shares that fit one GPU of the node together, one that does not, and one that fits nowhere."""
    node = system.cluster.nodes[0].name
    pods = [Share(name=f"p{i}", gib=(gib,)).document() for i, gib in enumerate((10, 10, GPU_GIB - 8, GPU_GIB + 1))]
    for pod in pods:
        pod["spec"] |= {"schedulerName": NAME, "nodeSelector": {"kubernetes.io/hostname": node}}
    with another_scheduler(system, tmp_path) as scheduler:
        for pod in pods:
            system.create(namespace, pod)
            scheduler.check_alive()
            if pod is not pods[-1]:
                wait_until_it_runs(system, namespace, pod["metadata"]["name"])
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
