"""What containers use, seen from outside and by a real Prometheus, and the watchdog, with simulated GPUs.

The component `watchdog-kill` and the rights of `watchdog-evict` are added to the running installation, as they are in
the manifests. The processes are real; only how much they use is written by the test, in the place of the driver.
"""

import base64
import contextlib
import json
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from gpushare import names
from gpushare.kube import api as kube
from localcluster import installation, process, prometheus
from release.pages import metrics
from testing import pages
from testing.fakes.http_server import free_port
from testing.manifests import tree
from tests.e2e import disturb
from tests.e2e.system import Json, System, allocated, gpushare_json, make_pod, restarts

MANIFESTS: Final = installation.ROOT / "manifests"
FILE: Final = "processes.json"  # beside the sockets, in the directory that the plugin's container has of the node
MIB: Final = 1024 * 1024
SETTINGS: Final = {
    "GPUSHARE_WATCHDOG": "report",
    "GPUSHARE_WATCHDOG_GRACE": "5",
    "GPUSHARE_WATCHDOG_TOLERANCE_MIB": "0",
    "GPUSHARE_USAGE_INTERVAL": "1",
    "GPUSHARE_SIMULATED_PROCESSES": f"/var/lib/kubelet/device-plugins/{FILE}",
}


@pytest.fixture(scope="module")
def namespace(shared_namespace: str) -> str:
    return shared_namespace


@pytest.fixture(scope="module", autouse=True)
def watchdog(system: System) -> Iterator[None]:
    """Plugins that see processes and may act; afterwards they are as before."""
    rights = str(MANIFESTS / "watchdog-evict" / "objects.yaml")
    system.cluster.kubectl("apply", "-f", rights)
    with disturb.patched_plugins(system, SETTINGS, *tree.patches("watchdog-kill")):
        yield
        system.cluster.kubectl("delete", "-f", rights)
    for node in system.cluster.nodes:
        (node.device_plugins_dir / FILE).unlink(missing_ok=True)


def pids(pod: Json) -> list[int]:
    """Of a pod's containers, as the node counts them, in the order of their start."""
    found = []
    for pid in disturb.container_processes(pod):
        with contextlib.suppress(OSError):  # it has ended
            lines = Path(f"/proc/{pid}/status").read_text().splitlines()
            [of_node, of_container] = next(line.split()[2:4] for line in lines if line.startswith("NSpid:"))
            found.append((int(of_container), int(of_node)))
    return [of_node for _, of_node in sorted(found)]


def use(system: System, amounts: Mapping[str, int]) -> None:
    """Have each of these pods use so many MiB of its GPU, by one process; no other process on their nodes uses any."""
    by_node: dict[str, list[Json]] = {}
    for path, mib in amounts.items():
        pod = system.api.get(path)
        used = {"gpu": next(iter(allocated(pod).values()))[0], "pid": pids(pod)[0], "memoryMiB": mib}
        by_node.setdefault(pod["spec"]["nodeName"], []).append(used)
    for node, processes in by_node.items():
        directory = system.cluster.node(node).device_plugins_dir
        written = directory / f"{FILE}.new"
        written.write_text(json.dumps({"processes": processes}))
        written.replace(directory / FILE)


def test_use_is_shown_and_only_who_is_above_its_grant_is_touched(system: System, namespace: str) -> None:
    asked = {"within": {}, "killed": {names.WATCHDOG: "kill"}, "evicted": {names.WATCHDOG: "evict"}}
    pods = [make_pod(name, 2, node="node-1", annotations=annotations) for name, annotations in asked.items()]
    pods[1]["spec"]["securityContext"] = {"runAsUser": 65532}  # so that the signal needs the capability
    within, *_ = system.run(namespace, *pods)
    paths = [kube.pod_path(namespace, name) for name in asked]
    use(system, dict.fromkeys(paths, 2048))  # all of the grant

    def measured() -> bool:
        rows = gpushare_json(system, 0, "inspect", "--limits")["limits"]
        mine = [row for row in rows if (row["namespace"], row["pod"]) == (namespace, "within")]
        return [(row["grantedMiB"], row["usedMiB"], row["peakMiB"]) for row in mine] == [(2048, 2048, 2048)]

    system.eventually("what is used is shown", measured)
    [container] = gpushare_json(system, 0, "explain", f"{namespace}/within")["containers"]
    assert (container["memoryMiB"], container["usedMiB"], container["peakMiB"]) == (2048, 2048, 2048)

    checks = gpushare_json(system, 0, "doctor")["checks"]
    assert [each["result"] for each in checks if each["id"] == "usage"] == ["ok"]

    before = pids(within)
    use(system, {path: 2048 if path.endswith("within") else 2049 for path in paths})
    system.wait_told(namespace, "evicted", "GpuShareEvicted")
    system.eventually("it is gone", lambda: not system.exists(paths[2]))

    def restarted() -> bool:
        [pod] = system.running(namespace, "killed")
        return restarts(pod)["c0"] > 0

    system.eventually("the processes of the other were ended", restarted)
    system.wait_told(namespace, "killed", "GpuShareKilled: container c0 uses 2049 MiB")
    assert not [each for each in system.events(namespace, "within") if "GpuShareOverGrant" in each]
    within = system.pod(namespace, "within")
    assert restarts(within) == {"c0": 0}
    assert pids(within) == before


PAGE: Final = "docs/monitoring.md"
RULES: Final = "manifests/chart/files/rules.yaml"
LABEL: Final = "app.kubernetes.io/name"
TARGETS: Final = "targets.json"
CA_FILE: Final = "/etc/prometheus/gpushare-ca.crt"


@dataclass(frozen=True, slots=True)
class Prometheus:
    url: str

    def ask(self, path: str, **parameters: str) -> Any:
        """The data of an answer of its API; an AssertionError if it is none."""
        url = f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(url, timeout=60) as answer:
                found: Json = json.load(answer)
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{path} {parameters}: {error.read().decode()}") from error
        assert found["status"] == "success", found
        return found["data"]

    def query(self, expression: str) -> list[Json]:
        """The series that an expression has now."""
        result: list[Json] = self.ask("query", query=expression)["result"]
        return result

    def targets(self) -> dict[str, str]:
        """What is scraped: pod -> why it does not answer; empty if it does."""
        found = self.ask("targets", state="active")["activeTargets"]
        return {
            each["labels"]["instance"]: each["lastError"] or ("" if each["health"] == "up" else each["health"])
            for each in found
        }


def configuration(directory: Path) -> Json:
    """As on the page, with targets from a file: Debian builds Prometheus without the discovery of Kubernetes."""
    [written] = [block for block in pages.blocks(PAGE, "yaml") if block.startswith("scrape_configs:")]
    assert CA_FILE in written
    found: Json = yaml.safe_load(written.replace(CA_FILE, str(directory / "ca.crt")))
    for each in found["scrape_configs"]:
        assert each.pop("kubernetes_sd_configs") == [{"role": "pod", "namespaces": {"names": [names.NAMESPACE]}}]
        each["file_sd_configs"] = [{"files": [str(directory / TARGETS)]}]
    interval = {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"}
    return {"global": interval, "rule_files": [str(directory / "rules.yaml")], **found}


def targets(system: System) -> list[Json]:
    """What Prometheus itself would discover: every port of every pod, with what relabelling needs of its labels."""
    return [
        {
            "targets": [f"{pod['status']['podIP']}:{port['containerPort']}"],
            "labels": {
                "__meta_kubernetes_pod_name": pod["metadata"]["name"],
                "__meta_kubernetes_pod_container_port_name": port["name"],
                "__meta_kubernetes_pod_label_app_kubernetes_io_name": pod["metadata"].get("labels", {}).get(LABEL, ""),
            },
        }
        for pod in system.pods(names.NAMESPACE)
        for container in pod["spec"]["containers"]
        for port in container.get("ports", [])
        if pod["status"].get("podIP") and "deletionTimestamp" not in pod["metadata"]
    ]


@contextlib.contextmanager
def scraping(system: System, directory: Path) -> Iterator[Prometheus]:
    path = f"/api/v1/namespaces/{names.NAMESPACE}/secrets/{names.WEBHOOK_SECRET}"
    (directory / "ca.crt").write_bytes(base64.b64decode(system.api.get(path)["data"]["ca.crt"]))
    (directory / "rules.yaml").write_text(pages.text(RULES), encoding="utf-8")
    (directory / TARGETS).write_text(json.dumps(targets(system)))
    (directory / "prometheus.yaml").write_text(yaml.safe_dump(configuration(directory)))
    address = f"127.0.0.1:{free_port()}"
    argv: list[str | Path] = [prometheus.programs() / "prometheus", f"--config.file={directory / 'prometheus.yaml'}"]
    argv += [f"--storage.tsdb.path={directory / 'data'}", f"--web.listen-address={address}"]
    child = process.Process("prometheus", argv, directory / "prometheus.log")
    child.start()
    found = Prometheus(f"http://{address}")

    def ready() -> bool:
        child.check_alive()
        try:
            with urllib.request.urlopen(f"{found.url}/-/ready", timeout=10):
                return True
        except OSError:
            return False

    try:
        system.eventually("Prometheus is ready", ready)
        yield found
    finally:
        child.stop()


@pytest.fixture(scope="module")
def running(system: System, namespace: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """A Prometheus that has scraped every component, two of each, while pods use GPUs and one waits."""
    system.create(namespace, make_pod("waiting", 1000))
    use_1_gib(system, *system.run(namespace, make_pod("a", 2), make_pod("b", 2)))
    with scraping(system, tmp_path_factory.mktemp("prometheus")) as found:

        def all_up() -> bool:
            targets = found.targets()
            return len(targets) == 6 and not any(targets.values())

        system.eventually("every component is scraped", all_up)
        yield found


def use_1_gib(system: System, *pods: Json) -> None:
    use(system, {kube.pod_path(pod["metadata"]["namespace"], pod["metadata"]["name"]): 1024 for pod in pods})


def values(found: Prometheus, query: str) -> list[float]:
    return [float(each["value"][1]) for each in found.query(query)]


def test_every_query_of_the_dashboard_answers(running: Prometheus, system: System, namespace: str) -> None:
    system.run(namespace, make_pod("for-the-dashboard"))  # counters begin with the lead of the moment
    measured = {f"{what} by GPU" for what in ("Utilisation", "Temperature", "Power")}  # which simulated GPUs have not
    board = metrics.dashboard_queries(MANIFESTS / "chart" / "files" / "overview.json")
    queries = [(title, query) for title, query in board if title not in measured]
    assert len(queries) > 30

    def silent() -> list[str]:
        """A rate needs two samples."""
        return [f"{title}: {query}" for title, query in queries if not running.query(query)]

    system.eventually("all queries answer", lambda: not silent())


def test_what_is_granted_and_used_is_seen_by_pod_and_gpu(running: Prometheus, system: System, namespace: str) -> None:
    pod = system.pod(namespace, "a")
    use_1_gib(system, pod)
    [[uuid]] = allocated(pod).values()
    place = f'namespace="{namespace}",pod="a",container="c0",node="{pod["spec"]["nodeName"]}",UUID="{uuid}"'
    assert values(running, f"gpushare_plugin_container_granted_bytes{{{place}}}") == [2048 * MIB]
    used = f"gpushare_plugin_container_used_bytes{{{place}}}"
    system.eventually("what it uses", lambda: values(running, used) == [1024 * MIB])
    of_gpu = f'gpushare_plugin_gpu_memory_granted_bytes{{UUID="{uuid}"}} >= 2048 * {MIB}'
    assert len(running.query(of_gpu)) == 1
    both = "sum(gpushare_plugin_gpu_memory_granted_bytes) - sum(gpushare_node_memory_granted_bytes)"
    system.eventually("plugins and controller agree", lambda: values(running, both) == [0.0])
    waits = 'sum(gpushare_pods_waiting{reason=~"TooFewGpus|InsufficientGpuMemory"})'
    system.eventually("a pod waits", lambda: sum(values(running, waits)) >= 1)


def test_the_reference_page_has_all_that_the_processes_expose(
    running: Prometheus, system: System, namespace: str
) -> None:
    system.run(namespace, make_pod("for-the-page"))
    system.eventually("a bind is scraped", lambda: running.query('gpushare_extender_requests_total{verb="bind"} > 0'))
    found = {name for name in running.ask("label/__name__/values") if name.startswith(("gpushare_", "process_"))}
    endings = {"gauge": ("",), "counter": ("_total",), "histogram": ("_bucket", "_sum", "_count")}
    documented = {name + end: family for name, family in metrics.families().items() for end in endings[family.kind]}
    assert found <= documented.keys()
    absent = set(documented.keys() - found)
    assert absent <= {
        *("gpushare_gpu_over_committed_bytes", "gpushare_gpu_over_committed_compute_ratio"),  # none is
        *("gpushare_plugin_gpu_unhealthy", "gpushare_plugin_watchdog_actions_total"),
        *(f"gpushare_plugin_gpu_{what}" for what in ("utilization_ratio", "temperature_celsius", "power_watts")),
        *("gpushare_preempt_nodes_total", "gpushare_preempt_victims_total"),
        *("gpushare_plugin_claimed_bytes", "gpushare_plugin_claims_total"),  # no GPU is of mode dra, or none can be
    }
    for name in found:
        labels = {label for each in running.query(name) for label in each["metric"]}
        assert labels - {"__name__", "job", "instance", "le"} <= set(documented[name].labels), name


def test_the_rules_are_evaluated_and_nothing_critical_fires(running: Prometheus, system: System) -> None:
    def evaluated() -> bool:
        rules = [rule for group in running.ask("rules")["groups"] for rule in group["rules"]]
        assert rules
        assert not [rule for rule in rules if rule.get("lastError")]
        return all(rule["health"] == "ok" for rule in rules)

    system.eventually("rules are evaluated", evaluated)
    assert not running.query('ALERTS{severity="critical",alertstate="firing"}')


def test_a_controller_that_is_away_is_noticed(running: Prometheus, system: System) -> None:
    """For how long it must be away is tested without a cluster."""
    alert = 'ALERTS{alertname="GpuShareControllerNotReady"}'
    disturb.kill_leader(system)
    system.eventually("it is noticed", lambda: running.query(alert))
    system.eventually("another one leads", lambda: not running.query(alert))
