"""A real Prometheus scrapes the installation: every target answers, and so do all queries of the dashboard.

GPUs are simulated; what the containers use of them is written by the test, in the place of the driver.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from release.pages import metrics
from tests.e2e import disturb, plugins, scraper
from tests.e2e.scraper import Prometheus
from tests.e2e.system import Share, System, allocated
from tests.e2e.test_usage import FILE, SETTINGS, use

pytestmark = pytest.mark.e2e

MANIFESTS = Path(__file__).parents[2] / "manifests"
TOO_MUCH = 1000
"""GiB, which no GPU has."""
MIB = 1024 * 1024


@pytest.fixture(scope="module")
def namespace(system: System, shared_namespace: str) -> Iterator[str]:
    """Two pods that run, of which one uses its GPU, and one that waits, with plugins that read usage."""
    patch = (MANIFESTS / "usage" / "device-plugin.yaml").read_text(encoding="utf-8")
    with plugins.patched(system, SETTINGS, patch):
        waiting = Share(name="waiting", gib=(TOO_MUCH,)).document()
        system.create(shared_namespace, *(Share(name=name, gib=(2,)).document() for name in ("a", "b")), waiting)
        found = system.running(shared_namespace, "a", "b")
        for node in {pod["spec"]["nodeName"] for pod in found}:
            there = {pod["metadata"]["name"]: (pod, 1024) for pod in found if pod["spec"]["nodeName"] == node}
            use(system, node, there)
        yield shared_namespace
    for node in system.cluster.nodes:
        (node.device_plugins_dir / FILE).unlink(missing_ok=True)


@pytest.fixture(scope="module")
def running(system: System, namespace: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """A Prometheus that has scraped every component: two of each."""
    assert namespace
    with scraper.scraping(system, tmp_path_factory.mktemp("prometheus")) as found:

        def all_up() -> bool:
            targets = found.targets()
            return len(targets) == 6 and not any(targets.values())

        system.eventually("every component is scraped", all_up)
        yield found


def bind_one(system: System, namespace: str, name: str) -> None:
    """Have the leader of the moment bind a pod: its counters begin with the lead."""
    system.create(namespace, Share(name=name).document())
    system.running(namespace, name)


def values(found: Prometheus, query: str) -> list[float]:
    return [float(each["value"][1]) for each in found.query(query)]


def test_every_query_of_the_dashboard_answers(running: Prometheus, system: System, namespace: str) -> None:
    bind_one(system, namespace, "for-the-dashboard")
    queries = list(metrics.dashboard_queries(MANIFESTS / "monitoring" / "overview.json"))
    assert len(queries) > 30

    def answer() -> bool:
        """A rate needs two samples."""
        silent[:] = [f"{title}: {query}" for title, query in queries if not running.query(query)]
        return not silent

    silent: list[str] = []
    try:
        system.eventually("all queries answer", answer)
    finally:
        assert not silent


def test_what_is_granted_and_used_is_seen_by_pod_and_gpu(running: Prometheus, system: System, namespace: str) -> None:
    pod = system.pod(namespace, "a")
    [[uuid]] = allocated(pod).values()
    place = f'namespace="{namespace}",pod="a",container="c0",node="{pod["spec"]["nodeName"]}",UUID="{uuid}"'
    assert values(running, f"gpushare_plugin_container_granted_bytes{{{place}}}") == [2048 * MIB]
    used = f"gpushare_plugin_container_used_bytes{{{place}}}"
    system.eventually("what it uses", lambda: values(running, used) == [1024 * MIB])
    of_gpu = f'gpushare_plugin_gpu_memory_granted_bytes{{UUID="{uuid}"}} >= 2048 * {MIB}'
    assert len(running.query(of_gpu)) == 1
    both = "sum(gpushare_plugin_gpu_memory_granted_bytes) - sum(gpushare_node_memory_granted_bytes)"
    system.eventually("plugins and controller agree", lambda: values(running, both) == [0.0])
    waits = (
        'sum(gpushare_pods_waiting{reason="TooFewGpus"}) + sum(gpushare_pods_waiting{reason="InsufficientGpuMemory"})'
    )
    system.eventually("a pod waits", lambda: sum(values(running, waits)) >= 1)


def test_the_reference_page_has_all_that_the_processes_expose(
    running: Prometheus, system: System, namespace: str
) -> None:
    bind_one(system, namespace, "for-the-page")
    system.eventually("a bind is scraped", lambda: running.query('gpushare_extender_requests_total{verb="bind"} > 0'))
    found = {name for name in running.ask("label/__name__/values") if name.startswith(("gpushare_", "process_"))}
    endings = {"gauge": ("",), "counter": ("_total",), "histogram": ("_bucket", "_sum", "_count")}
    documented = {name + end: family for name, family in metrics.families().items() for end in endings[family.kind]}
    assert found <= documented.keys()
    absent = set(documented.keys() - found)
    assert absent <= {
        *("gpushare_gpu_over_committed_bytes", "gpushare_gpu_over_committed_compute_ratio"),  # none is
        *("gpushare_plugin_gpu_unhealthy", "gpushare_plugin_watchdog_actions_total"),
        *("gpushare_preempt_nodes_total", "gpushare_preempt_victims_total"),
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
