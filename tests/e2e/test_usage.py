"""What containers use, seen from outside, and the watchdog, with real containers on simulated GPUs.

The component `watchdog-kill` and the rights of `watchdog-evict` are added to the running installation, as they are in
the manifests. The processes are real; only how much they use is written by the test, in the place of the driver.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from gpushare import names
from gpushare.kube import api as kube
from localcluster.node import Node
from tests.e2e import disturb, plugins
from tests.e2e.system import Json, Share, System, allocated, gpushare, is_ready

pytestmark = pytest.mark.e2e

MANIFESTS = Path(__file__).parents[2] / "manifests"
FOUND = 3
"""Of the doctor: there are errors."""
FILE = "processes.json"  # beside the sockets, in the directory that the plugin's container has of the node
SETTINGS = {
    "GPUSHARE_WATCHDOG": "report",
    "GPUSHARE_WATCHDOG_GRACE": "5",
    "GPUSHARE_WATCHDOG_TOLERANCE_MIB": "0",
    "GPUSHARE_USAGE_INTERVAL": "1",
    "GPUSHARE_SIMULATED_PROCESSES": f"/var/lib/kubelet/device-plugins/{FILE}",
}


@pytest.fixture(scope="module")
def namespace(shared_namespace: str) -> str:
    """One for all tests here."""
    return shared_namespace


@pytest.fixture(scope="module", autouse=True)
def watchdog(system: System) -> Iterator[None]:
    """Plugins that see processes and may act; afterwards they are as before."""
    patches = [(MANIFESTS / "watchdog-kill" / each).read_text() for each in ("device-plugin.yaml", "capability.yaml")]
    rights = str(MANIFESTS / "watchdog-evict" / "rbac.yaml")
    system.cluster.kubectl("apply", "-f", rights)
    with plugins.patched(system, SETTINGS, *patches):
        yield
        system.cluster.kubectl("delete", "-f", rights)
    for node in system.cluster.nodes:
        (node.device_plugins_dir / FILE).unlink(missing_ok=True)


def pids(pod: Json) -> list[int]:
    """Of a pod's containers, without its sandbox, as the node counts them."""
    started = [status["containerID"].rpartition("/")[2] for status in pod["status"]["containerStatuses"]]
    found = []
    for pid in disturb.processes_of(pod):
        groups, status = (Path(f"/proc/{pid}/{name}").read_text() for name in ("cgroup", "status"))
        if any(each in groups for each in started):
            [line] = [line for line in status.splitlines() if line.startswith("NSpid:")]
            found.append(int(line.split()[2]))  # of this machine, of the node, of the container
    return found


def use(system: System, node: str, amounts: Mapping[str, tuple[Json, int]]) -> None:
    """Have each of these pods use so many MiB of its GPU, by one process; no other process uses any."""
    [found] = [each for each in system.cluster.nodes if each.name == node]
    processes = [
        {"gpu": next(iter(allocated(pod).values()))[0], "pid": pids(pod)[0], "memoryMiB": mib}
        for pod, mib in amounts.values()
    ]
    written = found.device_plugins_dir / f"{FILE}.new"
    written.write_text(json.dumps({"processes": processes}))
    written.replace(found.device_plugins_dir / FILE)


def on(node: Node, share: Share) -> Json:
    pod = share.document()
    pod["spec"]["nodeSelector"] = {"kubernetes.io/hostname": node.name}
    return pod


def shown(system: System, *arguments: str) -> str:
    code, out, err = gpushare(system, *arguments)
    assert code in {0, FOUND}, err
    return out


def test_use_is_shown_and_only_who_is_above_its_grant_is_touched(system: System, namespace: str) -> None:
    node = system.cluster.nodes[0]
    annotations = {"innocent": {}, "killed": {names.WATCHDOG: "kill"}, "evicted": {names.WATCHDOG: "evict"}}
    shares = [Share(name=name, gib=(2,), annotations=asked) for name, asked in annotations.items()]
    pods = [on(node, share) for share in shares]
    pods[1]["spec"]["securityContext"] = {"runAsUser": 65532}  # so that the signal needs the capability
    system.create(namespace, *pods)
    running = {pod["metadata"]["name"]: pod for pod in system.running(namespace, *annotations)}

    use(system, node.name, {name: (pod, 2048) for name, pod in running.items()})  # all of the grant

    def measured() -> bool:
        rows = json.loads(shown(system, "inspect", "--limits", "-o", "json"))["limits"]
        mine = [
            row for row in rows if (row["namespace"], row["pod"], row["container"]) == (namespace, "innocent", "c0")
        ]
        return [(row["grantedMiB"], row["usedMiB"], row["peakMiB"]) for row in mine] == [(2048, 2048, 2048)]

    system.eventually("what is used is shown", measured)
    [container] = json.loads(shown(system, "explain", f"{namespace}/innocent", "-o", "json"))["containers"]
    assert (container["memoryMiB"], container["usedMiB"], container["peakMiB"]) == (2048, 2048, 2048)

    checks = json.loads(shown(system, "doctor", "-o", "json"))["checks"]
    assert [each["result"] for each in checks if each["id"] == "usage"] == ["ok"]

    use(system, node.name, {name: (pod, 2048 if name == "innocent" else 2049) for name, pod in running.items()})
    system.eventually("one is evicted", lambda: any("GpuShareEvicted" in each for each in system.events(namespace)))
    system.eventually("it is gone", lambda: not system.exists(kube.pod_path(namespace, "evicted")))

    def restarted() -> bool:
        pod = system.pod(namespace, "killed")
        return is_ready(pod) and pod["status"]["containerStatuses"][0]["restartCount"] > 0

    system.eventually("the processes of the other were ended", restarted)
    told = system.events(namespace)
    assert any("GpuShareKilled: container c0 uses 2049 MiB" in each for each in told), told
    assert not [each for each in system.events(namespace, "innocent") if "GpuShareOverGrant" in each]
    innocent = system.pod(namespace, "innocent")
    assert innocent["status"]["containerStatuses"][0]["restartCount"] == 0
    assert set(pids(innocent)) == set(pids(running["innocent"]))
