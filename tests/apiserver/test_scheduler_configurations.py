"""Configurations that administrators have: a real kube-scheduler asks this project's extender with them.

That is what `gpushare scheduler-config` prints, without and with all its options, up to 1.22 the Policy file of
Aliyun's guides, of which only the host is changed, and the one that is printed, and from 1.25 on the configuration of
JupyterHub's user-scheduler.
"""

import contextlib
import functools
import itertools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit, urlunsplit

import pytest

from gpushare import names
from gpushare.model.request import Policy
from gpushare.wire.claims import API as CLAIMS_API
from gpushare_cli import scheduler_config
from gpushare_cli.doctor import objects
from gpushare_cli.scheduler_config import Options, ServerVersion
from localcluster import controlplane, installation, process
from localcluster.controlplane import MASTERS
from testing import claims, notebooks, skips
from tests.apiserver.conftest import CLAIMS_SINCE, shared_by_claims
from tests.apiserver.server import Json, Server, fetch, gpu_of, pod

POLICY = installation.ROOT / "tests" / "seeds" / "policy.cfg"
NAME = "aliyun-policy"
"""Of the scheduler: the cluster's own must not take the pods meanwhile."""
LAST_WITH_POLICIES, FIRST_WITH_V1 = (1, 22), (1, 25)
ZONE = "topology.kubernetes.io/zone"


Flags = Sequence[str]
ALL: Final[Mapping[str, Any]] = {"others_weight": scheduler_config.OTHERS_WEIGHT, "most_allocated": True}
"""Options that change what kube-scheduler does with pods without GPUs."""


def alone() -> Flags:
    """Flags that keep two schedulers of one machine apart."""
    return ["--leader-elect=false", f"--scheduler-name={NAME}", "--port=0"]


def of_aliyun(server: Server, kubeconfig: Path, directory: Path) -> Flags:
    """The flags of the old installation guides."""
    policy = json.loads(POLICY.read_text(encoding="utf-8"))
    [entry] = policy["extenders"]
    entry["urlPrefix"] = called(server, entry["urlPrefix"])
    path = directory / "policy.cfg"
    path.write_text(json.dumps(policy))
    return [f"--policy-config-file={path}", f"--kubeconfig={kubeconfig}", *alone()]


def options(server: Server, kubeconfig: Path, **more: Any) -> Options:
    return Options(
        server=ServerVersion.parse(str(server.version)),
        url=server.running.extender + names.EXTENDER_PREFIX,
        scheduler_name=NAME,
        lease_name=NAME,
        kubeconfig=str(kubeconfig),
        **more,
    )


def printed_policy(server: Server, kubeconfig: Path, directory: Path) -> Flags:
    path = directory / "policy.json"
    chosen = options(server, kubeconfig, **ALL)
    path.write_text(scheduler_config.policy(chosen))
    flags = scheduler_config.policy_flags(chosen, str(path))
    return [*(flag for flag in flags if not flag.startswith(("--leader-elect", "--scheduler-name"))), *alone()]


def printed(server: Server, kubeconfig: Path, directory: Path, **more: Any) -> Flags:
    path = directory / "scheduler.yaml"
    configuration = scheduler_config.configuration(options(server, kubeconfig, **more))
    # Old versions: a port of plain text, which others on this machine may have.
    [port] = controlplane.free_ports(1)
    path.write_text(configuration.replace("127.0.0.1:10251", f"127.0.0.1:{port}"))
    return [f"--config={path}"]


def of_jupyterhub(server: Server, kubeconfig: Path, directory: Path) -> Flags:
    """The user-scheduler of docs/jupyterhub.md; only names and addresses differ."""
    configuration = notebooks.user_scheduler()
    configuration["clientConnection"]["kubeconfig"] = str(kubeconfig)
    configuration["leaderElection"]["resourceNamespace"] = names.NAMESPACE
    [profile], [entry] = configuration["profiles"], configuration["extenders"]
    profile["schedulerName"] = NAME
    entry["urlPrefix"] = called(server, entry["urlPrefix"])
    path = directory / "user-scheduler.json"
    path.write_text(json.dumps(configuration))
    return [f"--config={path}"]


MANY: Final = 6
"""Replicas, at which kube-scheduler's default spreading outvotes an extender of weight 1."""
WAYS: Final[Mapping[str, Callable[[Server, Path, Path], Flags]]] = {
    "Aliyun's policy file": of_aliyun,
    "printed policy file, all options": printed_policy,
    "printed configuration": printed,
    "printed configuration, all options": functools.partial(printed, **ALL),
    "printed configuration, others ranked": functools.partial(printed, others_weight=scheduler_config.OTHERS_WEIGHT),
    "printed configuration, old weight": functools.partial(printed, weight=1),
    "JupyterHub's user-scheduler": of_jupyterhub,
}


def called(server: Server, url: str) -> str:
    """The same path at the controller."""
    return urlunsplit(urlsplit(url)._replace(netloc=urlsplit(server.running.extender).netloc))


def is_readable(server: Server, way: str) -> bool:
    version = (server.version.major, server.version.minor)
    if "policy" in way:
        return version <= LAST_WITH_POLICIES
    return "user-scheduler" not in way or version >= FIRST_WITH_V1


@contextlib.contextmanager
def another_scheduler(server: Server, way: str, directory: Path) -> Iterator[process.Process]:
    kubeconfig = server.running.kubeconfig(NAME, MASTERS)
    flags = WAYS[way](server, kubeconfig, directory)
    [port] = controlplane.free_ports(1)
    argv: list[str | Path] = [server.running.programs["kube-scheduler"], *flags, f"--secure-port={port}", "--v=2"]
    running = process.Process(NAME, argv, server.running.logs / f"kube-scheduler-{NAME}.log")
    running.start()
    try:
        yield running
    finally:
        running.kill()


@pytest.fixture(autouse=True)
def nodes(server: Server) -> Iterator[None]:
    """Each in a zone of its own: without zones, 1.20 spreads nothing by default."""
    with server.node("zone-1", (26,) * 4, labels={ZONE: "one"}), server.node("zone-2", (26,) * 4, labels={ZONE: "two"}):
        yield


def create(server: Server, namespace: str, *pods: Json) -> None:
    for made in pods:
        server.create_pod(namespace, {**made, "spec": {**made["spec"], "schedulerName": NAME}})


def bound(server: Server, namespace: str, *pods: Json) -> list[Json]:
    create(server, namespace, *pods)
    return server.bound(namespace, *[made["metadata"]["name"] for made in pods])


@pytest.mark.parametrize("way", [way for way in WAYS if "old weight" not in way])
def test_the_administrators_configuration_drives_the_extender(
    server: Server, namespace: str, tmp_path: Path, way: str
) -> None:
    """Two shares that fit one GPU of the node together, one that does not, and one that fits nowhere."""
    if not is_readable(server, way):
        skips.expected(f"kube-scheduler {server.version} reads no such file")
    binpack = {names.ANNOTATION_POLICY: Policy.BINPACK.value}
    pods = [pod(f"p{i}", gib, node="zone-1", annotations=binpack) for i, gib in enumerate((10, 10, 18, 27))]
    with another_scheduler(server, way, tmp_path) as scheduler:
        first, second, third = (gpu_of(each) for made in pods[:3] for each in bound(server, namespace, made))
        create(server, namespace, pods[3])
        expected = "needs 27 GiB on one GPU; free per GPU on zone-1: "
        server.eventually("the last is told the numbers", lambda: expected in "".join(server.events(namespace, "p3")))
        scheduler.check_alive()
    assert first == second, "the fullest GPU that fits"
    assert third != first
    assert not server.pod(namespace, "p3")["spec"].get("nodeName")
    assert {made["spec"]["schedulerName"] for made in server.pods(namespace)} == {NAME}, "the webhook leaves the name"


def test_pods_without_gpus_are_scheduled_with_and_without_the_controller(
    server: Server, namespace: str, tmp_path: Path
) -> None:
    """Kube-scheduler asks the controller about them, and goes on without its answer; GPU pods wait for it."""
    with another_scheduler(server, "printed configuration, all options", tmp_path) as scheduler:
        before, numbers = ranked(server), itertools.count()

        def asked() -> bool:
            """A busy controller may answer too late for the scheduler, and count the question later."""
            bound(server, namespace, pod(f"asked-{next(numbers)}", None))
            return ranked(server) >= before + 2

        server.eventually("the controller is asked about them", asked)
        with server.running.without(names.CONTROLLER):
            create(server, namespace, pod("gpu", 1))
            bound(server, namespace, pod("alone", None), pod("alone-too", None))
            scheduler.check_alive()
            assert not server.pod(namespace, "gpu")["spec"].get("nodeName")
        server.bound(namespace, "gpu")


@pytest.mark.parametrize(("way", "count"), [("printed configuration", 1), ("printed configuration, old weight", 2)])
def test_the_printed_weight_packs_replicas_that_kube_scheduler_would_spread(
    server: Server, namespace: str, tmp_path: Path, way: str, count: int
) -> None:
    labels = {"app": "replicas"}
    template = pod("", 1, labels=labels, schedulerName=NAME)
    spec = {"replicas": MANY, "selector": {"matchLabels": labels}, "template": template}
    path = f"/apis/apps/v1/namespaces/{namespace}/replicasets"
    with another_scheduler(server, way, tmp_path) as scheduler:
        server.api.create(path, {"metadata": {"name": "replicas"}, "spec": spec})
        server.eventually("all are created", lambda: len(server.pods(namespace)) == MANY)
        found = server.bound(namespace, *[made["metadata"]["name"] for made in server.pods(namespace)])
        scheduler.check_alive()
    assert len({made["spec"]["nodeName"] for made in found}) == count
    server.api.delete(f"{path}/replicas", {"propagationPolicy": "Background"})


def ranked(server: Server) -> float:
    """How often the controller has ranked nodes for pods without GPUs."""
    page = fetch(f"{server.running.probes}/metrics")
    return objects.counted(page, "gpushare_extender_requests_total", verb=names.OTHERS_VERB, outcome="scored")


# ResourceClaims, which the cluster's scheduler allocates.


def claiming(server: Server, namespace: str, name: str, gib: int) -> Json:
    path = f"{CLAIMS_API}/namespaces/{namespace}/resourceclaimtemplates"
    if not server.exists(f"{path}/of-{gib}"):
        server.api.create(path, claims.template(f"of-{gib}", gib))
    made = pod(name, None)
    made["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimTemplateName": f"of-{gib}"}]
    return made


@pytest.mark.parametrize(("way", "count"), [("printed configuration", 2), ("printed configuration, others ranked", 1)])
def test_pods_with_claims_are_packed_where_the_controller_ranks_nodes_for_them(
    server: Server, namespace: str, tmp_path: Path, way: str, count: int
) -> None:
    skips.older(server.version, CLAIMS_SINCE, "it has no claims for amounts of memory")
    with shared_by_claims(server, "zone-1", "zone-2"), another_scheduler(server, way, tmp_path) as scheduler:
        found = [
            node
            for i in range(4)
            for made in bound(server, namespace, claiming(server, namespace, f"claims-{i}", 3))
            if (node := made["spec"]["nodeName"])
        ]
        scheduler.check_alive()
        create(server, namespace, claiming(server, namespace, "large", 27))
        numbers = "needs 27 GiB on one GPU; free per GPU on zone-"
        server.eventually("the last is told the numbers", lambda: numbers in "".join(server.events(namespace, "large")))
    assert len(set(found)) == count
