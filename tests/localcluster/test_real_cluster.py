"""What tests rely on a cluster for, asked of a real one."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from localcluster import cgroups, leftovers, network
from localcluster.cluster import BUSYBOX_IMAGE, Cluster
from localcluster.process import wait_until
from localcluster.provision import Version

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.release,
    pytest.mark.timeout(1800),  # The first run on a machine builds Kubernetes.
    pytest.mark.skipif(os.geteuid() != 0, reason="a cluster needs root"),
]

SERVE = "mkdir /www && echo hello > /www/index.html && trap 'exit 0' TERM; httpd -f -p 8080 -h /www & wait"


def pod(name: str, node: str, *, command: str | None = None, **spec: object) -> dict[str, object]:
    container: dict[str, object] = {"name": "main", "image": BUSYBOX_IMAGE, "imagePullPolicy": "IfNotPresent"}
    if command is not None:
        container["command"] = ["sh", "-c", command]
    metadata = {"name": name, "labels": {"app": name}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": {"nodeName": node, "containers": [container], **spec},
    }


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(nodes=2, cdi={1}, say=print) as running:
        handler = {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": "nvidia"}}
        running.apply({**handler, "handler": "nvidia"})
        service = {"selector": {"app": "server"}, "ports": [{"port": 80, "targetPort": 8080}]}
        running.apply({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"}, "spec": service})
        running.apply(pod("client", "node-1", runtimeClassName="nvidia"), pod("server", "node-2", command=SERVE))
        running.kubectl("wait", "--for=condition=Ready", "pod", "--all", "--timeout=300s", timeout_s=330)
        yield running


def test_a_node_has_the_container_runtime_that_was_asked_for(cluster: Cluster) -> None:
    """Beside each other: one that injects CDI devices, and the machine's own with that off, or unknown to it."""
    nodes = json.loads(cluster.kubectl("get", "nodes", "--output=json").stdout)["items"]
    told = [node["status"]["nodeInfo"]["containerRuntimeVersion"] for node in nodes]
    assert [Version.parse(version) for version in told] == [node.runtime.version for node in cluster.nodes]
    enabled = ["enable_cdi = true" in (node.directory / "containerd.toml").read_text() for node in cluster.nodes]
    assert enabled == [True, False]


@pytest.mark.parametrize("client", ["client", "server"])
@pytest.mark.parametrize("name", ["web", "web.default.svc", "web.default.svc.cluster.local"])
def test_a_service_answers_by_name_from_every_node(cluster: Cluster, client: str, name: str) -> None:
    def answers() -> bool:
        done = cluster.kubectl("exec", client, "--", "http-get", name, "80", "/", check=False)
        return done.stdout.endswith("hello\n")

    wait_until(answers, f"{name} from {client}", 15)


def test_names_from_outside_are_refused_without_waiting_for_another_server(cluster: Cluster) -> None:
    done = cluster.kubectl("exec", "client", "--", "nslookup", "example.com", check=False)
    assert done.returncode != 0
    assert "NXDOMAIN" in done.stdout + done.stderr


def remains(owned: leftovers.Owned) -> list[Path]:
    places = [owned.workdir]
    # Another cluster on this machine may have taken the name as soon as it was free.
    if all(one.name != owned.name or one.owner == owned.owner for one in leftovers.existing()):
        places += [network.NAMESPACES / owned.name, Path("/sys/class/net") / owned.name, owned.path]
        places += [hierarchy / owned.name for hierarchy in cgroups.hierarchies()]
    return [place for place in places if place.exists()]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_nothing_remains(number: signal.Signals, tmp_path: Path) -> None:
    log = tmp_path / "log"
    with log.open("w") as output:
        argv = [sys.executable, "-m", "localcluster", "up", "--nodes", "1"]
        child = subprocess.Popen(argv, stdout=output, stderr=output)
    try:
        wait_until(lambda: "Ctrl-C" in log.read_text() or child.poll() is not None, "up", 1500)
        (owned,) = [one for one in leftovers.existing() if one.owner == child.pid]
    finally:
        child.send_signal(number)
        child.wait(60)
    if number == signal.SIGKILL:
        assert remains(owned)
        subprocess.run([sys.executable, "-m", "localcluster", "down"], check=True, timeout=60)
    assert remains(owned) == []
